"""Random draws of clusters, the same for all estimates of one seed, and the probabilities that they estimate."""

from functools import lru_cache
from math import sqrt
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, UInt

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
