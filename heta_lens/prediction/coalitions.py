"""Coalitions of players (tokens or groups of tokens): likelihoods with a part of the context, and linear fits."""

from collections.abc import Callable
from functools import partial
from math import nan
from typing import Literal, NamedTuple

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from scipy.optimize import nnls
from scipy.special import comb
from torch import Tensor

from heta_lens._util.python import extra
from heta_lens.model.batching import Batches
from heta_lens.prediction.masking import Mask, ablated, mask_vector
from heta_lens.prediction.prediction import Prediction
from heta_lens.prediction.target import Scale

ROWS = 64  # rows of logits in float64 at once


def each_token(prediction: Prediction, keep_bos: bool) -> Bool[np.ndarray, "player pos"]:
    """Return a player per token; with ``keep_bos``, without a token that only marks the beginning of the text."""
    return np.eye(len(prediction), dtype=bool)[int(keep_bos and prediction.begins) :]


def worths(
    members: Bool[np.ndarray, "player pos"],
    masks: Bool[np.ndarray, "sample player"],
    with_present: Callable[[Bool[Tensor, "copy pos"]], Float[Tensor, "copy"]],
) -> Float[np.ndarray, "sample"]:
    """Return the likelihood of the target for each coalition; repeated coalitions run once."""
    distinct, which = np.unique(masks, axis=0, return_inverse=True)
    likelihoods = with_present(torch.from_numpy(still_there(members, distinct)))
    return likelihoods.cpu().double().numpy()[which.reshape(-1)]


def with_only(
    prediction: Prediction, mask: Mask, scale: Scale, batch: int | Literal["auto"]
) -> Callable[[Bool[Tensor, "copy pos"]], Float[Tensor, "copy"]]:
    """Return a function from present tokens to the likelihood of the target, with absent tokens masked."""
    batches = prediction.batches(batch)
    read = partial(prediction.read, scale=scale)
    return partial(ablated, prediction, mask=mask_vector(prediction, mask), read=read, batches=batches)


def still_there(
    members: Bool[np.ndarray, "player pos"], masks: Bool[np.ndarray, "sample player"]
) -> Bool[np.ndarray, "sample pos"]:
    """Return the unchanged positions: positions of present players, and positions without a player."""
    gone = (~masks).astype(np.float32) @ members.astype(np.float32)  # booleans are multiplied slowly
    return gone == 0


def placed(
    prediction: Prediction, members: Bool[np.ndarray, "player pos"], values: Float[np.ndarray, "player"]
) -> Float[Tensor, "pos"]:
    """Place the players' values at the players' tokens, and 0 elsewhere."""
    return torch.from_numpy(values @ members).to(prediction.embeddings)


def removed(
    prediction: Prediction,
    present: Bool[Tensor, "copy pos"],
    read: Callable[[Float[Tensor, "row vocab"]], Float[Tensor, "row"]],
    batches: Batches,
) -> Float[Tensor, "copy"]:
    """Apply ``read`` after the tokens ``present`` only."""
    ids, empty = prediction.ids, ~present.any(1)
    if empty.any():
        ids = torch.cat([ids.new_tensor([nothing_left(prediction)]), ids])
        present = torch.cat([rearrange(empty, "copy -> copy 1"), present], 1)
    return read_present(prediction, ids, present, read, batches)


def nothing_left(prediction: Prediction) -> int:
    """Return the token that stands for an empty context."""
    tokenizer = prediction.tokenizer
    token = tokenizer.filler if tokenizer.bos is None else tokenizer.bos
    if token is None:
        raise ValueError("no token is left, and this model has none for an empty text: mask tokens instead")
    return token


@torch.no_grad()
def read_present(
    prediction: Prediction,
    ids: Int[Tensor, "pos"],
    present: Bool[Tensor, "copy pos"],
    read: Callable[[Float[Tensor, "row vocab"]], Float[Tensor, "row"]],
    batches: Batches,
) -> Float[Tensor, "copy"]:
    """Apply ``read`` after the tokens ``present`` in each copy, as if the context had no other tokens.

    Present tokens are moved to the front and read at their end, where the tokens after them have no effect. So copies
    of different lengths run at once.
    """
    present = present.to(ids.device)
    kept = present.sum(1)
    order = (~present).to(torch.uint8).argsort(stable=True)

    def run(rows: Int[Tensor, "row"]) -> Float[Tensor, "row"]:
        ends = rearrange(kept[rows], "row -> row 1")
        return read(prediction.logits_of(ids[order[rows, : int(ends.max())]], read=ends - 1)[:, 0])

    shortest_first = kept.argsort()
    return batches.map(run, shortest_first, present.shape[1])[shortest_first.argsort()]


@torch.no_grad()
def read_everywhere(
    prediction: Prediction, states: Float[Tensor, "copy pos d"], scale: Scale
) -> Float[Tensor, "copy pos"]:
    """Return the likelihood of the target at every position.

    A few rows are read at a time, because a scale may need a second copy of the logits, in float64.
    """
    logits = prediction.rerun(read=range(len(prediction))).logits(states)
    return torch.stack([torch.cat([prediction.read(rows, scale) for rows in copy.split(ROWS)]) for copy in logits])


# --------------------------------------------------------------------------------------------------- drawn coalitions
def sizes(players: int) -> Float[np.ndarray, "size"]:
    """Return the Shapley weight of coalitions by size, without the empty and the full coalition; the sum is 1."""
    size = np.arange(1, players)
    mass = 1 / (size * (players - size))
    return mass / mass.sum()


def kernel(size: Int[np.ndarray, "sample"], players: int) -> Float[np.ndarray, "sample"]:
    """Return the Shapley kernel of a coalition by size: ``(M - 1) / (C(M, k) k (M - k))``."""
    return (players - 1) / (comb(players, size) * size * (players - size))


def every_coalition(players: int) -> Bool[np.ndarray, "sample player"]:
    """List every coalition except the empty and the full coalition."""
    numbers = np.arange(1, 2**players - 1)
    return (numbers[:, None] >> np.arange(players)) % 2 == 1


def random_coalitions(
    generator: np.random.Generator, players: int, count: int, *, paired: bool = False
) -> Bool[np.ndarray, "sample player"]:
    """Draw coalitions of a random size (see `sizes`); if ``paired``, followed by the coalitions' complements."""
    drawn = (count + 1) // 2 if paired else count
    size = generator.choice(np.arange(1, players), drawn, p=sizes(players))
    rank = generator.random((drawn, players)).argsort(1).argsort(1)
    coalitions = rank < size[:, None]
    return np.concatenate([coalitions, ~coalitions])[:count] if paired else coalitions


# -------------------------------------------------------------------------------------------------------- linear fits
class Linear(NamedTuple):
    """A linear surrogate: ``intercept + Σ weights of the present players``, in float64 on the CPU."""

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
    """Minimise ``Σ weight · (value - fit)² + penalty · ‖coefficients‖²``; the intercept is free."""
    total = weights.sum()
    centre, level = weights @ masks / total, weights @ values / total
    coefficients = least_squares(masks - centre, values - level, weights, penalty)
    return Linear(coefficients, float(level - centre @ coefficients))


def lasso(
    masks: Bool[np.ndarray, "sample player"], values: Float[np.ndarray, "sample"], penalty: float | int
) -> Linear:
    """Minimise ``½ · mean of (value - fit)² + penalty · ‖coefficients‖₁``; the intercept is free.

    The penalty is on the coefficients of columns with mean 0 and deviation 1.
    """
    if not penalty:
        return ridge(masks, values, np.ones(len(values)), 0)
    centre, spread = masks.mean(0), masks.std(0)
    spread[spread == 0] = 1.0
    lasso = extra("sklearn.linear_model", "a LASSO fit").Lasso
    model = lasso(alpha=float(penalty), tol=1e-10, max_iter=100_000, random_state=0)  # None uses numpy's global state
    model.fit((masks - centre) / spread, values)
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
    """Minimise ``Σ weight · (value - empty - Σ φ of present players)² + penalty · ‖φ‖²`` with ``Σ φ = full - empty``.

    The constraint is eliminated: φ is an equal share of the sum, plus a rest whose sum is 0.
    """
    even = (full - empty) / masks.shape[1]
    left = values - empty - even * masks.sum(1)
    rest = least_squares(masks - masks.mean(1, keepdims=True), left, weights, penalty)
    return even + rest - rest.mean()  # the mean of the rest is 0 but for rounding


def least_squares(
    columns: Float[np.ndarray, "sample player"],
    values: Float[np.ndarray, "sample"],
    weights: Float[np.ndarray, "sample"],
    penalty: float | int,
) -> Float[np.ndarray, "player"]:
    """Fit values to columns; among several solutions, return the one of least norm."""
    roots = np.sqrt(weights)
    weighted, goal = roots[:, None] * columns, roots * values
    if not penalty:
        return np.linalg.lstsq(weighted, goal, rcond=None)[0]
    return np.linalg.solve(weighted.T @ weighted + penalty * np.eye(columns.shape[1]), weighted.T @ goal)


def non_negative(
    columns: Float[np.ndarray, "sample feature"], values: Float[np.ndarray, "sample"]
) -> Float[np.ndarray, "feature"]:
    """Fit values by columns with factors ≥ 0, by least squares."""
    sizes = np.linalg.norm(columns, axis=0)
    sizes[sizes == 0] = 1  # for the same accuracy in columns of very different size
    return nnls(columns / sizes, values)[0] / sizes


def explained(
    fitted: Float[np.ndarray, "sample"],
    values: Float[np.ndarray, "sample"],
    weights: Float[np.ndarray, "sample"] | None = None,
) -> float:
    """Return R², the share of the values' variance explained by a fit; NaN if weighted values do not vary."""
    weights = np.ones(len(values)) if weights is None else weights
    if not len(values) or not np.ptp(values) > 0:
        return nan
    spread = float(weights @ (values - np.average(values, weights=weights)) ** 2)
    return float(1 - weights @ (values - fitted) ** 2 / spread) if spread > 0 else nan
