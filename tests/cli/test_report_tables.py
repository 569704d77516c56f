"""The tables of a report in the terminal."""

from pathlib import Path

import pytest
from rich.console import Console

from helpers.evaluating import run
from heta_lens.cli.views import as_rich
from heta_lens.evaluation.report.document import Table


def test_a_table_is_as_a_report_has_it() -> None:
    console = Console(width=60, force_terminal=True, color_system="standard")
    with console.capture() as printed:
        console.print(as_rich(Table(["method", "F1"], [["a\x1b", "0.5"], ["b", "[red]"]], bold=frozenset({(0, 1)}))))
    shown = printed.get()
    assert "\x1b[1m0.5" in shown.replace(" ", "") and "[red]" in shown and "a\x1b" not in shown


@pytest.mark.slow
def test_a_report_and_a_leaderboard_are_printed(tmp_path: Path) -> None:
    for seed in ("0", "1"):
        words = "recall", "--limit", "2", "-m", "recency,random", "--metrics", "f1", "--seed", seed
        done = run("evaluate", *words, "--out", str(tmp_path / seed))
        assert done.exit_code == 0 and "F1 (more is better, n = 2)" in done.stdout
        assert "In brackets: 95 %" in done.stdout
    board = run("report", str(tmp_path / "0"), str(tmp_path / "1"), "--out", str(tmp_path / "board"))
    rows = [line.split() for line in board.stdout.splitlines()]
    assert {"recency", "random"} <= {row[0] for row in rows if row} and "Better, worse: than recency" in board.stdout
