"""Intervals and differences, against definitions written out, against scipy, and by coverage."""

from collections.abc import Sequence
from itertools import product
from math import inf, isfinite, isnan, log, nan, sqrt

import numpy as np
import pytest
from scipy import stats

from benchmarks import coverage
from heta_lens.evaluation.statistics import corrected, difference, estimate, log_ratio

EACH = list(range(8))


def means_and_errors(values: Sequence[float], clusters: Sequence[object]) -> tuple[float, float, float]:
    """A mean over instances, its standard error over clusters, and how much one cluster makes of its variance."""
    names = list(dict.fromkeys(clusters))
    value = float(np.mean(values))
    moves = [sum(v - value for v, c in zip(values, clusters, strict=True) if c == name) / len(values) for name in names]
    squares = sum(move**2 for move in moves)
    error = (len(names) / (len(names) - 1) * squares) ** 0.5
    return value, error, abs(sum(move**3 for move in moves)) / squares**1.5 if squares else 0.0


def every_draw(values: Sequence[float], clusters: Sequence[object]) -> tuple[float, float, float]:
    """Both ends of the bootstrap-t interval and its p-value, from all ways to draw clusters, listed."""
    names = list(dict.fromkeys(clusters))
    value, error, weight = means_and_errors(values, clusters)
    found = []
    for drawn in product(names, repeat=len(names)):
        pairs = [(v, at) for at, name in enumerate(drawn) for v, c in zip(values, clusters, strict=True) if c == name]
        mean_drawn, error_drawn, _ = means_and_errors(*zip(*pairs, strict=True))
        away = mean_drawn - value
        same = abs(away) < 1e-12
        found.append(0.0 if same else away / error_drawn if error_drawn > 1e-9 else away * inf)
    found.sort()
    level = 0.025 * (1 - weight) ** 2
    at = int(level * len(found))
    seen = value / error
    passed = np.mean([one >= seen if seen > 0 else one <= seen for one in found])
    return value - error * found[-1 - at], value - error * found[at], 2 * passed / (1 - weight) ** 2


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


def test_draws_that_are_infinite_or_say_nothing_widen_the_interval() -> None:
    rare = estimate([(0.0, 0.1)] * 3 + [(0.4, 0.1)], EACH[:4], log_ratio)
    assert rare.low < -1 and rare.high == inf and rare.value == pytest.approx(0)
    empty = estimate([(0.0, 0.0)] * 3 + [(0.4, 0.1)], EACH[:4], log_ratio)
    assert (empty.low, empty.high) == (-inf, inf)


@pytest.mark.parametrize("hits", [0, 1, 9, 14, 15])
def test_shares_lie_within_their_exact_interval(hits: int) -> None:
    interval = estimate([1.0] * hits + [0.0] * (15 - hits), list(range(15)))
    exact = stats.binomtest(hits, 15).proportion_ci()
    assert interval.low >= exact.low - 0.015 and interval.high <= exact.high + 0.015
    if hits in (0, 15):
        assert (interval.low, interval.high) == pytest.approx((exact.low, exact.high), abs=0.015)


def test_bounds_keep_ends_within_them() -> None:
    values, clusters = [0.0, 0.1, 0.0, 0.9, 0.0, 0.0], list(range(6))
    interval = estimate(values, clusters, bounds=(0, 1))
    assert interval.low >= 0 and interval.high <= 1
    assert estimate(values, clusters).high > 1
    half_bounded = estimate([5.0] * 15, list(range(15)), bounds=(0, None))
    assert 0 < half_bounded.low < 5 and half_bounded.high == inf
    beyond = estimate([0.0, 0.5, 1 + 1e-12], [0, 1, 2], bounds=(0, 1))
    assert beyond.low < 0.5 < beyond.high
    broken = [value * 9 for value in values]  # by a metric whose bounds are not those it names
    assert estimate(broken, clusters, bounds=(0, 1)) == estimate(broken, clusters, bounds=(0, None))


def test_values_that_are_all_alike_and_unbounded_give_no_bound() -> None:
    told = estimate([5.3] * 15, list(range(15)))
    assert (told.value, told.low, told.high) == (pytest.approx(5.3), -inf, inf)
    assert difference([5.3] * 15, [4.3] * 15, list(range(15))).p == 1


def test_three_clusters_or_fewer_give_no_bound() -> None:
    for count in (2, 3):
        told = difference([0.3, 0.9, 0.5][:count], [0.1, 0.3, 0.2][:count], list(range(count)))
        assert (told.low, told.high) == (-inf, inf) and told.p > 0.05
    told = estimate([0.3, 0.9, 0.5, 0.8], list(range(4)))
    assert isfinite(told.low) and isfinite(told.high)


def test_one_instance_has_no_interval_and_none_no_value() -> None:
    one = estimate([0.5], ["a"])
    assert (one.value, one.n, one.clusters) == (0.5, 1, 1) and isnan(one.low) and isnan(one.high)
    none = estimate([], [])
    assert isnan(none.value) and isnan(none.low) and none.n == 0
    for smooth in (True, False):
        unknown = estimate([0.5, nan, 1.0], ["a", "b", "c"], smooth=smooth)
        assert isnan(unknown.value) and isnan(unknown.low) and isnan(unknown.high)
    apart = difference([0.5], [0.25], ["a"])
    assert apart.value == 0.25 and isnan(apart.low) and apart.p == 1
    assert isnan(difference([], [], []).p)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["unequal clusters", "binary, .98", "lognormal, sigma .8"])
def test_intervals_survive_skewness_and_few_clusters(kind: str) -> None:
    assert coverage.measured(coverage.KINDS[kind], 15, 150).coverage >= 0.89  # .93, and two standard errors below


@pytest.mark.nightly
@pytest.mark.parametrize("clusters", coverage.CLUSTERS)
def test_intervals_hold_the_truth_in_every_cell(clusters: int) -> None:
    for name, kind in coverage.KINDS.items():
        if (name, clusters) not in coverage.TOO_SKEWED:
            found = coverage.measured(kind, clusters, 2000).coverage
            assert found >= 0.93, f"{name} with {clusters} clusters: {found}"


@pytest.mark.parametrize("clusters", [range(5), [0, 0, 1, 2, 3]], ids=["each", "unequal"])
def test_p_is_the_larger_of_students_and_of_the_bootstrap_t(clusters: Sequence[int]) -> None:
    ours, theirs = [2.0, 2.4, 2.1, 2.6, 2.2], [1.9, 1.9, 2.2, 2.1, 1.7]
    told = difference(ours, theirs, list(clusters))
    apart = [a - b for a, b in zip(ours, theirs, strict=True)]
    value, error, _ = means_and_errors(apart, clusters)
    by_t = 2 * stats.t.sf(value / error, len(set(clusters)) - 1)
    assert told.value == pytest.approx(value)
    assert told.p == pytest.approx(max(by_t, every_draw(apart, clusters)[2]), rel=0.1)
    other_way = difference(theirs, ours, list(clusters))
    assert (other_way.value, other_way.low, other_way.p) == (-told.value, pytest.approx(-told.high), told.p)


def test_p_is_small_exactly_where_the_interval_leaves_0_out() -> None:
    draw, leaves_out = np.random.default_rng(0), []
    for trial in range(200):
        count = int(draw.integers(4, 20))
        shares, skewed = draw.integers(0, 2, (2, count, 1)).astype(float), draw.lognormal(size=(2, count, 1))
        ours, theirs = shares if trial % 3 == 0 else skewed + np.array([0.6 * (trial % 3 - 1), 0])[:, None, None]
        told = difference(ours, theirs, list(range(count)))
        leaves_out.append(not told.low <= 0 <= told.high)
        assert (told.p <= 0.05) == leaves_out[-1]
    assert 10 < sum(leaves_out) < 190


def test_shares_that_differ_everywhere_have_a_p() -> None:
    told = difference([1.0] * 15, [0.0] * 15, list(range(15)))
    assert told.p < 0.001 and 0.4 < told.low < told.high == 1
    assert difference([1.0] * 4, [0.0] * 4, list(range(4))).p == pytest.approx(2 / 2**4, rel=0.1)
    assert difference([1.0] * 4, [1.0] * 4, list(range(4))).p == 1


def test_the_interval_of_a_difference_is_of_pairs() -> None:
    far = [10.0 * value for value in range(8)]
    near = [value + 1 + 0.01 * (at % 3) for at, value in enumerate(far)]
    told = difference(near, far, EACH)
    assert told.value == pytest.approx(1.00875) and 1 < told.low < told.high < 1.02


def test_infinite_differences_have_the_p_of_a_coin_for_each_cluster() -> None:
    nothing, something = [(0.0, 0.1)] * 8, [(0.3, 0.1)] * 8
    told = difference(nothing, something, EACH, log_ratio)
    assert (told.value, told.low, told.high, told.p) == (-inf, -inf, -inf, 2 / 2**8)
    few = difference(nothing[:4], something[:4], EACH[:4], log_ratio)
    assert (few.value, few.low, few.high, few.p) == (-inf, -inf, inf, 2 / 2**4)
    both = difference(nothing, nothing, EACH, log_ratio)
    assert isnan(both.value) and isnan(both.p)


def test_holm_by_hand() -> None:
    assert corrected([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert corrected([0.5, 0.9]) == [1, 1]
    assert corrected([]) == []
    told = corrected([nan, 0.02, 0.04])
    assert isnan(told[0]) and told[1:] == pytest.approx([0.04, 0.04])


@pytest.mark.parametrize("kind", ["unequal clusters", "binary, .9", "lognormal, sigma .8"])
def test_equal_means_are_seldom_called_different(kind: str) -> None:
    assert coverage.size(coverage.PAIRS[kind], 15, 150) <= 0.1  # .06, and two standard errors above


@pytest.mark.nightly
@pytest.mark.parametrize("clusters", coverage.CLUSTERS)
def test_equal_methods_are_called_different_in_few_samples_of_every_cell(clusters: int) -> None:
    for name, kind in coverage.PAIRS.items():
        if (name, clusters) not in coverage.TOO_SKEWED:
            found = coverage.size(kind, clusters, 2000)
            assert found <= 0.06 + 0.01, f"{name} with {clusters} clusters: {found}"  # two standard errors
