"""Aggregates: what one number is made of the means of many prompts' values."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Float

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
