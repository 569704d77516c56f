"""Which methods no other beats in cost and rank; and the figure of them."""

from itertools import product

import pytest

from heta_lens.evaluation.report.leaderboard import frontier, ranks_by_cost


def test_the_frontier_is_what_no_other_point_beats() -> None:
    assert frontier([(1.0, 0.5), (2.0, 0.5), (2.0, 0.2), (9.0, 0.3), (0.0, 0.9)]) == [0, 2, 4]
    assert frontier([(1.0, 0.5), (1.0, 0.5)]) == [0, 1]  # neither beats the other
    grid = [*product(range(3), range(3))]
    assert [grid[place] for place in frontier([(float(x), float(y)) for x, y in grid])] == [(0, 0)]


@pytest.mark.slow
def test_methods_without_a_cost_or_rank_are_left_out_and_names_are_drawn() -> None:
    rows = [
        {"method": "cheap & good", "rank": 0.1, "worth": 0.0},
        {"method": "dear", "rank": 0.6, "worth": 500.0},
        {"method": "unknown", "rank": float("nan"), "worth": 3.0},
    ]
    drawn = ranks_by_cost(rows)
    assert "cheap &amp; good" in drawn.svg and "dear" in drawn.svg and "unknown" not in drawn.svg
    assert drawn.pdf.startswith(b"%PDF") and b"FontFile" in drawn.pdf  # its fonts are embedded
    assert ranks_by_cost([]).svg.startswith("<?xml")
    assert drawn == ranks_by_cost(rows)
