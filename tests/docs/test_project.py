"""What a newcomer relies on: the map in CONTRIBUTING, and workflows that run what the Makefile has."""

import re

from helpers import ROOT

WORKFLOWS = "".join(path.read_text(encoding="utf-8") for path in (ROOT / ".github" / "workflows").glob("*.yml"))


def test_the_map_has_every_folder_and_module() -> None:
    table = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Reading the code")[2]
    names = [path.name for path in (ROOT / "heta_lens").iterdir() if path.suffix in ("", ".py")]
    parts = [name for name in names if not name.startswith(("__", "."))]
    assert len(parts) > 15 and not [name for name in parts if f"](heta_lens/{name})" not in table]


def test_workflows_only_run_targets_of_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    run = set(re.findall(r"run: make ([a-z-]+)|target: ([a-z-]+)", WORKFLOWS))
    assert {"test", "quick", "docs", "release-check"} <= {first or second for first, second in run} <= targets
    assert set(re.findall(r"run: (\w+)", WORKFLOWS)) == {"make", "choco"}
