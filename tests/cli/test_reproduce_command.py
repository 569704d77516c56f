"""``heta-lens reproduce``: which tables there are."""

from pathlib import Path

from rich.console import Console

from heta_lens.cli.evaluate import TABLES, measured_table
from heta_lens.evaluation import reproduce


def test_the_help_names_every_table() -> None:
    assert {*TABLES} == {*reproduce.TABLES}


def test_what_was_measured_is_printed(tmp_path: Path) -> None:
    lines = "demo model,IG,DSA,,0.0824757\ndemo model,HETA,DSA,4.8,0.57\ndemo model,HETA,F1,,1\nGPT-J,IG,DSA,-0.3,\n"
    (tmp_path / "dsa.csv").write_text(f"block,row,column,paper,ours\n{lines}")
    console = Console(width=60)
    with console.capture() as printed:
        console.print(measured_table(tmp_path / "dsa.csv"))
    assert [line.split() for line in printed.get().splitlines() if line] == [
        ["row", "measured", "on", "DSA", "F1"],
        ["IG", "demo", "model", "0.0825"],
        ["HETA", "demo", "model", "0.57", "1"],
    ]
