"""Confidence intervals of aggregates over prompts, and tests of whether two methods differ.

Every instance has a vector of numbers, and an aggregate makes one number of the means of these vectors: of one number
it is the mean itself; of a method's value and that of random scores, the logarithm of their ratio. Instances of one
cluster (made from one template, say) are not independent, so everything here resamples whole clusters.

An interval is the wider, at each end, of two: Student's t over clusters, and the cluster bootstrap of the studentised
statistic (bootstrap-t), which follows the skewness that the data show. Where values are bounded, as those of a share
are between 0 and 1, no end lies beyond Gaffke's bound, which holds for every distribution within these bounds; of 0/1
values that are clusters of one, it is the exact (Clopper-Pearson) bound. Without bounds, an end that the data say
nothing about is infinite: where all clusters agree, or there are fewer than four.

The p-value of a difference inverts the same construction: p <= 0.05 exactly where the 95 % interval leaves 0 out.
``benchmarks/coverage.py`` measures the coverage, and with it the size of the test.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import inf, isfinite, isnan, nan, sqrt
from typing import Literal, TypeAlias

import numpy as np
from jaxtyping import Bool, Float, Int, UInt
from scipy.stats import norm, t

Vectors: TypeAlias = Sequence[float] | Sequence[Sequence[float]] | Float[np.ndarray, "n k"]
Aggregate: TypeAlias = Callable[[Float[np.ndarray, "draws k"]], Float[np.ndarray, "draws"]]
Bounds: TypeAlias = tuple[float | int | None, float | int | None]
Unit: TypeAlias = Literal["templates", "instances"]

DRAWS = 10_000
CONFIDENCE = 0.95
STEP = 1e-7  # of a mean, relative, to differentiate an aggregate
ROUNDING = 1e-12  # variances this small, relative to what they are compared with, are 0


@dataclass(frozen=True)
class Estimate:
    """An aggregate of ``n`` instances with its 95 % interval, for which so many ``clusters`` were resampled.

    ``unit`` says what they were: templates, or instances where there is but one template, or none has two instances.
    An end is infinite where the data give no bound, and NaN where there is but one instance.
    """

    value: float
    low: float
    high: float
    n: int
    clusters: int
    unit: Unit


@dataclass(frozen=True)
class Difference(Estimate):
    """Of two methods on the same instances.

    ``p`` is two-sided, and at most 0.05 exactly where the interval leaves 0 out; ``p_error`` is its Monte Carlo
    standard error, which more draws make smaller.
    """

    p: float
    p_error: float = 0.0


def mean(means: Float[np.ndarray, "draws 1"]) -> Float[np.ndarray, "draws"]:
    return means[:, 0]


def log_ratio(means: Float[np.ndarray, "draws 2"]) -> Float[np.ndarray, "draws"]:
    """``ln(own / random)``: -inf where own is 0, inf where random is, NaN where both are."""
    if (means < 0).any():
        raise ValueError(f"the logarithm of a ratio needs means of at least 0, and one is {means.min():.4g}")
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(means[:, 0]) - np.log(means[:, 1])


AGGREGATES: Mapping[str, tuple[int, Aggregate]] = {"mean": (1, mean), "log_ratio": (2, log_ratio)}
"""Each with how many numbers it needs of an instance."""


def estimate(
    values: Vectors,
    clusters: Sequence[Hashable],
    aggregate: Aggregate = mean,
    seed: int = 0,
    bounds: Bounds | None = None,
    smooth: bool = True,
) -> Estimate:
    """The aggregate over instances that each have a value, with its interval; NaN where nothing can be said.

    ``bounds`` are the least and the greatest value that an instance can have (None for an end without one); without
    them, values that are all 0 or 1 are taken for hits and misses, which lie between 0 and 1. They serve the mean
    alone. An aggregate that is not ``smooth`` has no standard error, and gets percentiles of the bootstrap.
    """
    vectors, owners = _checked(values, clusters), _owners(clusters)
    given = (bounds or _bounds_of_shares(vectors)) if aggregate is mean else None
    sample = _Sample.of(vectors, owners, aggregate, given, seed)
    ends = sample.interval() if smooth else sample.percentiles()
    return Estimate(sample.value, *ends, len(vectors), len(sample.sizes), _unit(owners))


def difference(
    ours: Vectors,
    theirs: Vectors,
    clusters: Sequence[Hashable],
    aggregate: Aggregate = mean,
    seed: int = 0,
    bounds: Bounds | None = None,
    draws: int = DRAWS,
) -> Difference:
    """The aggregate of ``ours`` less that of ``theirs``, which are of the same instances in the same order."""
    sample, n, unit = _paired(ours, theirs, clusters, aggregate, seed, bounds, draws)
    return Difference(sample.value, *sample.interval(), n, len(sample.sizes), unit, *sample.p_with_error())


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
    return _paired(ours, theirs, clusters, aggregate, seed, bounds, draws)[0].p()


def least_p(clusters: int) -> float:
    """No p-value can be below this: every draw of one cluster alone counts as going as far."""
    return min(1.0, 2.0 * float(clusters) ** -clusters) if clusters > 1 else 1.0


def corrected(p_values: Sequence[float]) -> list[float]:
    """By Holm's procedure: each times how many are at least as large, and none below one before it; NaN stays."""
    order = sorted((at for at, p in enumerate(p_values) if not np.isnan(p)), key=lambda at: p_values[at])
    found, reached = list(p_values), 0.0
    for rank, at in enumerate(order):
        reached = max(reached, min(1.0, p_values[at] * (len(order) - rank)))
        found[at] = reached
    return found


@dataclass(frozen=True, eq=False)
class _Sample:
    """Clusters by the sums of their instances' vectors and by their sizes, and what is computed of their means.

    ``bounds`` are of the first number of an instance, and given only where the aggregate is its mean. ``apart``: of
    how many clusters two methods have different sums.
    """

    sums: Float[np.ndarray, "clusters k"]
    sizes: Float[np.ndarray, "clusters"]
    aggregate: Aggregate
    bounds: tuple[float, float]
    seed: int
    draws: int = DRAWS
    apart: int = 0

    @classmethod
    def of(
        cls,
        vectors: Float[np.ndarray, "n k"],
        owners: Int[np.ndarray, "n"],
        aggregate: Aggregate,
        bounds: Bounds | None,
        seed: int,
        draws: int = DRAWS,
        apart: int = 0,
    ) -> "_Sample":
        low, high = (None if end is None else float(end) for end in bounds or (None, None))
        # Values a rounding error beyond their bounds move these.
        lowest = min(-inf if low is None else low, vectors[:, 0].min(initial=inf))
        highest = max(inf if high is None else high, vectors[:, 0].max(initial=-inf))
        sizes = np.bincount(owners).astype(float)
        return cls(_sums(vectors, owners), sizes, aggregate, (lowest, highest), seed, draws, apart)

    @cached_property
    def means(self) -> Float[np.ndarray, "k"]:
        return self.sums.sum(axis=0) / self.sizes.sum()

    @cached_property
    def value(self) -> float:
        return float(self.aggregate(self.means[None])[0]) if len(self.sizes) else nan

    def interval(self) -> tuple[float, float]:
        if len(self.sizes) < 2 or isnan(self.value):
            return nan, nan
        if not isfinite(self.value):
            return (self.value, self.value) if self.p() <= 1 - CONFIDENCE else (-inf, inf)
        half = float(t.ppf((1 + CONFIDENCE) / 2, len(self.sizes) - 1)) * self.error
        at = int((1 - CONFIDENCE) / 2 * self._trust * (self.draws + 1)) - 1
        low = min(self.value - half, self._beyond(self._studentised[1], at, -1))
        high = max(self.value + half, self._beyond(-self._studentised[0], at, 1))
        return max(low, self._gaffke(0)), min(high, self._gaffke(1))

    def p(self) -> float:
        return self.p_with_error()[0]

    def p_with_error(self) -> tuple[float, float]:
        """Twice the smallest level at which a one-sided bound leaves 0 out, and its Monte Carlo standard error."""
        if isnan(self.value):
            return nan, 0.0
        if self.value == 0 or len(self.sizes) < 2:
            return 1.0, 0.0
        if not isfinite(self.value):
            return min(1.0, 2.0 ** (1 - self.apart)), 0.0
        by_t = 0.0 if self.error == 0 else 2 * float(t.sf(abs(self.value) / self.error, len(self.sizes) - 1))
        return min(max((by_t, 0.0), self._bootstrap_p()), self._gaffke_p(), (1.0, 0.0))

    def percentiles(self) -> tuple[float, float]:
        """Percentiles of the cluster bootstrap, further out the fewer clusters there are.

        Plain ones are too narrow for few clusters, as a normal interval is in place of one of Student's t; this makes
        up for it (Hesterberg 2015, "What teachers should know about the bootstrap", section 3.2).
        """
        count = len(self.sizes)
        if count < 2:
            return nan, nan
        parts = np.concatenate([self._residuals, self.sizes[:, None]], axis=1)
        with np.errstate(all="ignore"):
            drawn = self.aggregate(self._means_of(self._drawn(parts)))
        level = norm.cdf(sqrt(count / (count - 1)) * t.ppf((1 - CONFIDENCE) / 2, count - 1))
        at = int(level * len(drawn))
        low, high = _either_way(drawn)
        return float(np.sort(low)[at]), float(np.sort(high)[-1 - at])

    @cached_property
    def _residuals(self) -> Float[np.ndarray, "clusters k"]:
        return self.sums - self.means * self.sizes[:, None]

    @cached_property
    def _influence(self) -> Float[np.ndarray, "clusters"]:
        """How far each cluster moves the aggregate, by its derivative."""
        return self._residuals @ _gradient(self.aggregate, self.means[None])[0] / self.sizes.sum()

    @cached_property
    def error(self) -> float:
        """The standard error over clusters; 0 where they differ by rounding alone."""
        count, slopes = len(self.sizes), np.abs(_gradient(self.aggregate, self.means[None])[0])
        squares = float((self._influence**2).sum())
        size = float(np.abs(self.sums).max(axis=0) @ slopes) / self.sizes.sum()
        return sqrt(count / (count - 1) * squares) if squares > (ROUNDING * size) ** 2 else 0.0

    @cached_property
    def _trust(self) -> float:
        """From 1 where clusters lie symmetrically to 0 where one makes up all of the variance.

        The skewness of a few clusters understates that of what they are drawn from, the more so the more skewed that
        is; reading quantiles this much further out makes up for it.
        """
        squares = float((self._influence**2).sum())
        return (1 - abs(float((self._influence**3).sum())) / squares**1.5) ** 2 if self.error else 1.0

    @cached_property
    def _resampled(self) -> tuple[Float[np.ndarray, "draws"], Float[np.ndarray, "draws"]]:
        """The aggregate of each draw, and its variance over the clusters that were drawn."""
        count, (_, k) = len(self.sizes), self.sums.shape
        parts = np.concatenate([self._residuals, self.sizes[:, None]], axis=1)
        at, to = np.triu_indices(k + 1)
        parts = np.concatenate([parts, parts[:, at] * parts[:, to]], axis=1)
        drawn = self._drawn(parts)
        total, moved = drawn[:, k], drawn[:, :k] / drawn[:, [k]]
        means = self._means_of(drawn)
        with np.errstate(all="ignore"):
            slopes = _gradient(self.aggregate, means)
            sides = np.concatenate([slopes, -(slopes * moved).sum(axis=1, keepdims=True)], axis=1)
            squares = (drawn[:, k + 1 :] * sides[:, at] * sides[:, to] * np.where(at == to, 1, 2)).sum(axis=1)
            return self.aggregate(means), count / (count - 1) * squares / total**2

    def _drawn(self, parts: Float[np.ndarray, "clusters parts"]) -> Float[np.ndarray, "draws parts"]:
        """Sums over the clusters of each draw."""
        turns = range(self.draws // DRAWS)
        return np.concatenate([_draws(len(self.sizes), self.seed, turn) @ parts for turn in turns])

    def _means_of(self, drawn: Float[np.ndarray, "draws parts"]) -> Float[np.ndarray, "draws k"]:
        """The means of each draw, from its summed residuals and then its summed sizes."""
        k = self.sums.shape[1]
        # Sums of values at least 0 are so too, however they are rounded.
        floor = np.where((self.sums >= 0).all(axis=0), 0.0, -inf)
        return np.maximum(self.means + drawn[:, :k] / drawn[:, [k]], floor)

    @cached_property
    def _studentised(self) -> tuple[Float[np.ndarray, "draws"], Float[np.ndarray, "draws"]]:
        """How many of its standard errors each draw lies above the value; where it cannot be known, either way."""
        drawn, variance = self._resampled
        away = drawn - self.value
        still = ~(np.abs(away) > ROUNDING * max(abs(self.value), self.error))
        with np.errstate(all="ignore"):
            known = np.where(variance > ROUNDING * self.error**2, away / np.sqrt(variance), np.sign(away) * inf)
        known = np.where(np.isinf(drawn), drawn, np.where(still & ~np.isnan(drawn), 0.0, known))
        return _either_way(known)

    def _beyond(self, studentised: Float[np.ndarray, "draws"], at: int, side: int) -> float:
        """The end that the draw in this place from the greatest gives; infinite beyond them all."""
        if at < 0 or not self.error:
            return side * inf
        return self.value + side * self.error * float(np.partition(studentised, -1 - at)[-1 - at])

    def _bootstrap_p(self) -> tuple[float, float]:
        if not self.error:
            return 1.0, 0.0
        seen, (low, high) = self.value / self.error, self._studentised
        passed = (high >= seen) if seen > 0 else (low <= seen)
        return self._monte_carlo(passed, 2 / max(self._trust, ROUNDING))

    def _monte_carlo(self, passed: Bool[np.ndarray, "draws"], times: float) -> tuple[float, float]:
        share = (int(passed.sum()) + 1) / (self.draws + 1)
        return times * share, times * sqrt(share * (1 - share) / self.draws)

    def _gaffke(self, side: int) -> float:
        """Gaffke's bound of a mean: its quantile under random weights of the clusters and of one more, at the bound."""
        if not isfinite(self.bounds[side]):
            return self.bounds[side]
        level = (1 - CONFIDENCE) / 2
        at = int(level * (self.draws + 1)) - 1
        drawn = np.sort(self._weighted(side))
        return float(drawn[-1 - at] if side else drawn[at])

    def _gaffke_p(self) -> tuple[float, float]:
        side = 0 if self.value > 0 else 1
        if not isfinite(self.bounds[side]):
            return 1.0, 0.0
        drawn = self._weighted(side)
        return self._monte_carlo(drawn >= 0 if side else drawn <= 0, 2.0)

    def _weighted(self, side: int) -> Float[np.ndarray, "draws"]:
        sums = np.append(self.sums[:, 0], self.bounds[side] * self.sizes.mean())
        parts = np.stack([sums, np.append(self.sizes, self.sizes.mean())], axis=1)
        turns = range(self.draws // DRAWS)
        drawn = np.concatenate([_weights(len(sums), self.seed, turn) @ parts for turn in turns])
        return drawn[:, 0] / drawn[:, 1]


def _paired(
    ours: Vectors,
    theirs: Vectors,
    clusters: Sequence[Hashable],
    aggregate: Aggregate,
    seed: int,
    bounds: Bounds | None,
    draws: int,
) -> tuple[_Sample, int, Unit]:
    own, other, owners = _checked(ours, clusters), _checked(theirs, clusters), _owners(clusters)
    if aggregate is mean:
        between = _bounds_of_differences(bounds or _bounds_of_shares(own, other))
        sample = _Sample.of(own - other, owners, mean, between, seed, draws)
    else:
        moving = int((_sums(own, owners) != _sums(other, owners)).any(axis=1).sum())
        both, less = np.concatenate([own, other], axis=1), _less(aggregate, own.shape[1])
        sample = _Sample.of(both, owners, less, None, seed, draws, moving)
    return sample, len(own), _unit(owners)


def _less(aggregate: Aggregate, k: int) -> Aggregate:
    """The aggregate of the first ``k`` numbers less that of the others."""

    def less(means: Float[np.ndarray, "draws both"]) -> Float[np.ndarray, "draws"]:
        with np.errstate(invalid="ignore"):
            return aggregate(means[:, :k]) - aggregate(means[:, k:])

    return less


def _bounds_of_differences(bounds: Bounds | None) -> Bounds:
    low, high = bounds or (None, None)
    return (None, None) if low is None or high is None else (low - high, high - low)


def _gradient(aggregate: Aggregate, means: Float[np.ndarray, "draws k"]) -> Float[np.ndarray, "draws k"]:
    if aggregate is mean:
        return np.ones_like(means)
    slopes, begun = np.empty_like(means), aggregate(means)
    with np.errstate(all="ignore"):
        for column in range(means.shape[1]):
            steps = np.where(means[:, column] == 0, STEP, STEP * np.abs(means[:, column]))
            moved = means.copy()
            moved[:, column] += steps
            slopes[:, column] = (aggregate(moved) - begun) / (moved[:, column] - means[:, column])
    return slopes


def _either_way(drawn: Float[np.ndarray, "draws"]) -> tuple[Float[np.ndarray, "draws"], Float[np.ndarray, "draws"]]:
    """Draws without a value might be anything: as low, and as high, as can be."""
    unknown = np.isnan(drawn)
    return np.where(unknown, -inf, drawn), np.where(unknown, inf, drawn)


@lru_cache(maxsize=40)
def _drawn(clusters: int, seed: int, turn: int) -> UInt[np.ndarray, "draws clusters"]:
    even = np.full(clusters, 1 / clusters)
    return _fixed(np.random.default_rng([seed, turn]).multinomial(clusters, even, DRAWS).astype(np.uint16))


def _draws(clusters: int, seed: int, turn: int) -> Float[np.ndarray, "draws clusters"]:
    """How often each cluster is drawn."""
    return _drawn(clusters, seed, turn).astype(float)


@lru_cache(maxsize=4)
def _weights(clusters: int, seed: int, turn: int) -> Float[np.ndarray, "draws clusters"]:
    """Random weights of clusters, which if divided by their sum are uniform over all there can be."""
    return _fixed(np.random.default_rng([seed, turn]).exponential(size=(DRAWS, clusters)))


def _fixed(shared: np.ndarray) -> np.ndarray:
    shared.flags.writeable = False
    return shared


def _checked(values: Vectors, clusters: Sequence[Hashable]) -> Float[np.ndarray, "n k"]:
    vectors = np.asarray(values, dtype=float)
    if len(vectors) != len(clusters):
        raise ValueError(f"{len(vectors)} values are of {len(clusters)} instances: give one for each")
    if not np.isfinite(vectors).all():
        raise ValueError("a value is not finite: leave out the instances that have none")
    return vectors if vectors.ndim == 2 else vectors[:, None]


def _bounds_of_shares(*values: Float[np.ndarray, "n k"]) -> Bounds | None:
    return (0.0, 1.0) if all(np.isin(some, (0.0, 1.0)).all() for some in values) else None


def _owners(clusters: Sequence[Hashable]) -> Int[np.ndarray, "n"]:
    """The number of each one's cluster; a single cluster can tell nothing, and gives way to its instances."""
    numbers: dict[Hashable, int] = {}
    owners = [numbers.setdefault(cluster, len(numbers)) for cluster in clusters]
    return np.arange(len(owners)) if len(numbers) < 2 else np.array(owners)


def _unit(owners: Int[np.ndarray, "n"]) -> Unit:
    return "instances" if len(set(owners.tolist())) == len(owners) else "templates"


def _sums(vectors: Float[np.ndarray, "n k"], owners: Int[np.ndarray, "n"]) -> Float[np.ndarray, "clusters k"]:
    return np.stack([np.bincount(owners, column) for column in vectors.T], axis=1).astype(float)  # of none, ints
