"""Differences between methods and their p-values."""

from collections.abc import Sequence
from math import inf, isnan, nan

import numpy as np
import pytest
from scipy import stats

from benchmarks import coverage
from helpers.bootstrap_oracle import EACH, OTHERS, VALUES, every_draw, means_and_errors
from heta_lens.evaluation import statistics
from heta_lens.evaluation.statistics import Difference, corrected, difference, least_p, log_ratio


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


def test_more_draws_make_p_surer_and_hardly_move_it() -> None:
    draw, each = np.random.default_rng(1), list(range(40))
    ours = draw.lognormal(-0.18, 0.6, size=(40, 1)) - 1.3
    theirs = np.zeros((40, 1))
    told = difference(ours, theirs, each)
    surer = difference(ours, theirs, each, draws=8 * statistics.DRAWS)
    assert 0 < surer.p_error < told.p_error / 2
    assert abs(surer.p - told.p) < 4 * told.p_error
    seeds = [difference(ours, theirs, each, seed=seed).p for seed in range(12)]
    assert np.std(seeds) == pytest.approx(told.p_error, rel=0.6)


def test_shares_that_differ_everywhere_have_a_p() -> None:
    told = difference([1.0] * 15, [0.0] * 15, list(range(15)))
    assert told.p < 0.001 and 0.4 < told.low < told.high == 1
    assert difference([1.0] * 4, [0.0] * 4, list(range(4))).p == pytest.approx(2 / 2**4, rel=0.1)
    assert difference([1.0] * 4, [1.0] * 4, list(range(4))).p == 1


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_no_p_is_below_the_least(count: int) -> None:
    draw = np.random.default_rng(0)
    for _ in range(20):
        ours = (100 + draw.normal(size=count)).tolist()
        assert difference(ours, [0.0] * count, list(range(count))).p >= least_p(count) * 0.8


def test_the_interval_of_a_difference_is_of_pairs() -> None:
    far = [10.0 * value for value in range(8)]
    near = [value + 1 + 0.01 * (at % 3) for at, value in enumerate(far)]
    told = difference(near, far, EACH)
    assert told.value == pytest.approx(1.00875) and 1 < told.low < told.high < 1.02


def test_chance_alone_is_significant_1_time_in_20() -> None:
    draw = np.random.default_rng(0)
    owners = np.repeat(np.arange(8), 3)
    p_values = []
    for _ in range(400):
        ours, theirs = (draw.normal(size=(2, 8))[:, owners] + draw.normal(size=(2, 24)))[:, :, None]
        p_values.append(difference(ours, theirs, owners.tolist()).p)
    assert 0.015 <= np.mean(np.array(p_values) <= 0.05) <= 0.06


def test_infinite_differences_have_the_p_of_a_coin_for_each_cluster() -> None:
    nothing, something = [(0.0, 0.1)] * 8, [(0.3, 0.1)] * 8
    told = difference(nothing, something, EACH, log_ratio)
    assert (told.value, told.low, told.high, told.p) == (-inf, -inf, -inf, 2 / 2**8)
    few = difference(nothing[:4], something[:4], EACH[:4], log_ratio)
    assert (few.value, few.low, few.high, few.p) == (-inf, -inf, inf, 2 / 2**4)
    both = difference(nothing, nothing, EACH, log_ratio)
    assert isnan(both.value) and isnan(both.p)


def test_sums_that_cancel_to_nothing_have_a_logarithm_too() -> None:
    """0.1 + 0.2 - 0.3 is a little above 0, and 0.3 - 0.1 - 0.2 below."""
    told = difference([(0.1, 1.0), (0.2, 1.0), (0.3, 1.0)], [(0.0, 1.0)] * 3, EACH[:3], log_ratio)
    assert told.value == inf and told.p == 2 / 2**3


def test_holm_by_hand() -> None:
    assert corrected([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert corrected([0.5, 0.9]) == [1, 1]
    assert corrected([]) == []
    told = corrected([nan, 0.02, 0.04])
    assert isnan(told[0]) and told[1:] == pytest.approx([0.04, 0.04])


def test_a_difference_is_an_estimate() -> None:
    assert isinstance(difference(VALUES, OTHERS, EACH), Difference)


@pytest.mark.parametrize("kind", ["unequal clusters", "binary, .9", "lognormal, sigma .8"])
def test_equal_means_are_seldom_called_different(kind: str) -> None:
    assert coverage.size(coverage.PAIRS[kind], 15, 150) <= 0.1  # .06, and two standard errors above


@pytest.mark.nightly
@pytest.mark.parametrize("clusters", coverage.CLUSTERS)
def test_equal_methods_are_called_different_in_few_samples_of_every_cell(clusters: int) -> None:
    for name, kind in {**coverage.PAIRS, **coverage.archived_pairs()}.items():
        if (name, clusters) not in coverage.TOO_SKEWED:
            found = coverage.size(kind, clusters, 2000)
            assert found <= 0.06 + 0.01, f"{name} with {clusters} clusters: {found}"  # two standard errors
