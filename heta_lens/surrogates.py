"""Surrogates: linear models of what a prediction does when some players (tokens, or groups of them) are taken away.

All in float64 on the CPU, whatever the model runs in: what is fitted here is small.
"""

from collections.abc import Callable
from math import nan
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import comb
from sklearn.linear_model import Lasso

AT_ONCE = 2**14  # samples that are numbers at once: bits take an eighth of the memory


class Linear(NamedTuple):
    """``intercept + Σ weights of the players that are there``."""

    weights: Float[np.ndarray, "player"]
    intercept: float

    def __call__(self, masks: Bool[np.ndarray, "sample player"]) -> Float[np.ndarray, "sample"]:
        return masks @ self.weights + self.intercept


# ------------------------------------------------------------------------------------------------------------- fits
def ridge(
    masks: Bool[np.ndarray, "sample player"],
    values: Float[np.ndarray, "sample"],
    weights: Float[np.ndarray, "sample"],
    penalty: float | int,
) -> Linear:
    """Least ``Σ weight · (value - fit)² + penalty · ‖coefficients‖²``; the intercept is free."""
    total = weights.sum()
    centre, level = weights @ masks / total, weights @ values / total
    found = least_squares(masks, lambda some: some - centre, values - level, weights, penalty)
    return Linear(found, float(level - centre @ found))


def lasso(
    masks: Bool[np.ndarray, "sample player"],
    values: Float[np.ndarray, "sample"],
    weights: Float[np.ndarray, "sample"],
    penalty: float | int,
    *,
    standardised: bool = False,
) -> Linear:
    """Least ``½ · weighted mean of (value - fit)² + penalty · ‖coefficients‖₁``; the intercept is free.

    ``standardised``: the coefficients that are penalised are those of columns with mean 0 and deviation 1.
    """
    if not penalty:
        return ridge(masks, values, weights, 0)
    share = weights / weights.sum()
    centre = share @ masks if standardised else np.zeros(masks.shape[1])
    spread = np.sqrt(share @ (masks - centre) ** 2) if standardised else np.ones(masks.shape[1])
    spread[spread == 0] = 1.0
    model = Lasso(alpha=float(penalty), tol=1e-10, max_iter=100_000, random_state=0)  # None draws from numpy's own
    model.fit((masks - centre) / spread, values, sample_weight=weights)
    found = model.coef_ / spread
    return Linear(found, float(model.intercept_ - centre @ found))


def shapley(
    masks: Bool[np.ndarray, "sample player"],
    values: Float[np.ndarray, "sample"],
    weights: Float[np.ndarray, "sample"],
    empty: float,
    full: float,
    penalty: float | int = 0,
) -> Float[np.ndarray, "player"]:
    """Least ``Σ weight · (value - empty - Σ φ of those there)² + penalty · ‖φ‖²``, where the φ sum to ``full - empty``.

    The constraint is eliminated by writing φ as an equal share of that sum, and a rest which sums to 0.
    """
    even = (full - empty) / masks.shape[1]
    left = values - empty - even * masks.sum(1)
    rest = least_squares(masks, lambda some: some - some.mean(1, keepdims=True), left, weights, penalty)
    return even + rest - rest.mean()  # whose mean is 0 but for rounding


def least_squares(
    masks: Bool[np.ndarray, "sample player"],
    columns: Callable[[Bool[np.ndarray, "some player"]], Float[np.ndarray, "some player"]],
    values: Float[np.ndarray, "sample"],
    weights: Float[np.ndarray, "sample"],
    penalty: float | int,
) -> Float[np.ndarray, "player"]:
    """Of the masks' columns; the shortest of the solutions, where there are several."""
    roots, players = np.sqrt(weights), masks.shape[1]
    if not penalty:
        return np.linalg.lstsq(roots[:, None] * columns(masks), roots * values, rcond=None)[0]
    products, sums = penalty * np.eye(players), np.zeros(players)
    for some in (slice(start, start + AT_ONCE) for start in range(0, len(masks), AT_ONCE)):
        rows = roots[some, None] * columns(masks[some])
        products += rows.T @ rows
        sums += rows.T @ (roots[some] * values[some])
    return np.linalg.solve(products, sums)


def explained(
    fitted: Float[np.ndarray, "sample"],
    values: Float[np.ndarray, "sample"],
    weights: Float[np.ndarray, "sample"] | None = None,
) -> float:
    """R², how much of the values' variance a fit explains; NaN where those that count do not vary."""
    weights = np.ones(len(values)) if weights is None else weights
    if not len(values) or not np.ptp(values) > 0:
        return nan
    spread = float(weights @ (values - np.average(values, weights=weights)) ** 2)
    return float(1 - weights @ (values - fitted) ** 2 / spread) if spread > 0 else nan


# -------------------------------------------------------------------------------------------------------- coalitions
def sizes(players: int) -> Float[np.ndarray, "size"]:
    """How much the coalitions of each size, from one player to all but one, count in Shapley values; sums to 1."""
    size = np.arange(1, players)
    mass = 1 / (size * (players - size))
    return mass / mass.sum()


def kernel(size: Int[np.ndarray, "sample"], players: int) -> Float[np.ndarray, "sample"]:
    """How much a single coalition of that size counts: ``(M - 1) / (C(M, k) k (M - k))``."""
    return (players - 1) / (comb(players, size) * size * (players - size))


def every_coalition(players: int) -> Bool[np.ndarray, "sample player"]:
    """But nobody, and everybody."""
    numbers = np.arange(1, 2**players - 1)
    return (numbers[:, None] >> np.arange(players)) % 2 == 1


def random_coalitions(
    generator: np.random.Generator, players: int, count: int, *, paired: bool = False
) -> Bool[np.ndarray, "sample player"]:
    """Of a random size (see `sizes`) the random members; ``paired``, everyone else is a coalition too."""
    drawn = (count + 1) // 2 if paired else count
    size = generator.choice(np.arange(1, players), drawn, p=sizes(players))
    rank = generator.random((drawn, players)).argsort(1).argsort(1)
    found = rank < size[:, None]
    return np.concatenate([found, ~found])[:count] if paired else found
