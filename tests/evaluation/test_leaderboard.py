"""Leaderboards: wins, losses and ranks over several evaluations, with one correction for all."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.evaluating import recorded
from heta_lens.evaluation.report.figures import frontier
from heta_lens.evaluation.report.leaderboard import Leaderboard, write_leaderboard
from heta_lens.evaluation.report.results import summary
from heta_lens.evaluation.run_database import Record
from heta_lens.evaluation.statistics import corrected

METRICS = {
    "good": {"title": "Good", "better": "more", "low": 0.0, "high": 1.0},
    "bad": {"title": "Bad", "better": "less", "low": 0.0, "high": 1.0},
}

LEVELS = {"heta": 0.5, "better": 0.8, "same": 0.5, "worse": 0.2}


def evaluation(folder: Path, suite: str, methods: dict[str, float], n: int = 40, seed: int = 0) -> Path:
    """Of a metric that is more for better methods, and one that is less."""
    named = {name: {"method": name, "options": {}} for name in methods}
    run = {"suite": suite, "model": "m", "methods": named, "metrics": METRICS, "instances": n}
    noise = np.random.default_rng(seed)
    found = []
    for number in range(n):
        for cost, (method, level) in enumerate(methods.items(), 1):
            value = float(np.clip(level + noise.normal(0, 0.1), 0, 1))
            values = {"good": value, "bad": 1 - value}
            costs: Any = {"seconds": cost / 10, "forwards": 10 * cost, "backwards": 4, "hvps": 1}
            found.append(Record(f"{number:03d}", method, f"t{number}", values, **costs))
    return recorded(folder, run, found)


@pytest.fixture
def board(tmp_path: Path) -> Leaderboard:
    two = {"heta": 0.5, "better": 0.8}
    return Leaderboard.of([evaluation(tmp_path / "a", "one", LEVELS), evaluation(tmp_path / "b", "two", two, seed=1)])


def test_wins_and_losses_are_counted_over_all_metrics(board: Leaderboard) -> None:
    rows = {row["method"]: row for row in board.rows}
    assert [(rows[name]["better"], rows[name]["worse"], rows[name]["compared"]) for name in LEVELS] == [
        (0, 0, 0),
        (4, 0, 4),
        (0, 0, 2),
        (0, 2, 2),
    ]
    assert board.rows[0]["method"] == "better" and board.rows[-1]["method"] == "worse"
    assert rows["better"]["rank"] == 0 and rows["worse"]["rank"] == 1 and rows["worse"]["ranked"] == 2
    assert rows["heta"]["worth"] == 10 + 2 * (4 - 2) + 2  # of 4 backwards, 2 stand for a product


def test_ps_are_corrected_for_all_comparisons_at_once(board: Leaderboard, tmp_path: Path) -> None:
    raw = [
        cell.difference.p
        for folder in ("a", "b")
        for cell in summary(tmp_path / folder).cells.values()
        if cell.difference is not None
    ]
    assert [cell["p"] for cell in board.cells if cell["p"] is not None] == corrected(raw)
    assert len(raw) == 8 and all(cell["p"] is None for cell in board.cells if cell["method"] == "heta")


def test_tables_page_and_figure_are_written(board: Leaderboard, tmp_path: Path) -> None:
    files = write_leaderboard(board, tmp_path / "out")
    assert [path.name for path in files] == [f"leaderboard.{kind}" for kind in ("md", "html", "csv", "svg", "pdf")]
    text = files[0].read_text()
    assert "| better | 0.00 | 4 | 4 | 0 | 0 | 26 | 0.2 |" in text
    assert "| heta |" in text and "the reference" in text and "all 8 comparisons" in text
    assert "▲ 0.8" in text and "▼ 0.2" in text
    assert files[2].read_text().startswith("evaluation,metric,method,value,low,high,n,p,verdict\none on m,good,heta,0.")
    assert "  better<" in files[3].read_text()


def test_evaluations_with_different_references_are_refused(tmp_path: Path) -> None:
    folders = [evaluation(tmp_path / "x", "one", LEVELS, 5), evaluation(tmp_path / "y", "two", {"lime": 0.5}, 5)]
    with pytest.raises(ValueError, match=r"compare methods with different ones \(heta in .*x; lime in .*y\)"):
        Leaderboard.of(folders)


def test_the_frontier_is_what_no_other_point_beats() -> None:
    assert frontier([(1.0, 0.5), (2.0, 0.5), (2.0, 0.2), (9.0, 0.3), (0.0, 0.9)]) == [0, 2, 4]
    assert frontier([(1.0, 0.5), (1.0, 0.5)]) == [0, 1]  # neither beats the other
    grid = [*product(range(3), range(3))]
    assert [grid[place] for place in frontier([(float(x), float(y)) for x, y in grid])] == [(0, 0)]
