"""The cluster bootstrap against all draws, listed."""

from collections.abc import Sequence
from math import inf, nan

import numpy as np
import pytest
from scipy import stats

from helpers.bootstrap_oracle import EACH, every_draw, means_and_errors
from heta_lens.evaluation.statistics import difference, estimate, log_ratio

SKEWED = [0.1, 0.2, 0.25, 0.4, 1.1]


@pytest.mark.parametrize("clusters", [range(5), [0, 0, 1, 2, 3]], ids=["each", "unequal"])
def test_an_interval_is_the_wider_of_students_and_of_the_bootstrap_t(clusters: Sequence[int]) -> None:
    values = [2.0, 2.3, 2.1, 2.6, 2.2]
    told = estimate(values, list(clusters))
    low, high, _ = every_draw(values, clusters)
    value, error, _ = means_and_errors(values, clusters)
    half = float(stats.t.ppf(0.975, len(set(clusters)) - 1)) * error
    assert told.value == pytest.approx(value)
    assert told.low == pytest.approx(min(low, value - half), abs=0.5 * half)
    assert told.high == pytest.approx(max(high, value + half), abs=0.5 * half)
    assert told.low < value - half or told.high > value + half


def test_a_long_tail_reaches_further_on_its_side() -> None:
    told = estimate(SKEWED * 3, list(range(15)))
    low, high = stats.t.interval(0.95, 14, np.mean(SKEWED), np.std(SKEWED * 3, ddof=1) / 15**0.5)
    assert told.low == pytest.approx(low)
    assert told.high - told.value > 1.3 * (high - told.value)


def test_clusters_that_agree_within_make_the_interval_wider() -> None:
    alike = [float(at // 5 % 2) for at in range(40)]
    by_template, by_instance = estimate(alike, [at // 5 for at in range(40)]), estimate(alike, list(range(40)))
    assert by_template.high - by_template.low > 1.5 * (by_instance.high - by_instance.low)


def test_draws_that_are_infinite_or_say_nothing_widen_the_interval() -> None:
    rare = estimate([(0.0, 0.1)] * 3 + [(0.4, 0.1)], EACH[:4], log_ratio)
    assert rare.low < -1 and rare.high == inf and rare.value == pytest.approx(0)
    empty = estimate([(0.0, 0.0)] * 3 + [(0.4, 0.1)], EACH[:4], log_ratio)
    assert (empty.low, empty.high) == (-inf, inf)


def test_values_that_cannot_be_counted_are_refused() -> None:
    with pytest.raises(ValueError, match="2 values are of 3 instances"):
        estimate([0.1, 0.2], [0, 1, 2])
    with pytest.raises(ValueError, match="not finite: leave out"):
        estimate([0.1, nan], [0, 1])
    with pytest.raises(ValueError, match="not finite"):
        difference([0.1], [inf], [0])
