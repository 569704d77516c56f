"""95 % confidence intervals of aggregates over prompts, by the cluster bootstrap by template.

Every instance has a vector of numbers, and an aggregate makes one number of the means of these vectors: of one number
the mean itself; of a method's value and that of random scores, the logarithm of their ratio.

An interval is the wider, at each end, of two: Student's t over clusters, and the cluster bootstrap of the studentised
statistic (bootstrap-t), which follows the skewness of the data. Where values are bounded, as a share is by 0 and 1, no
end lies beyond Gaffke's bound. Without bounds, an end about which the data say nothing is infinite: where all clusters
agree, or there are fewer than four. ``benchmarks/coverage.py`` measures the coverage.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import inf, isfinite, isnan, nan
from typing import Literal, TypeAlias

import numpy as np
from jaxtyping import Float, Int

from heta_lens.evaluation.aggregates import Aggregate, Vectors, mean
from heta_lens.evaluation.cluster_bootstrap import ClusterBootstrap, checked_vectors, cluster_numbers, cluster_sums
from heta_lens.evaluation.gaffke_bound import GaffkeBound
from heta_lens.evaluation.random_draws import CONFIDENCE, DRAWS, MonteCarlo

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
