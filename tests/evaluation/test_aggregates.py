"""Aggregates of means: log-ratios of sums, and others."""

from collections.abc import Sequence
from math import inf, isnan, log, sqrt

import numpy as np
import pytest
from scipy import stats

from helpers.bootstrap_oracle import EACH
from heta_lens.evaluation.statistics import difference, estimate, log_ratio, mean


def test_the_worked_example_of_a_log_ratio() -> None:
    told = estimate([(0.6, 0.1), (0.2, 0.1)], ["a", "b"], log_ratio)
    assert told.value == pytest.approx(1.386294, abs=5e-7)
    assert (told.low, told.high) == (-inf, inf)  # two clusters give no bound


def test_log_ratios_are_of_sums_and_their_errors_by_the_delta_method() -> None:
    ours = [(0.6, 0.1), (0.2, 0.1), (0.5, 0.2), (0.9, 0.1), (0.4, 0.2), (0.7, 0.3)]
    theirs = [(0.3, 0.2), (0.1, 0.1), (0.6, 0.1), (0.2, 0.3), (0.2, 0.2), (0.5, 0.2)]

    def moves(pairs: Sequence[tuple[float, float]]) -> tuple[float, list[float]]:
        own, random = (sum(pair[at] for pair in pairs) for at in (0, 1))
        return log(own / random), [a / own - b / random for a, b in pairs]

    (one, one_moves), (other, other_moves) = moves(ours), moves(theirs)
    told = difference(ours, theirs, EACH[:6], log_ratio)
    assert told.value == pytest.approx(one - other)
    error = sqrt(6 / 5 * sum((a - b) ** 2 for a, b in zip(one_moves, other_moves, strict=True)))
    half = stats.t.ppf(0.975, 5) * error
    assert told.low <= told.value - half * (1 - 1e-6) and told.high >= told.value + half * (1 - 1e-6)
    assert told.p >= 2 * stats.t.sf(told.value / error, 5) * (1 - 1e-6)


def test_log_ratios_of_nothing() -> None:
    assert estimate([(0.0, 0.1), (0.0, 0.2)], [0, 1], log_ratio).value == -inf
    assert estimate([(0.1, 0.0), (0.2, 0.0)], [0, 1], log_ratio).value == inf
    assert isnan(estimate([(0.0, 0.0)], [0], log_ratio).value)
    with pytest.raises(ValueError, match=r"at least 0, and one is -0\.1"):
        estimate([(-0.1, 0.1)], [0], log_ratio)


def test_another_aggregate_may_be_given() -> None:
    told = difference([-1.0, -3.0], [1.0, 2.0], [0, 1], lambda means: np.abs(mean(means)))
    assert told.value == 0.5
