"""Linear fits: surrogates of how a prediction changes when some players (tokens, or groups of them) are removed.

All in float64 on the CPU, whatever the model runs in: what is fitted here is small.
"""

from collections.abc import Callable
from math import nan
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from scipy.optimize import nnls

from heta_lens._util.extras import extra

AT_ONCE = 2**14  # samples converted to numbers at once: booleans take an eighth of the memory


class Linear(NamedTuple):
    """``intercept + Σ weights of the players that are there``."""

    weights: Float[np.ndarray, "player"]
    intercept: float

    def __call__(self, masks: Bool[np.ndarray, "sample player"]) -> Float[np.ndarray, "sample"]:
        return masks @ self.weights + self.intercept


def ridge(
    masks: Bool[np.ndarray, "sample player"],
    values: Float[np.ndarray, "sample"],
    weights: Float[np.ndarray, "sample"],
    penalty: float | int,
) -> Linear:
    """Least ``Σ weight · (value - fit)² + penalty · ‖coefficients‖²``; the intercept is free."""
    total = weights.sum()
    centre, level = weights @ masks / total, weights @ values / total
    coefficients = least_squares(masks, lambda rows: rows - centre, values - level, weights, penalty)
    return Linear(coefficients, float(level - centre @ coefficients))


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
    model = extra("sklearn.linear_model", "a LASSO fit").Lasso(
        alpha=float(penalty), tol=1e-10, max_iter=100_000, random_state=0
    )  # None draws from numpy's own
    model.fit((masks - centre) / spread, values, sample_weight=weights)
    coefficients = model.coef_ / spread
    return Linear(coefficients, float(model.intercept_ - centre @ coefficients))


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
    rest = least_squares(masks, _centred_rows, left, weights, penalty)
    return even + rest - rest.mean()  # whose mean is 0 but for rounding


def _centred_rows(rows: Bool[np.ndarray, "part player"]) -> Float[np.ndarray, "part player"]:
    return rows - rows.mean(1, keepdims=True)


def least_squares(
    masks: Bool[np.ndarray, "sample player"],
    columns: Callable[[Bool[np.ndarray, "part player"]], Float[np.ndarray, "part player"]],
    values: Float[np.ndarray, "sample"],
    weights: Float[np.ndarray, "sample"],
    penalty: float | int,
) -> Float[np.ndarray, "player"]:
    """Fitted to the masks' columns; the solution of least norm, where there are several."""
    roots, players = np.sqrt(weights), masks.shape[1]
    if not penalty:
        return np.linalg.lstsq(roots[:, None] * columns(masks), roots * values, rcond=None)[0]
    products, sums = penalty * np.eye(players), np.zeros(players)
    for start in range(0, len(masks), AT_ONCE):
        part = slice(start, start + AT_ONCE)
        rows = roots[part, None] * columns(masks[part])
        products += rows.T @ rows
        sums += rows.T @ (roots[part] * values[part])
    return np.linalg.solve(products, sums)


def non_negative(
    columns: Float[np.ndarray, "sample feature"], values: Float[np.ndarray, "sample"]
) -> Float[np.ndarray, "feature"]:
    """Factors ≥ 0 with which the columns come nearest to the values, by least squares."""
    sizes = np.linalg.norm(columns, axis=0)
    sizes[sizes == 0] = 1  # columns of very different size are solved for with the same accuracy
    return nnls(columns / sizes, values)[0] / sizes


def explained(
    fitted: Float[np.ndarray, "sample"],
    values: Float[np.ndarray, "sample"],
    weights: Float[np.ndarray, "sample"] | None = None,
) -> float:
    """R², the share of the values' variance that a fit explains; NaN where those with a weight do not vary."""
    weights = np.ones(len(values)) if weights is None else weights
    if not len(values) or not np.ptp(values) > 0:
        return nan
    spread = float(weights @ (values - np.average(values, weights=weights)) ** 2)
    return float(1 - weights @ (values - fitted) ** 2 / spread) if spread > 0 else nan
