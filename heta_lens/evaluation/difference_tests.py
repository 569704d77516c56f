"""Tests of whether two methods differ on the same prompts.

The p-value inverts the construction of the interval: p <= 0.05 exactly where the 95 % interval excludes 0.
``benchmarks/coverage.py`` measures how often equal methods are called different.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from heta_lens.evaluation.aggregates import Aggregate, Vectors, difference_of, mean
from heta_lens.evaluation.cluster_bootstrap import checked_vectors, cluster_numbers, cluster_sums
from heta_lens.evaluation.intervals import Bounds, Estimate, Sample, Unit, bounds_of_shares, unit_of
from heta_lens.evaluation.random_draws import DRAWS


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
