"""Intervals and p-values, against definitions written out and against scipy's."""

from collections.abc import Sequence
from itertools import product
from math import inf, isnan, log, nan

import numpy as np
import pytest
from scipy import stats

from heta_lens.evaluation import statistics
from heta_lens.evaluation.statistics import Difference, corrected, difference, estimate, log_ratio, mean

pytestmark = pytest.mark.plain

VALUES = [0.3, 0.9, 0.4, 0.6, 0.1, 0.8, 0.75, 0.2]
OTHERS = [0.25, 0.5, 0.45, 0.3, 0.2, 0.35, 0.6, 0.1]
EACH = list(range(8))
PAIRS = [0, 0, 1, 1, 2, 2, 3, 3]
UNEVEN = ["a", "a", "a", "b", "b", "c", "d", "d"]


def swaps(ours: Sequence[float], theirs: Sequence[float], clusters: Sequence[object]) -> float:
    """The p-value by its definition: every way to swap whole clusters between two methods."""
    names = sorted({str(one) for one in clusters})
    found = []
    for sides in product((False, True), repeat=len(names)):
        swapped = [sides[names.index(str(one))] for one in clusters]
        one = [b if swap else a for a, b, swap in zip(ours, theirs, swapped, strict=True)]
        other = [a if swap else b for a, b, swap in zip(ours, theirs, swapped, strict=True)]
        found.append(abs(sum(one) - sum(other)))
    return sum(gap >= found[0] - 1e-12 for gap in found) / len(found)


def test_a_mean_is_over_instances_and_not_over_clusters() -> None:
    told = estimate(VALUES, UNEVEN)
    assert told.value == pytest.approx(np.mean(VALUES))
    assert (told.n, told.clusters, told.unit) == (8, 4, "templates")
    assert told.low < told.value < told.high


def test_intervals_are_percentiles_of_the_bootstrap() -> None:
    told = estimate(VALUES, EACH)
    level = 1 - 2 * stats.norm.cdf(np.sqrt(8 / 7) * stats.t.ppf(0.025, 7))  # widened for 8 clusters
    theirs = stats.bootstrap(
        (VALUES,),
        np.mean,
        confidence_level=level,
        method="percentile",
        n_resamples=20_000,
        rng=np.random.default_rng(1),
    ).confidence_interval
    assert (told.low, told.high) == pytest.approx((theirs.low, theirs.high), abs=0.02)
    assert told.unit == "instances"


def test_whole_clusters_are_drawn() -> None:
    """All 3^3 ways to draw from three clusters of unlike sizes, listed."""
    values, clusters = [0.0, 0.0, 1.0, 4.0, 5.0, 6.0], ["a", "a", "a", "b", "b", "c"]
    by_name = {name: [v for v, c in zip(values, clusters, strict=True) if c == name] for name in "abc"}
    means = sorted(np.concatenate([by_name[one] for one in drawn]).mean() for drawn in product("abc", repeat=3))
    told = estimate(values, clusters)
    assert told.low in [pytest.approx(value) for value in means]
    assert (told.low, told.high) == pytest.approx((means[0], means[-1]))  # of three, nearly all must be within


def test_clusters_that_agree_within_make_the_interval_wider() -> None:
    alike = [float(at // 5 % 2) for at in range(40)]
    by_template, by_instance = estimate(alike, [at // 5 for at in range(40)]), estimate(alike, list(range(40)))
    assert by_template.high - by_template.low > 1.5 * (by_instance.high - by_instance.low)


def test_the_order_of_clusters_and_the_time_of_day_say_nothing() -> None:
    assert estimate(VALUES, PAIRS) == estimate(VALUES, [f"t{one}" for one in PAIRS])
    ours, theirs, each = VALUES * 3, OTHERS * 3, list(range(24))
    before = estimate(ours, each), difference(ours, theirs, each)
    statistics._draws.cache_clear(), statistics._swaps.cache_clear()
    assert (estimate(ours, each), difference(ours, theirs, each)) == before


@pytest.mark.parametrize("clusters", [8, 20])
def test_95_percent_intervals_hold_the_truth_about_95_times_in_100(clusters: int) -> None:
    draw, hits, trials = np.random.default_rng(0), 0, 400
    owners = np.repeat(np.arange(clusters), 4)
    for _ in range(trials):
        values = draw.normal(size=clusters)[owners] + draw.normal(size=4 * clusters)
        told = estimate(values[:, None], owners.tolist())
        hits += told.low <= 0 <= told.high
    assert 0.92 <= hits / trials <= 0.98


def test_one_template_gives_way_to_its_instances() -> None:
    assert estimate(VALUES, ["only"] * 8) == estimate(VALUES, EACH)
    assert estimate(VALUES, ["only"] * 8).unit == "instances"
    assert difference(VALUES, OTHERS, ["only"] * 8) == difference(VALUES, OTHERS, EACH)


def test_one_instance_has_no_interval_and_none_no_value() -> None:
    one = estimate([0.5], ["a"])
    assert (one.value, one.n, one.clusters) == (0.5, 1, 1) and isnan(one.low) and isnan(one.high)
    none = estimate([], [])
    assert isnan(none.value) and isnan(none.low) and none.n == 0
    apart = difference([0.5], [0.25], ["a"])
    assert apart.value == 0.25 and isnan(apart.low) and apart.p == 1
    assert isnan(difference([], [], []).p)


@pytest.mark.parametrize("clusters", [EACH, PAIRS, UNEVEN], ids=["each", "pairs", "uneven"])
def test_p_is_the_share_of_all_swaps_that_go_as_far(clusters: list[object]) -> None:
    told = difference(VALUES, OTHERS, clusters)
    assert told.value == pytest.approx(np.mean(VALUES) - np.mean(OTHERS))
    assert told.p == pytest.approx(swaps(VALUES, OTHERS, clusters))
    assert difference(OTHERS, VALUES, clusters).p == told.p


def test_ways_that_go_exactly_as_far_count_however_they_are_rounded() -> None:
    draw = np.random.default_rng(0)
    for _ in range(20):
        ours, theirs = (draw.integers(0, 10, (2, 6)) / 10).tolist()
        assert difference(ours, theirs, EACH[:6]).p == pytest.approx(swaps(ours, theirs, EACH[:6]))


def test_p_is_scipys_where_every_instance_is_a_cluster() -> None:
    theirs = stats.permutation_test(
        (VALUES, OTHERS), lambda a, b, axis: np.mean(a - b, axis=axis), permutation_type="samples", vectorized=True
    )
    assert difference(VALUES, OTHERS, EACH).p == pytest.approx(theirs.pvalue)


def test_many_clusters_are_swapped_at_random_and_p_is_never_0() -> None:
    draw = np.random.default_rng(3)
    ours = draw.normal(0.25, 1, 40)
    told = difference(ours.tolist(), [0.0] * 40, list(range(40)))
    theirs = stats.permutation_test(
        (ours, np.zeros(40)),
        lambda a, b, axis: np.mean(a - b, axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=20_000,
        rng=np.random.default_rng(1),
    )
    assert 0.01 < told.p < 0.5
    assert told.p == pytest.approx(theirs.pvalue, abs=0.015)
    assert difference([1.0] * 40, [0.0] * 40, list(range(40))).p == pytest.approx(1 / (statistics.DRAWS + 1))


def test_clusters_without_a_difference_leave_few_to_swap() -> None:
    ours = [1.0] * 3 + [0.5] * 40
    told = difference(ours, [0.5] * 43, list(range(43)))
    assert told.p == 2 / 2**3
    assert difference(ours, ours, list(range(43))).p == 1


def test_the_interval_of_a_difference_is_of_pairs() -> None:
    far = [10.0 * value for value in range(8)]
    near = [value + 1 for value in far]
    told = difference(near, far, EACH)
    assert (told.value, told.low, told.high) == pytest.approx((1, 1, 1))


def test_chance_alone_is_significant_1_time_in_20() -> None:
    draw = np.random.default_rng(0)
    owners = np.repeat(np.arange(8), 3)
    p_values = [
        difference(*(draw.normal(size=(2, 8))[:, owners] + draw.normal(size=(2, 24)))[:, :, None], owners.tolist()).p
        for _ in range(400)
    ]
    assert 0.025 <= np.mean(np.array(p_values) <= 0.05) <= 0.075


def test_the_worked_example_of_a_log_ratio() -> None:
    told = estimate([(0.6, 0.1), (0.2, 0.1)], ["a", "b"], log_ratio)
    assert told.value == pytest.approx(1.386294, abs=5e-7)
    assert (told.low, told.high) == pytest.approx((log(2), log(6)))


def test_log_ratios_are_swapped_and_drawn_as_sums() -> None:
    ours = [(0.6, 0.1), (0.2, 0.1), (0.5, 0.2), (0.9, 0.1)]
    theirs = [(0.3, 0.2), (0.1, 0.1), (0.6, 0.1), (0.2, 0.3)]
    told = difference(ours, theirs, EACH[:4], log_ratio)

    def ratio(pairs: Sequence[tuple[float, float]]) -> float:
        return log(sum(own for own, _ in pairs) / sum(random for _, random in pairs))

    gaps = []
    for sides in product((0, 1), repeat=4):
        both = [
            pair if side == 0 else pair[::-1] for side, pair in zip(sides, zip(ours, theirs, strict=True), strict=True)
        ]
        gaps.append(abs(ratio([one for one, _ in both]) - ratio([other for _, other in both])))
    assert told.value == pytest.approx(ratio(ours) - ratio(theirs))
    assert told.p == pytest.approx(np.mean([gap >= gaps[0] - 1e-12 for gap in gaps]))
    assert told.p < 1


def test_log_ratios_of_nothing() -> None:
    assert estimate([(0.0, 0.1), (0.0, 0.2)], [0, 1], log_ratio).value == -inf
    assert estimate([(0.1, 0.0), (0.2, 0.0)], [0, 1], log_ratio).value == inf
    assert isnan(estimate([(0.0, 0.0)], [0], log_ratio).value)
    with pytest.raises(ValueError, match=r"at least 0, and one is -0\.1"):
        estimate([(-0.1, 0.1)], [0], log_ratio)


def test_draws_that_are_infinite_or_say_nothing_widen_the_interval() -> None:
    rare = estimate([(0.0, 0.1)] * 3 + [(0.4, 0.1)], EACH[:4], log_ratio)
    assert rare.low == -inf and rare.high == pytest.approx(log(4)) and rare.value == pytest.approx(0)
    empty = estimate([(0.0, 0.0)] * 3 + [(0.4, 0.1)], EACH[:4], log_ratio)
    assert (empty.low, empty.high) == (-inf, inf)


def test_infinite_differences_have_a_p() -> None:
    nothing, something = [(0.0, 0.1)] * 8, [(0.3, 0.1)] * 8
    told = difference(nothing, something, EACH, log_ratio)
    assert (told.value, told.low, told.high, told.p) == (-inf, -inf, -inf, 2 / 2**8)
    both = difference(nothing, nothing, EACH, log_ratio)
    assert isnan(both.value) and isnan(both.p)


def test_ways_without_a_value_count_as_going_as_far() -> None:
    """Where the first of two clusters is swapped alone, one method is left with nothing by nothing."""
    told = difference([(0.0, 0.0), (0.3, 0.1)], [(0.2, 0.1), (0.0, 0.0)], [0, 1], log_ratio)
    assert told.value == pytest.approx(log(1.5)) and told.p == 1


def test_sums_that_cancel_to_nothing_have_a_logarithm_too() -> None:
    """0.1 + 0.2 - 0.3 is a little above 0, and 0.3 - 0.1 - 0.2 below."""
    told = difference([(0.1, 1.0), (0.2, 1.0), (0.3, 1.0)], [(0.0, 1.0)] * 3, EACH[:3], log_ratio)
    assert told.value == inf and told.p == 2 / 2**3


def test_another_aggregate_may_be_given() -> None:
    told = difference([-1.0, -3.0], [1.0, 2.0], [0, 1], lambda means: np.abs(mean(means)))
    assert told.value == 0.5


def test_holm_by_hand() -> None:
    assert corrected([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert corrected([0.5, 0.9]) == [1, 1]
    assert corrected([]) == []
    told = corrected([nan, 0.02, 0.04])
    assert isnan(told[0]) and told[1:] == pytest.approx([0.04, 0.04])


def test_values_that_cannot_be_counted_are_refused() -> None:
    with pytest.raises(ValueError, match="2 values are of 3 instances"):
        estimate([0.1, 0.2], [0, 1, 2])
    with pytest.raises(ValueError, match="not finite: leave out"):
        estimate([0.1, nan], [0, 1])
    with pytest.raises(ValueError, match="not finite"):
        difference([0.1], [inf], [0])


def test_a_difference_is_an_estimate() -> None:
    assert isinstance(difference(VALUES, OTHERS, EACH), Difference)
