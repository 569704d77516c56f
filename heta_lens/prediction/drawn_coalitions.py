"""Which coalitions of players (tokens, or groups of them) are tried: all, or random ones by their Shapley weight."""

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import comb


def sizes(players: int) -> Float[np.ndarray, "size"]:
    """The weight in Shapley values of the coalitions of each size, from one player to all but one; sums to 1."""
    size = np.arange(1, players)
    mass = 1 / (size * (players - size))
    return mass / mass.sum()


def kernel(size: Int[np.ndarray, "sample"], players: int) -> Float[np.ndarray, "sample"]:
    """The weight of a single coalition of that size: ``(M - 1) / (C(M, k) k (M - k))``."""
    return (players - 1) / (comb(players, size) * size * (players - size))


def every_coalition(players: int) -> Bool[np.ndarray, "sample player"]:
    """Every coalition except the empty and the full one."""
    numbers = np.arange(1, 2**players - 1)
    return (numbers[:, None] >> np.arange(players)) % 2 == 1


def random_coalitions(
    generator: np.random.Generator, players: int, count: int, *, paired: bool = False
) -> Bool[np.ndarray, "sample player"]:
    """Random members of a random size (see `sizes`); if ``paired``, each coalition's complement is one too."""
    drawn = (count + 1) // 2 if paired else count
    size = generator.choice(np.arange(1, players), drawn, p=sizes(players))
    rank = generator.random((drawn, players)).argsort(1).argsort(1)
    coalitions = rank < size[:, None]
    return np.concatenate([coalitions, ~coalitions])[:count] if paired else coalitions
