"""Aggregates: what one number is made of the means of many prompts' values."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import inf, isfinite, isnan, nan, sqrt
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Bool, Float, Int, UInt
from scipy.stats import norm, t

Vectors: TypeAlias = Sequence[float] | Sequence[Sequence[float]] | Float[np.ndarray, "n k"]
Aggregate: TypeAlias = Callable[[Float[np.ndarray, "draws k"]], Float[np.ndarray, "draws"]]

STEP = 1e-7  # of a mean, relative, to differentiate an aggregate


class AggregateKind(NamedTuple):
    """``terms``: how many numbers it needs of an instance."""

    terms: int
    aggregate: Aggregate


def mean(means: Float[np.ndarray, "draws 1"]) -> Float[np.ndarray, "draws"]:
    return means[:, 0]


def log_ratio(means: Float[np.ndarray, "draws 2"]) -> Float[np.ndarray, "draws"]:
    """``ln(own / random)``: -inf where own is 0, inf where random is, NaN where both are."""
    if (means < 0).any():
        raise ValueError(f"the logarithm of a ratio needs means of at least 0, and one is {means.min():.4g}")
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(means[:, 0]) - np.log(means[:, 1])


AGGREGATES: Mapping[str, AggregateKind] = {"mean": AggregateKind(1, mean), "log_ratio": AggregateKind(2, log_ratio)}


def difference_of(aggregate: Aggregate, k: int) -> Aggregate:
    """The aggregate of the first ``k`` numbers minus that of the others."""

    def minus(means: Float[np.ndarray, "draws both"]) -> Float[np.ndarray, "draws"]:
        with np.errstate(invalid="ignore"):
            return aggregate(means[:, :k]) - aggregate(means[:, k:])

    return minus


def gradient(aggregate: Aggregate, means: Float[np.ndarray, "draws k"]) -> Float[np.ndarray, "draws k"]:
    """The derivatives of an aggregate by each mean, numerically."""
    if aggregate is mean:
        return np.ones_like(means)
    slopes, start = np.empty_like(means), aggregate(means)
    with np.errstate(all="ignore"):
        for column in range(means.shape[1]):
            steps = np.where(means[:, column] == 0, STEP, STEP * np.abs(means[:, column]))
            moved = means.copy()
            moved[:, column] += steps
            slopes[:, column] = (aggregate(moved) - start) / (moved[:, column] - means[:, column])
    return slopes


# -------------------------------------------------------------------------------------------------------- random draws
# Random draws of clusters, the same for all estimates of one seed, and the probabilities that they estimate.


DRAWS = 10_000
CONFIDENCE = 0.95


class MonteCarlo(NamedTuple):
    """A probability, and the standard error that the number of draws leaves it."""

    p: float
    error: float

    @classmethod
    def of(cls, passed: Bool[np.ndarray, "draws"], times: float) -> "MonteCarlo":
        """``times`` the share of draws that passed, of which one more counts as passed."""
        draws = len(passed)
        share = (int(passed.sum()) + 1) / (draws + 1)
        return cls(times * share, times * sqrt(share * (1 - share) / draws))


@lru_cache(maxsize=40)
def _counts(clusters: int, seed: int, turn: int) -> UInt[np.ndarray, "draws clusters"]:
    even = np.full(clusters, 1 / clusters)
    return _read_only(np.random.default_rng([seed, turn]).multinomial(clusters, even, DRAWS).astype(np.uint16))


def cluster_counts(clusters: int, seed: int, turn: int) -> Float[np.ndarray, "draws clusters"]:
    """How often each cluster is drawn."""
    return _counts(clusters, seed, turn).astype(float)


@lru_cache(maxsize=4)
def cluster_weights(clusters: int, seed: int, turn: int) -> Float[np.ndarray, "draws clusters"]:
    """Random weights of clusters: divided by their sum they are uniform over all possible weights."""
    return _read_only(np.random.default_rng([seed, turn]).exponential(size=(DRAWS, clusters)))


def _read_only(shared: np.ndarray) -> np.ndarray:
    shared.flags.writeable = False
    return shared


# -------------------------------------------------------------------------------------------------------- gaffke bound
# Gaffke's bound of a mean of bounded values, which holds for every distribution within the bounds.
#
# It is a quantile of the mean under random weights of the clusters and of one more cluster, whose values are at the
# bound. For 0/1 values in clusters of one it is the exact (Clopper-Pearson) bound.


@dataclass(frozen=True, eq=False)
class GaffkeBound:
    """``sums`` are those of the clusters' values; ``bounds`` the least and the greatest value, infinite without one."""

    sums: Float[np.ndarray, "clusters"]
    sizes: Float[np.ndarray, "clusters"]
    bounds: tuple[float, float]
    seed: int
    draws: int

    def end(self, side: int) -> float:
        """The lower (0) or the upper (1) end of the interval."""
        if not isfinite(self.bounds[side]):
            return self.bounds[side]
        level = (1 - CONFIDENCE) / 2
        place = int(level * (self.draws + 1)) - 1
        weighted = np.sort(self._weighted_means(side))
        return float(weighted[-1 - place] if side else weighted[place])

    def p_value(self, value: float) -> MonteCarlo:
        """Twice the level at which the bound towards 0 reaches it."""
        side = 0 if value > 0 else 1
        if not isfinite(self.bounds[side]):
            return MonteCarlo(1.0, 0.0)
        weighted = self._weighted_means(side)
        return MonteCarlo.of(weighted >= 0 if side else weighted <= 0, 2.0)

    def _weighted_means(self, side: int) -> Float[np.ndarray, "draws"]:
        sums = np.append(self.sums, self.bounds[side] * self.sizes.mean())
        parts = np.stack([sums, np.append(self.sizes, self.sizes.mean())], axis=1)
        turns = range(self.draws // DRAWS)
        weighted = np.concatenate([cluster_weights(len(sums), self.seed, turn) @ parts for turn in turns])
        return weighted[:, 0] / weighted[:, 1]


# --------------------------------------------------------------------------------------------------- cluster bootstrap
# The cluster bootstrap by template: draws of whole clusters, and what they say about an aggregate of means.
#
# Instances of one cluster (made from one template, say) are not independent, so clusters are drawn, not instances.


ROUNDING = 1e-12  # variances this small, relative to what they are compared with, are 0


class LowHigh(NamedTuple):
    """Two readings of the same draws, that differ where a draw has no value: as low, and as high, as can be."""

    low: Float[np.ndarray, "draws"]
    high: Float[np.ndarray, "draws"]


class Resampled(NamedTuple):
    """The aggregate of each draw, and its variance over the clusters that were drawn."""

    aggregates: Float[np.ndarray, "draws"]
    variances: Float[np.ndarray, "draws"]


@dataclass(frozen=True, eq=False)
class ClusterBootstrap:
    """Clusters by the sums of their instances' vectors and by their sizes, and draws of them."""

    sums: Float[np.ndarray, "clusters k"]
    sizes: Float[np.ndarray, "clusters"]
    aggregate: Aggregate
    seed: int
    draws: int = DRAWS

    @cached_property
    def means(self) -> Float[np.ndarray, "k"]:
        return self.sums.sum(axis=0) / self.sizes.sum()

    @cached_property
    def value(self) -> float:
        return float(self.aggregate(self.means[None])[0]) if len(self.sizes) else nan

    @cached_property
    def error(self) -> float:
        """The standard error over clusters; 0 where they differ by rounding alone."""
        count, slopes = len(self.sizes), np.abs(gradient(self.aggregate, self.means[None])[0])
        squares = float((self._influence**2).sum())
        size = float(np.abs(self.sums).max(axis=0) @ slopes) / self.sizes.sum()
        return sqrt(count / (count - 1) * squares) if squares > (ROUNDING * size) ** 2 else 0.0

    def student_ends(self) -> tuple[float, float]:
        """Student's t over clusters."""
        half = float(t.ppf((1 + CONFIDENCE) / 2, len(self.sizes) - 1)) * self.error
        return self.value - half, self.value + half

    def student_p(self) -> float:
        return 0.0 if self.error == 0 else 2 * float(t.sf(abs(self.value) / self.error, len(self.sizes) - 1))

    def ends(self) -> tuple[float, float]:
        """The interval of the studentised statistic (bootstrap-t); infinite where the draws give no bound."""
        place = int((1 - CONFIDENCE) / 2 * self._trust * (self.draws + 1)) - 1
        low, high = self._studentised
        return self._quantile_end(high, place, -1), self._quantile_end(-low, place, 1)

    def p_value(self) -> MonteCarlo:
        if not self.error:
            return MonteCarlo(1.0, 0.0)
        studentised, (low, high) = self.value / self.error, self._studentised
        passed = (high >= studentised) if studentised > 0 else (low <= studentised)
        return MonteCarlo.of(passed, 2 / max(self._trust, ROUNDING))

    def percentiles(self) -> tuple[float, float]:
        """Percentiles of the draws, further out the fewer clusters there are.

        Plain ones are too narrow for few clusters, as a normal interval is in place of one of Student's t; this makes
        up for it (Hesterberg 2015, "What teachers should know about the bootstrap", section 3.2).
        """
        count = len(self.sizes)
        if count < 2:
            return nan, nan
        parts = np.concatenate([self._residuals, self.sizes[:, None]], axis=1)
        with np.errstate(all="ignore"):
            aggregates = self.aggregate(self._means_of(self._drawn(parts)))
        level = norm.cdf(sqrt(count / (count - 1)) * t.ppf((1 - CONFIDENCE) / 2, count - 1))
        place = int(level * len(aggregates))
        low, high = low_and_high(aggregates)
        return float(np.sort(low)[place]), float(np.sort(high)[-1 - place])

    @cached_property
    def _residuals(self) -> Float[np.ndarray, "clusters k"]:
        return self.sums - self.means * self.sizes[:, None]

    @cached_property
    def _influence(self) -> Float[np.ndarray, "clusters"]:
        """How far each cluster moves the aggregate, by its derivative."""
        return self._residuals @ gradient(self.aggregate, self.means[None])[0] / self.sizes.sum()

    @cached_property
    def _trust(self) -> float:
        """From 1 where clusters lie symmetrically to 0 where one makes up all of the variance.

        The skewness of a few clusters understates that of the distribution they are drawn from, the more so the more
        skewed it is; quantiles are read this much further out to make up for it.
        """
        squares = float((self._influence**2).sum())
        return (1 - abs(float((self._influence**3).sum())) / squares**1.5) ** 2 if self.error else 1.0

    @cached_property
    def _resampled(self) -> Resampled:
        count, (_, k) = len(self.sizes), self.sums.shape
        parts = np.concatenate([self._residuals, self.sizes[:, None]], axis=1)
        rows, columns = np.triu_indices(k + 1)
        drawn = self._drawn(np.concatenate([parts, parts[:, rows] * parts[:, columns]], axis=1))
        total, moved = drawn[:, k], drawn[:, :k] / drawn[:, [k]]
        means = self._means_of(drawn)
        with np.errstate(all="ignore"):
            slopes = gradient(self.aggregate, means)
            sides = np.concatenate([slopes, -(slopes * moved).sum(axis=1, keepdims=True)], axis=1)
            products = drawn[:, k + 1 :] * sides[:, rows] * sides[:, columns] * np.where(rows == columns, 1, 2)
            return Resampled(self.aggregate(means), count / (count - 1) * products.sum(axis=1) / total**2)

    def _drawn(self, parts: Float[np.ndarray, "clusters parts"]) -> Float[np.ndarray, "draws parts"]:
        """Sums over the clusters of each draw."""
        turns = range(self.draws // DRAWS)
        return np.concatenate([cluster_counts(len(self.sizes), self.seed, turn) @ parts for turn in turns])

    def _means_of(self, drawn: Float[np.ndarray, "draws parts"]) -> Float[np.ndarray, "draws k"]:
        """The means of each draw, from its summed residuals and then its summed sizes."""
        k = self.sums.shape[1]
        # Sums of values at least 0 are so too, however they are rounded.
        floor = np.where((self.sums >= 0).all(axis=0), 0.0, -inf)
        return np.maximum(self.means + drawn[:, :k] / drawn[:, [k]], floor)

    @cached_property
    def _studentised(self) -> LowHigh:
        """How many of its standard errors each draw lies above the value."""
        aggregates, variances = self._resampled
        away = aggregates - self.value
        still = ~(np.abs(away) > ROUNDING * max(abs(self.value), self.error))
        with np.errstate(all="ignore"):
            ratios = np.where(variances > ROUNDING * self.error**2, away / np.sqrt(variances), np.sign(away) * inf)
        ratios = np.where(np.isinf(aggregates), aggregates, np.where(still & ~np.isnan(aggregates), 0.0, ratios))
        return low_and_high(ratios)

    def _quantile_end(self, studentised: Float[np.ndarray, "draws"], place: int, side: int) -> float:
        """The end that the draw at this place from the greatest gives; infinite beyond them all."""
        if place < 0 or not self.error:
            return side * inf
        return self.value + side * self.error * float(np.partition(studentised, -1 - place)[-1 - place])


def low_and_high(drawn: Float[np.ndarray, "draws"]) -> LowHigh:
    unknown = np.isnan(drawn)
    return LowHigh(np.where(unknown, -inf, drawn), np.where(unknown, inf, drawn))


def checked_vectors(values: Vectors, clusters: Sequence[Hashable]) -> Float[np.ndarray, "n k"]:
    vectors = np.asarray(values, dtype=float)
    if len(vectors) != len(clusters):
        raise ValueError(f"{len(vectors)} values are of {len(clusters)} instances: give one for each")
    if not np.isfinite(vectors).all():
        raise ValueError("a value is not finite: leave out the instances that have none")
    return vectors if vectors.ndim == 2 else vectors[:, None]


def cluster_numbers(clusters: Sequence[Hashable]) -> Int[np.ndarray, "n"]:
    """The number of each instance's cluster; a single cluster carries no information, so its instances replace it."""
    numbers: dict[Hashable, int] = {}
    owners = [numbers.setdefault(cluster, len(numbers)) for cluster in clusters]
    return np.arange(len(owners)) if len(numbers) < 2 else np.array(owners)


def cluster_sums(vectors: Float[np.ndarray, "n k"], owners: Int[np.ndarray, "n"]) -> Float[np.ndarray, "clusters k"]:
    return np.stack([np.bincount(owners, column) for column in vectors.T], axis=1).astype(float)  # of none, ints


# ----------------------------------------------------------------------------------------------------------- intervals
# 95 % confidence intervals of aggregates over prompts, by the cluster bootstrap by template.
#
# Every instance has a vector of numbers, and an aggregate makes one number of the means of these vectors: of one number
# the mean itself; of a method's value and that of random scores, the logarithm of their ratio.
#
# An interval is the wider, at each end, of two: Student's t over clusters, and the cluster bootstrap of the studentised
# statistic (bootstrap-t), which follows the skewness of the data. Where values are bounded, as a share is by 0 and 1,
# no
# end lies beyond Gaffke's bound. Without bounds, an end about which the data say nothing is infinite: where all
# clusters
# agree, or there are fewer than four. ``benchmarks/coverage.py`` measures the coverage.


Bounds: TypeAlias = tuple[float | int | None, float | int | None]
Unit: TypeAlias = Literal["templates", "instances"]


@dataclass(frozen=True)
class Estimate:
    """An aggregate of ``n`` instances with its 95 % interval, for which this many ``clusters`` were resampled.

    ``unit`` says what they are: templates, or instances where there is only one template, or none has two instances.
    An end is infinite where the data give no bound, and NaN where there is only one instance.
    """

    value: float
    low: float
    high: float
    n: int
    clusters: int
    unit: Unit


@dataclass(frozen=True, eq=False)
class Sample:
    """An aggregate of clusters, with its interval and the p-value of its difference from 0.

    ``bounds`` are of the first number of an instance, and given only where the aggregate is its mean. ``moving``: of
    how many clusters two methods have different sums.
    """

    bootstrap: ClusterBootstrap
    gaffke: GaffkeBound
    moving: int = 0

    @classmethod
    def of(
        cls,
        vectors: Float[np.ndarray, "n k"],
        owners: Int[np.ndarray, "n"],
        aggregate: Aggregate,
        bounds: Bounds | None,
        seed: int,
        draws: int = DRAWS,
        moving: int = 0,
    ) -> "Sample":
        low, high = (None if end is None else float(end) for end in bounds or (None, None))
        # Values a rounding error beyond their bounds move these.
        lowest = min(-inf if low is None else low, vectors[:, 0].min(initial=inf))
        highest = max(inf if high is None else high, vectors[:, 0].max(initial=-inf))
        sums, sizes = cluster_sums(vectors, owners), np.bincount(owners).astype(float)
        gaffke = GaffkeBound(sums[:, 0], sizes, (lowest, highest), seed, draws)
        return cls(ClusterBootstrap(sums, sizes, aggregate, seed, draws), gaffke, moving)

    @property
    def value(self) -> float:
        return self.bootstrap.value

    @property
    def clusters(self) -> int:
        return len(self.bootstrap.sizes)

    def interval(self) -> tuple[float, float]:
        if self.clusters < 2 or isnan(self.value):
            return nan, nan
        if not isfinite(self.value):
            return (self.value, self.value) if self.p_value().p <= 1 - CONFIDENCE else (-inf, inf)
        (student_low, student_high), (low, high) = self.bootstrap.student_ends(), self.bootstrap.ends()
        low, high = min(student_low, low), max(student_high, high)
        return max(low, self.gaffke.end(0)), min(high, self.gaffke.end(1))

    def p_value(self) -> MonteCarlo:
        """Twice the smallest level at which a one-sided bound excludes 0."""
        if isnan(self.value):
            return MonteCarlo(nan, 0.0)
        if self.value == 0 or self.clusters < 2:
            return MonteCarlo(1.0, 0.0)
        if not isfinite(self.value):
            return MonteCarlo(min(1.0, 2.0 ** (1 - self.moving)), 0.0)
        by_student = MonteCarlo(self.bootstrap.student_p(), 0.0)
        unbounded = max(by_student, self.bootstrap.p_value())
        return min(unbounded, self.gaffke.p_value(self.value), MonteCarlo(1.0, 0.0))


def estimate(
    values: Vectors,
    clusters: Sequence[Hashable],
    aggregate: Aggregate = mean,
    seed: int = 0,
    bounds: Bounds | None = None,
    smooth: bool = True,
) -> Estimate:
    """The aggregate over instances that each have a value, with its interval; NaN where nothing can be said.

    ``bounds`` are the least and the greatest possible value of an instance (None for an end without one); without
    them, values that are all 0 or 1 are taken for hits and misses, which lie between 0 and 1. Bounds serve the mean
    alone. An aggregate that is not ``smooth`` has no standard error, and gets percentiles of the bootstrap.
    """
    vectors, owners = checked_vectors(values, clusters), cluster_numbers(clusters)
    given = (bounds or bounds_of_shares(vectors)) if aggregate is mean else None
    sample = Sample.of(vectors, owners, aggregate, given, seed)
    low, high = sample.interval() if smooth else sample.bootstrap.percentiles()
    return Estimate(sample.value, low, high, len(vectors), sample.clusters, unit_of(owners))


def bounds_of_shares(*values: Float[np.ndarray, "n k"]) -> Bounds | None:
    return (0.0, 1.0) if all(np.isin(column, (0.0, 1.0)).all() for column in values) else None


def unit_of(owners: Int[np.ndarray, "n"]) -> Unit:
    return "instances" if len(set(owners.tolist())) == len(owners) else "templates"


# ---------------------------------------------------------------------------------------------------- difference tests
# Tests of whether two methods differ on the same prompts.
#
# The p-value inverts the construction of the interval: p <= 0.05 exactly where the 95 % interval excludes 0.
# ``benchmarks/coverage.py`` measures how often equal methods are called different.


@dataclass(frozen=True)
class Difference(Estimate):
    """Of two methods on the same instances.

    ``p`` is two-sided, and at most 0.05 exactly where the interval excludes 0; ``p_error`` is its Monte Carlo standard
    error, which more draws reduce.
    """

    p: float
    p_error: float = 0.0


class Paired(NamedTuple):
    """The differences of two methods, over ``n`` instances."""

    sample: Sample
    n: int
    unit: Unit


def difference(
    ours: Vectors,
    theirs: Vectors,
    clusters: Sequence[Hashable],
    aggregate: Aggregate = mean,
    seed: int = 0,
    bounds: Bounds | None = None,
    draws: int = DRAWS,
) -> Difference:
    """The aggregate of ``ours`` minus that of ``theirs``, which are of the same instances in the same order."""
    sample, n, unit = _paired(ours, theirs, clusters, aggregate, seed, bounds, draws)
    return Difference(sample.value, *sample.interval(), n, sample.clusters, unit, *sample.p_value())


def chance(
    ours: Vectors,
    theirs: Vectors,
    clusters: Sequence[Hashable],
    aggregate: Aggregate = mean,
    seed: int = 0,
    bounds: Bounds | None = None,
    draws: int = DRAWS,
) -> float:
    """The p-value of :func:`difference` alone."""
    return _paired(ours, theirs, clusters, aggregate, seed, bounds, draws).sample.p_value().p


def least_p(clusters: int) -> float:
    """No p-value can be below this: a draw that repeats a single cluster always counts as extreme."""
    return min(1.0, 2.0 * float(clusters) ** -clusters) if clusters > 1 else 1.0


def corrected(p_values: Sequence[float]) -> list[float]:
    """Holm's procedure: each p times how many are at least as large, and none below a smaller p's; NaN stays."""
    order = sorted((place for place, p in enumerate(p_values) if not np.isnan(p)), key=lambda place: p_values[place])
    adjusted, largest = list(p_values), 0.0
    for rank, place in enumerate(order):
        largest = max(largest, min(1.0, p_values[place] * (len(order) - rank)))
        adjusted[place] = largest
    return adjusted


def _paired(
    ours: Vectors,
    theirs: Vectors,
    clusters: Sequence[Hashable],
    aggregate: Aggregate,
    seed: int,
    bounds: Bounds | None,
    draws: int,
) -> Paired:
    own, other, owners = checked_vectors(ours, clusters), checked_vectors(theirs, clusters), cluster_numbers(clusters)
    if aggregate is mean:
        between = _bounds_of_differences(bounds or bounds_of_shares(own, other))
        sample = Sample.of(own - other, owners, mean, between, seed, draws)
    else:
        moving = int((cluster_sums(own, owners) != cluster_sums(other, owners)).any(axis=1).sum())
        both, minus = np.concatenate([own, other], axis=1), difference_of(aggregate, own.shape[1])
        sample = Sample.of(both, owners, minus, None, seed, draws, moving)
    return Paired(sample, len(own), unit_of(owners))


def _bounds_of_differences(bounds: Bounds | None) -> Bounds:
    low, high = bounds or (None, None)
    return (None, None) if low is None or high is None else (low - high, high - low)
