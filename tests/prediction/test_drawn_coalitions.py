"""Coalitions are drawn as Shapley values weigh them."""

from math import comb

import numpy as np
import pytest
from numpy.testing import assert_allclose

from heta_lens.prediction.coalitions import every_coalition, kernel, random_coalitions, shapley, sizes


@pytest.mark.parametrize("players", [1, 2, 5, 9])
def test_every_coalition_is_there_once(players: int) -> None:
    rows = {tuple(row) for row in every_coalition(players)}
    assert len(rows) == len(every_coalition(players)) == 2**players - 2
    assert not rows & {(False,) * players, (True,) * players}


@pytest.mark.parametrize("players", [2, 3, 7, 12])
def test_sizes_weigh_what_their_coalitions_do_together(players: int) -> None:
    mass = [comb(players, k) * (players - 1) / (comb(players, k) * k * (players - k)) for k in range(1, players)]
    assert_allclose(sizes(players), np.array(mass) / sum(mass))
    alone = kernel(np.arange(1, players), players)
    assert_allclose(alone * [comb(players, k) for k in range(1, players)], mass)


def test_random_coalitions_have_random_sizes_and_members() -> None:
    drawn = random_coalitions(np.random.default_rng(0), 6, 40_000)
    assert_allclose(np.bincount(drawn.sum(1), minlength=7)[1:6] / 40_000, sizes(6), rtol=0, atol=0.01)
    assert_allclose(drawn[drawn.sum(1) == 2].mean(0), np.full(6, 1 / 3), rtol=0, atol=0.02)


@pytest.mark.parametrize("count", [8, 7])
def test_pairs_are_a_coalition_and_its_opponents(count: int) -> None:
    drawn = random_coalitions(np.random.default_rng(0), 5, count, paired=True)
    assert drawn.shape == (count, 5)
    assert (drawn[4:] == ~drawn[: count - 4]).all()


def test_random_coalitions_come_near_the_truth_and_pairs_nearer() -> None:
    table, ends = np.random.default_rng(3).normal(size=2**7), [np.zeros(7, dtype=bool), np.ones(7, dtype=bool)]
    empty, full = (float(table[end @ (1 << np.arange(7))]) for end in ends)

    def values(masks: np.ndarray, weights: np.ndarray) -> np.ndarray:
        return shapley(masks, table[masks @ (1 << np.arange(7))], weights, empty, full)

    every = every_coalition(7)
    exact = values(every, kernel(every.sum(1), 7))

    def error(count: int, paired: bool) -> float:
        drawn = [random_coalitions(np.random.default_rng([s, 7]), 7, count, paired=paired) for s in range(20)]
        return float(np.mean([np.abs(values(masks, np.ones(len(masks))) - exact).max() for masks in drawn]))

    assert error(2000, True) < 0.4 * error(110, True) and error(2000, True) < error(2000, False)
    assert error(440, True) < 0.9 * error(440, False)
