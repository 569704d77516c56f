"""The cluster bootstrap by template: draws of whole clusters, and what they say about an aggregate of means.

Instances of one cluster (made from one template, say) are not independent, so clusters are drawn, not instances.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf, nan, sqrt
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy.stats import norm, t

from heta_lens.evaluation.aggregates import Aggregate, Vectors, gradient
from heta_lens.evaluation.random_draws import CONFIDENCE, DRAWS, MonteCarlo, cluster_counts

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
