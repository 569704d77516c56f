"""Pages and modules name make targets that exist, and no page links to itself or speaks to another site generator."""

import re
from pathlib import Path

import pytest

from helpers import ROOT

PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "benchmarks").glob("*.md")),
]
MODULES = [path for folder in ("heta_lens", "benchmarks", "docs", "tests") for path in (ROOT / folder).rglob("*.py")]
TARGETS = {*re.findall(r"^([a-z][\w%-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)}


def test_named_targets_exist() -> None:
    pattern = "|".join(target.replace("%", r"[\w.]+") for target in TARGETS)
    for path in (*PAGES, *MODULES):
        named = re.findall(r"(?:`|^)make ([a-z][\w.-]*)", path.read_text(encoding="utf-8"), re.MULTILINE)
        assert not [name for name in named if not re.fullmatch(f"table-NAME|{pattern}", name)], path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_links_to_other_pages_only(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert not re.findall(rf"\]\({re.escape(page.name)}[#)]", text)
    assert not re.findall(r"^:::|--8<--", text, re.MULTILINE)
