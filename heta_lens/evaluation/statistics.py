"""What may be said of a mean: its interval, and whether two methods differ by more than chance.

Every instance has a vector of numbers, and an aggregate makes one number of the means of these vectors: of one number
it is the mean itself; of a method's value and that of random scores, the logarithm of their ratio. Instances of one
cluster (made from one template, say) are not independent: whole clusters are drawn again, and whole clusters swapped.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite, nan, sqrt
from typing import Literal, TypeAlias

import numpy as np
from jaxtyping import Float, Int
from scipy.stats import norm, t

Vectors: TypeAlias = Sequence[float] | Sequence[Sequence[float]] | Float[np.ndarray, "n k"]
Aggregate: TypeAlias = Callable[[Float[np.ndarray, "draws k"]], Float[np.ndarray, "draws"]]
Unit: TypeAlias = Literal["templates", "instances"]

DRAWS = 10_000
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """An aggregate of ``n`` instances with its 95 % interval, for which so many ``clusters`` were drawn again.

    ``unit`` says what they were: templates, or instances where there is but one template, or none has two instances.
    """

    value: float
    low: float
    high: float
    n: int
    clusters: int
    unit: Unit


@dataclass(frozen=True)
class Difference(Estimate):
    """Of two methods on the same instances. ``p``: how often chance alone would differ as much, either way."""

    p: float


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


def estimate(values: Vectors, clusters: Sequence[Hashable], aggregate: Aggregate = mean, seed: int = 0) -> Estimate:
    """Over instances that each have a value; NaN where nothing can be said."""
    vectors, owners = _checked(values, clusters), _owners(clusters)
    sums, sizes = _sums(vectors, owners), np.bincount(owners)

    def statistic(drawn: Float[np.ndarray, "draws clusters"]) -> Float[np.ndarray, "draws"]:
        return aggregate(drawn @ sums / (drawn @ sizes)[:, None])

    return Estimate(*_with_interval(statistic, len(sizes), seed), len(vectors), len(sizes), _unit(owners))


def difference(
    ours: Vectors, theirs: Vectors, clusters: Sequence[Hashable], aggregate: Aggregate = mean, seed: int = 0
) -> Difference:
    """The aggregate of ``ours`` less that of ``theirs``, which are of the same instances in the same order."""
    own, other, owners = _checked(ours, clusters), _checked(theirs, clusters), _owners(clusters)
    own_sums, other_sums, sizes = _sums(own, owners), _sums(other, owners), np.bincount(owners)

    def statistic(drawn: Float[np.ndarray, "draws clusters"]) -> Float[np.ndarray, "draws"]:
        n = (drawn @ sizes)[:, None]
        with np.errstate(invalid="ignore"):
            return aggregate(drawn @ own_sums / n) - aggregate(drawn @ other_sums / n)

    told = _with_interval(statistic, len(sizes), seed)
    p = chance(ours, theirs, clusters, aggregate, seed)
    return Difference(*told, len(own), len(sizes), _unit(owners), p)


def chance(
    ours: Vectors, theirs: Vectors, clusters: Sequence[Hashable], aggregate: Aggregate = mean, seed: int = 0
) -> float:
    """How often the aggregates would differ as much if a coin told, for each cluster, which method is which."""
    own, other, owners = _checked(ours, clusters), _checked(theirs, clusters), _owners(clusters)
    return _swap_test(_sums(own, owners), _sums(other, owners), len(own), aggregate, seed)


def corrected(p_values: Sequence[float]) -> list[float]:
    """By Holm's procedure: each times how many are at least as large, and none below one before it; NaN stays."""
    order = sorted((at for at, p in enumerate(p_values) if not np.isnan(p)), key=lambda at: p_values[at])
    found, reached = list(p_values), 0.0
    for rank, at in enumerate(order):
        reached = max(reached, min(1.0, p_values[at] * (len(order) - rank)))
        found[at] = reached
    return found


def _with_interval(statistic: Aggregate, clusters: int, seed: int) -> tuple[float, float, float]:
    """A statistic of all clusters, and its percentiles over clusters drawn with replacement."""
    if not clusters:
        return nan, nan, nan
    value = float(statistic(np.ones((1, clusters)))[0])
    if clusters < 2:
        return value, nan, nan
    drawn = statistic(_draws(clusters, seed))
    at = int(_level(clusters) * len(drawn))
    # A draw without a value might be anything.
    low = np.sort(np.where(np.isnan(drawn), -np.inf, drawn))[at]
    high = np.sort(np.where(np.isnan(drawn), np.inf, drawn))[-1 - at]
    return value, float(low), float(high)


def _level(clusters: int) -> float:
    """The percentile to read for the lower end: further out the fewer clusters there are.

    Plain percentiles are too narrow for few clusters, as a normal interval is in place of one of Student's t; this
    makes up for it (Hesterberg 2015, "What teachers should know about the bootstrap", section 3.2).
    """
    return float(norm.cdf(sqrt(clusters / (clusters - 1)) * t.ppf((1 - CONFIDENCE) / 2, clusters - 1)))


def _swap_test(
    ours: Float[np.ndarray, "clusters k"],
    theirs: Float[np.ndarray, "clusters k"],
    n: int,
    aggregate: Aggregate,
    seed: int,
) -> float:
    if not n:
        return nan
    moving = (ours != theirs).any(axis=1)
    still = ours[~moving].sum(axis=0)
    swapped = _swaps(int(moving.sum()), seed)
    # Sums of what each has, not differences of sums: these could end just below 0, which has no logarithm.
    one = aggregate(((1 - swapped) @ ours[moving] + swapped @ theirs[moving] + still) / n)
    other = aggregate((swapped @ ours[moving] + (1 - swapped) @ theirs[moving] + still) / n)
    with np.errstate(invalid="ignore"):
        apart = np.abs(one - other)
    seen, size = float(apart[0]), float(abs(one[0]) + abs(other[0]))
    if np.isnan(seen):
        return nan
    rounding = 1e-12 * size if isfinite(size) else 0.0
    return float((np.isnan(apart) | (apart >= seen - rounding)).mean())


@lru_cache(maxsize=4)
def _draws(clusters: int, seed: int) -> Float[np.ndarray, "draws clusters"]:
    """How often each cluster is drawn."""
    even = np.full(clusters, 1 / clusters)
    return _fixed(np.random.default_rng(seed).multinomial(clusters, even, DRAWS).astype(float))


@lru_cache(maxsize=4)
def _swaps(clusters: int, seed: int) -> Float[np.ndarray, "draws clusters"]:
    """Which clusters change sides, first of all none: every way there is, or where that is too many, random ones."""
    if 2**clusters <= DRAWS:
        return _fixed(((np.arange(2**clusters)[:, None] >> np.arange(clusters)) & 1).astype(float))
    drawn = np.random.default_rng(seed).integers(0, 2, (DRAWS + 1, clusters)).astype(float)
    drawn[0] = 0
    return _fixed(drawn)


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


def _owners(clusters: Sequence[Hashable]) -> Int[np.ndarray, "n"]:
    """The number of each one's cluster; a single cluster can tell nothing, and gives way to its instances."""
    numbers: dict[Hashable, int] = {}
    owners = [numbers.setdefault(cluster, len(numbers)) for cluster in clusters]
    return np.arange(len(owners)) if len(numbers) < 2 else np.array(owners)


def _unit(owners: Int[np.ndarray, "n"]) -> Unit:
    return "instances" if len(set(owners.tolist())) == len(owners) else "templates"


def _sums(vectors: Float[np.ndarray, "n k"], owners: Int[np.ndarray, "n"]) -> Float[np.ndarray, "clusters k"]:
    return np.stack([np.bincount(owners, column) for column in vectors.T], axis=1).astype(float)  # of none, ints
