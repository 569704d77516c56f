"""The module map is drawn from the code as it is."""

import ast
import runpy
from pathlib import Path

import pytest

from helpers import ROOT

PACKAGE = ROOT / "heta_lens"
MAP = runpy.run_path(str(ROOT / "docs" / "module_map.py"))


def test_the_page_is_up_to_date() -> None:
    assert MAP["PAGE"].read_text(encoding="utf-8") == MAP["page"](), "run `python docs/module_map.py`"


def test_every_module_is_on_it() -> None:
    names = {path.name for path in (ROOT / "heta_lens").rglob("*.py")} - {"__init__.py"}
    page = MAP["page"]()
    assert {name for name in names if f"`{name}`" not in page} == set()


PACKAGES = sorted(path.parent for path in PACKAGE.rglob("__init__.py"))


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_a_packages_docstring_names_every_file_in_it(package: Path) -> None:
    docstring = ast.get_docstring(ast.parse((package / "__init__.py").read_text(encoding="utf-8")))
    files = {path.stem for path in package.glob("*.py")} - {"__init__"}
    if package != PACKAGE and package.name != "methods":  # whose files are named like methods
        assert not {name for name in files if f"`{name}`" not in docstring}
