"""The module map is drawn from the code as it is."""

import runpy

from helpers.paths import ROOT

MAP = runpy.run_path(str(ROOT / "docs" / "module_map.py"))


def test_the_page_is_up_to_date() -> None:
    assert MAP["PAGE"].read_text(encoding="utf-8") == MAP["page"](), "run `python docs/module_map.py`"


def test_every_module_is_on_it() -> None:
    names = {path.name for path in (ROOT / "heta_lens").rglob("*.py")} - {"__init__.py"}
    page = MAP["page"]()
    assert {name for name in names if f"`{name}`" not in page} == set()
