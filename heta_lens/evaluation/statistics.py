"""Aggregates over prompts with 95 % intervals and tests of differences, by the cluster bootstrap.

An instance has a vector of numbers, and an aggregate makes one number of the mean vector: the mean itself, or the
logarithm of the ratio between the value of a method and the value of random scores. Instances made from one template
are not independent, so the bootstrap draws clusters (templates) instead of instances.

An interval is the union of two intervals: Student's t over clusters, and the cluster bootstrap of the studentised
statistic (bootstrap-t), which follows the skewness of the data. No end of the interval of bounded values, such as
shares between 0 and 1, lies beyond Gaffke's bound. An end of an interval of unbounded values is infinite if the data
give no bound: if almost all clusters agree, or if there are fewer than four clusters.

A p-value inverts the construction of the interval: p <= 0.05 exactly where the 95 % interval excludes 0.
``benchmarks/coverage.py`` measures the coverage of the intervals and the size of the tests.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import inf, isfinite, isnan, nan, sqrt
from typing import NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Bool, Float, Int, UInt
from scipy.stats import norm, t

Vectors: TypeAlias = Sequence[float] | Sequence[Sequence[float]] | Float[np.ndarray, "n k"]
Aggregate: TypeAlias = Callable[[Float[np.ndarray, "draws k"]], Float[np.ndarray, "draws"]]
Bounds: TypeAlias = tuple[float | int | None, float | int | None]

DRAWS, SEED = 10_000, 0
CONFIDENCE = 0.95
STEP = 1e-7  # relative step of a mean in numerical derivatives
BEYOND = 1e-6  # of a bound, by rounding
ROUNDING = 1e-12  # relative size below which a variance counts as 0


class AggregateKind(NamedTuple):
    """An aggregate, and the number of values per instance that the aggregate needs."""

    terms: int
    aggregate: Aggregate


def mean(means: Float[np.ndarray, "draws 1"]) -> Float[np.ndarray, "draws"]:
    return means[:, 0]


def log_ratio(means: Float[np.ndarray, "draws 2"]) -> Float[np.ndarray, "draws"]:
    """Return ``ln(first / second)``: -inf if the first mean is 0, inf if the second is 0, NaN if both are 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(means[:, 0]) - np.log(means[:, 1])


AGGREGATES: Mapping[str, AggregateKind] = {"mean": AggregateKind(1, mean), "log_ratio": AggregateKind(2, log_ratio)}


def _difference_of(aggregate: Aggregate, k: int) -> Aggregate:
    """Return the aggregate of the first ``k`` means minus the aggregate of the remaining means."""

    def minus(means: Float[np.ndarray, "draws both"]) -> Float[np.ndarray, "draws"]:
        with np.errstate(invalid="ignore"):
            return aggregate(means[:, :k]) - aggregate(means[:, k:])

    return minus


def _gradient(aggregate: Aggregate, means: Float[np.ndarray, "draws k"]) -> Float[np.ndarray, "draws k"]:
    """Differentiate an aggregate numerically with respect to every mean."""
    if aggregate is mean:
        return np.ones_like(means)
    slopes, start = np.empty_like(means), aggregate(means)
    with np.errstate(all="ignore"):
        for column in range(means.shape[1]):
            moved = means.copy()
            moved[:, column] += np.where(means[:, column] == 0, STEP, STEP * np.abs(means[:, column]))
            slopes[:, column] = (aggregate(moved) - start) / (moved[:, column] - means[:, column])
    return slopes


def _share_of(passed: Bool[np.ndarray, "draws"]) -> float:
    """Return the share of draws that passed, counting one more draw as passed."""
    return (int(passed.sum()) + 1) / (len(passed) + 1)


@lru_cache(maxsize=40)
def _cluster_counts(clusters: int) -> UInt[np.ndarray, "draws clusters"]:
    """Draw the clusters with replacement; the result says how often a draw has each cluster."""
    counts = np.random.default_rng([SEED, 0]).multinomial(clusters, np.full(clusters, 1 / clusters), DRAWS)
    return counts.astype(np.uint16)


@lru_cache(maxsize=4)
def _cluster_weights(clusters: int) -> Float[np.ndarray, "draws clusters"]:
    """Draw weights of the clusters that are uniform over all possible weights after division by the sum."""
    return np.random.default_rng([SEED, 0]).exponential(size=(DRAWS, clusters))


@dataclass(frozen=True)
class Estimate:
    """The aggregate of ``n`` instances with a 95 % interval, estimated by drawing ``clusters`` clusters.

    An end is infinite if the data give no bound, and NaN if there is only one instance.
    """

    value: float
    low: float
    high: float
    n: int
    clusters: int


@dataclass(frozen=True)
class Difference(Estimate):
    """The difference of two methods on the same instances.

    ``p`` is two-sided, and at most 0.05 exactly where the interval excludes 0.
    """

    p: float


@dataclass(frozen=True, eq=False)
class Sample:
    """Clusters of instances, by the sums of their vectors and by their sizes, and the aggregate to estimate.

    ``bounds`` are the least and the greatest value of an instance, infinite if unknown; the bounds are only used for a
    mean. ``moving`` counts the clusters on which two compared methods differ.
    """

    sums: Float[np.ndarray, "clusters k"]
    sizes: Float[np.ndarray, "clusters"]
    aggregate: Aggregate
    bounds: tuple[float, float]
    moving: int = 0

    @property
    def clusters(self) -> int:
        return len(self.sizes)

    @property
    def n(self) -> int:
        return int(self.sizes.sum())

    @cached_property
    def means(self) -> Float[np.ndarray, "k"]:
        return self.sums.sum(axis=0) / self.sizes.sum()

    @cached_property
    def value(self) -> float:
        return float(self.aggregate(self.means[None])[0]) if self.clusters else nan

    @cached_property
    def error(self) -> float:
        """The standard error over clusters; 0 if the clusters differ by rounding alone."""
        slopes = np.abs(_gradient(self.aggregate, self.means[None])[0])
        squares = float((self._influence**2).sum())
        size = float(np.abs(self.sums).max(axis=0) @ slopes) / self.sizes.sum()
        if squares <= (ROUNDING * size) ** 2:
            return 0.0
        return sqrt(self.clusters / (self.clusters - 1) * squares)

    def interval(self) -> tuple[float, float]:
        """Return the ends of the 95 % interval."""
        if self.clusters < 2 or isnan(self.value):
            return nan, nan
        if not isfinite(self.value):
            return (self.value, self.value) if self.p_value() <= 1 - CONFIDENCE else (-inf, inf)
        half = float(t.ppf((1 + CONFIDENCE) / 2, self.clusters - 1)) * self.error
        low, high = self._bootstrap_ends()
        low, high = min(self.value - half, low), max(self.value + half, high)
        return max(low, self._gaffke_end(0)), min(high, self._gaffke_end(1))

    def p_value(self) -> float:
        """Return twice the smallest level at which a one-sided bound excludes 0."""
        if isnan(self.value):
            return nan
        if self.value == 0 or self.clusters < 2:
            return 1.0
        if not isfinite(self.value):
            return min(1.0, 2.0 ** (1 - self.moving))
        by_student = 2 * float(t.sf(abs(self.value) / self.error, self.clusters - 1)) if self.error else 0.0
        return min(max(by_student, self._bootstrap_p()), self._gaffke_p(), 1.0)

    @cached_property
    def _residuals(self) -> Float[np.ndarray, "clusters k"]:
        return self.sums - self.means * self.sizes[:, None]

    @cached_property
    def _influence(self) -> Float[np.ndarray, "clusters"]:
        """The first-order effect of every cluster on the aggregate."""
        return self._residuals @ _gradient(self.aggregate, self.means[None])[0] / self.sizes.sum()

    @cached_property
    def _trust(self) -> float:
        """A factor for the level of a quantile, from 1 for symmetric clusters to 0 if one cluster has all variance.

        The skewness of a few clusters understates the skewness of their distribution, the more so the more skewed the
        distribution is; reading quantiles further out makes up for the difference.
        """
        squares = float((self._influence**2).sum())
        return (1 - abs(float((self._influence**3).sum())) / squares**1.5) ** 2 if self.error else 1.0

    def _bootstrap_ends(self) -> tuple[float, float]:
        """Return the ends of the bootstrap-t interval; an end is infinite if the draws give no bound."""
        place = int((1 - CONFIDENCE) / 2 * self._trust * (DRAWS + 1)) - 1
        if place < 0 or not self.error:
            return -inf, inf
        low, high = self._studentised
        upper, lower = (float(np.partition(draws, -1 - place)[-1 - place]) for draws in (-low, high))
        return self.value - self.error * lower, self.value + self.error * upper

    def _bootstrap_p(self) -> float:
        if not self.error:
            return 1.0
        studentised, (low, high) = self.value / self.error, self._studentised
        passed = (high >= studentised) if studentised > 0 else (low <= studentised)
        return 2 * _share_of(passed) / max(self._trust, ROUNDING)

    @cached_property
    def _studentised(self) -> tuple[Float[np.ndarray, "draws"], Float[np.ndarray, "draws"]]:
        """The distance of every draw from the value, in standard errors of the draw; see `_low_and_high`."""
        k = self.sums.shape[1]
        parts = np.concatenate([self._residuals, self.sizes[:, None]], axis=1)
        rows, columns = np.triu_indices(k + 1)
        drawn = self._drawn(np.concatenate([parts, parts[:, rows] * parts[:, columns]], axis=1))
        means = self._means_of(drawn)
        with np.errstate(all="ignore"):
            aggregates = self.aggregate(means)
            slopes, moved = _gradient(self.aggregate, means), drawn[:, :k] / drawn[:, [k]]
            sides = np.concatenate([slopes, -(slopes * moved).sum(axis=1, keepdims=True)], axis=1)
            products = drawn[:, k + 1 :] * sides[:, rows] * sides[:, columns] * np.where(rows == columns, 1, 2)
            variances = self.clusters / (self.clusters - 1) * products.sum(axis=1) / drawn[:, k] ** 2
            away = aggregates - self.value
            still = ~(np.abs(away) > ROUNDING * max(abs(self.value), self.error))
            ratios = np.where(variances > ROUNDING * self.error**2, away / np.sqrt(variances), np.sign(away) * inf)
        ratios = np.where(np.isinf(aggregates), aggregates, np.where(still & ~np.isnan(aggregates), 0.0, ratios))
        return _low_and_high(ratios)

    def _drawn(self, parts: Float[np.ndarray, "clusters parts"]) -> Float[np.ndarray, "draws parts"]:
        """Sum the parts over the clusters of every draw."""
        return _cluster_counts(self.clusters).astype(float) @ parts

    def _means_of(self, drawn: Float[np.ndarray, "draws parts"]) -> Float[np.ndarray, "draws k"]:
        """Compute the means of every draw from the summed residuals and the summed sizes that follow."""
        k = self.sums.shape[1]
        # A sum of values of at least 0 stays at least 0 despite rounding.
        floor = np.where((self.sums >= 0).all(axis=0), 0.0, -inf)
        return np.maximum(self.means + drawn[:, :k] / drawn[:, [k]], floor)

    def percentiles(self) -> tuple[float, float]:
        """Return percentiles of the drawn aggregates, further out the fewer clusters there are.

        Plain percentiles are too narrow for few clusters, as a normal interval is narrower than Student's t; the
        adjusted level makes up for the difference (Hesterberg 2015, "What teachers should know about the bootstrap",
        section 3.2).
        """
        if self.clusters < 2 or isnan(self.value):
            return nan, nan
        parts = np.concatenate([self._residuals, self.sizes[:, None]], axis=1)
        with np.errstate(all="ignore"):
            aggregates = self.aggregate(self._means_of(self._drawn(parts)))
        widened = sqrt(self.clusters / (self.clusters - 1)) * t.ppf((1 - CONFIDENCE) / 2, self.clusters - 1)
        place = int(norm.cdf(widened) * len(aggregates))
        low, high = _low_and_high(aggregates)
        return float(np.sort(low)[place]), float(np.sort(high)[-1 - place])

    # The bound is a quantile of the mean under random weights of the clusters and of one more cluster, whose values
    # are at the bound. The bound holds for every distribution within the bounds; for 0/1 values in clusters of one,
    # the bound is the exact (Clopper-Pearson) bound.
    def _gaffke_end(self, side: int) -> float:
        """Return the lower (side 0) or the upper (side 1) end of the interval of a bounded mean."""
        if not isfinite(self.bounds[side]):
            return self.bounds[side]
        place = int((1 - CONFIDENCE) / 2 * (DRAWS + 1)) - 1
        weighted = np.sort(self._weighted_means(side))
        return float(weighted[-1 - place] if side else weighted[place])

    def _gaffke_p(self) -> float:
        """Return twice the level at which the bound on the side of 0 reaches the value."""
        side = 0 if self.value > 0 else 1
        if not isfinite(self.bounds[side]):
            return 1.0
        weighted = self._weighted_means(side)
        return 2 * _share_of(weighted >= 0 if side else weighted <= 0)

    def _weighted_means(self, side: int) -> Float[np.ndarray, "draws"]:
        sums = np.append(self.sums[:, 0], self.bounds[side] * self.sizes.mean())
        parts = np.stack([sums, np.append(self.sizes, self.sizes.mean())], axis=1)
        weighted = _cluster_weights(len(sums)) @ parts
        return weighted[:, 0] / weighted[:, 1]


def _low_and_high(drawn: Float[np.ndarray, "draws"]) -> tuple[Float[np.ndarray, "draws"], Float[np.ndarray, "draws"]]:
    """Read draws without a value (NaN) as low as possible, and as high as possible."""
    unknown = np.isnan(drawn)
    return np.where(unknown, -inf, drawn), np.where(unknown, inf, drawn)


def _sample(
    vectors: Float[np.ndarray, "n k"],
    numbers: Int[np.ndarray, "n"],
    aggregate: Aggregate,
    bounds: Bounds | None,
    moving: int = 0,
) -> Sample:
    # A value beyond a bound by rounding moves the bound, and any other value beyond it shows that there is none.
    low, high = bounds or (None, None)
    least, most = vectors[:, 0].min(initial=inf), vectors[:, 0].max(initial=-inf)
    lowest = -inf if low is None or least < low - BEYOND else min(float(low), least)
    highest = inf if high is None or most > high + BEYOND else max(float(high), most)
    sums, sizes = _cluster_sums(vectors, numbers), np.bincount(numbers).astype(float)
    return Sample(sums, sizes, aggregate, (lowest, highest), moving)


def _columns(values: Vectors) -> Float[np.ndarray, "n k"]:
    vectors = np.asarray(values, dtype=float)
    return vectors if vectors.ndim == 2 else vectors[:, None]


def _cluster_numbers(clusters: Sequence[Hashable]) -> Int[np.ndarray, "n"]:
    """Number the clusters; a single cluster carries no information, and its instances replace the cluster."""
    numbers = {cluster: number for number, cluster in enumerate(dict.fromkeys(clusters))}
    if len(numbers) < 2:
        return np.arange(len(clusters))
    return np.array([numbers[cluster] for cluster in clusters])


def _cluster_sums(vectors: Float[np.ndarray, "n k"], numbers: Int[np.ndarray, "n"]) -> Float[np.ndarray, "clusters k"]:
    return np.stack([np.bincount(numbers, column) for column in vectors.T], axis=1).astype(float)


def _bounds_of_shares(*values: Float[np.ndarray, "n k"]) -> Bounds | None:
    return (0.0, 1.0) if all(np.isin(vectors, (0.0, 1.0)).all() for vectors in values) else None


def estimate(
    values: Vectors,
    clusters: Sequence[Hashable],
    aggregate: Aggregate = mean,
    bounds: Bounds | None = None,
    smooth: bool = True,
) -> Estimate:
    """Compute an aggregate over instances with a 95 % interval; NaN if the instances say nothing.

    Args:
        values: a number, or a vector of numbers, per instance.
        clusters: the cluster of every instance.
        aggregate: the function from mean vectors to numbers.
        bounds: the least and the greatest possible value of an instance, None for an open end. Only means use bounds;
            by default, values that are all 0 or 1 are bounded by 0 and 1.
        smooth: False for an aggregate without a standard error, whose interval is percentiles of the bootstrap.
    """
    vectors, numbers = _columns(values), _cluster_numbers(clusters)
    known = (bounds or _bounds_of_shares(vectors)) if aggregate is mean else None
    sample = _sample(vectors, numbers, aggregate, known)
    low, high = sample.interval() if smooth else sample.percentiles()
    return Estimate(sample.value, low, high, sample.n, sample.clusters)


def difference(
    ours: Vectors,
    theirs: Vectors,
    clusters: Sequence[Hashable],
    aggregate: Aggregate = mean,
    bounds: Bounds | None = None,
) -> Difference:
    """Compute the aggregate of ``ours`` minus the aggregate of ``theirs`` on the same instances, with a p-value."""
    first, second = _columns(ours), _columns(theirs)
    numbers = _cluster_numbers(clusters)
    if aggregate is mean:
        low, high = bounds or _bounds_of_shares(first, second) or (None, None)
        between = None if low is None or high is None else (low - high, high - low)
        sample = _sample(first - second, numbers, mean, between)
    else:
        moving = int((_cluster_sums(first, numbers) != _cluster_sums(second, numbers)).any(axis=1).sum())
        both, minus = np.concatenate([first, second], axis=1), _difference_of(aggregate, first.shape[1])
        sample = _sample(both, numbers, minus, None, moving)
    return Difference(sample.value, *sample.interval(), sample.n, sample.clusters, sample.p_value())


def corrected(p_values: Sequence[float]) -> list[float]:
    """Correct p-values by Holm's procedure: each times the number of p-values at least as large; NaN stays."""
    adjusted = np.array(p_values, dtype=float)
    known = np.flatnonzero(~np.isnan(adjusted))
    order = known[np.argsort(adjusted[known], kind="stable")]
    multiplied = np.minimum(1.0, adjusted[order] * np.arange(len(order), 0, -1))
    adjusted[order] = np.maximum.accumulate(multiplied)
    return adjusted.tolist()
