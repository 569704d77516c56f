"""Bounded values: exact intervals of shares, and ends within the bounds."""

from math import inf

import pytest
from scipy import stats

from heta_lens.evaluation.statistics import estimate


@pytest.mark.parametrize("hits", [0, 1, 9, 14, 15])
def test_shares_lie_within_their_exact_interval(hits: int) -> None:
    interval = estimate([1.0] * hits + [0.0] * (15 - hits), list(range(15)))
    exact = stats.binomtest(hits, 15).proportion_ci()
    assert interval.low >= exact.low - 0.015 and interval.high <= exact.high + 0.015
    if hits in (0, 15):
        assert (interval.low, interval.high) == pytest.approx((exact.low, exact.high), abs=0.015)


def test_perfect_shares_of_templates_are_bounded_by_the_number_of_templates() -> None:
    interval = estimate([1.0] * 60, [at // 4 for at in range(60)])
    assert (interval.low, interval.high) == (pytest.approx(0.025 ** (1 / 15), abs=0.01), 1)
    assert estimate([1.0] * 60, [at // 4 for at in range(60)], bounds=(0, 1)) == interval


def test_bounds_keep_ends_within_them() -> None:
    values, clusters = [0.0, 0.1, 0.0, 0.9, 0.0, 0.0], list(range(6))
    interval = estimate(values, clusters, bounds=(0, 1))
    assert interval.low >= 0 and interval.high <= 1
    assert estimate(values, clusters).high > 1
    half_bounded = estimate([5.0] * 15, list(range(15)), bounds=(0, None))
    assert 0 < half_bounded.low < 5 and half_bounded.high == inf
    beyond = estimate([0.0, 0.5, 1 + 1e-12], [0, 1, 2], bounds=(0, 1))
    assert beyond.low < 0.5 < beyond.high
