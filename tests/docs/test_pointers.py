"""Pages and modules name make targets that exist."""

import re

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
