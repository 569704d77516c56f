"""Removal of tokens by their scores: NC and NS, and perturbation curves.

NC and NS are the changes of a prediction without the tokens of high scores, and with nothing else. Soft-NC and Soft-NS
(Zhao & Aletras 2023, as in ReAGent) thin embeddings by score: every element of every embedding has a draw of its own,
and is kept if the draw is below its token's retention, else set to 0. For sufficiency the retention is the score, for
comprehensiveness 1 - score. Published numbers are the logarithm of a method's sum over prompts divided by the sum of
random scores, as reports of evaluations have it.

A perturbation curve is the target's likelihood while tokens are removed, or restored, in the order of the scores. Of a
likelihood (``kind="value"``), a good order has a small area under MoRF and a large area under LeRF; of the fall of the
likelihood (``"drop"``), the reverse. ABPC is the same for the two kinds, and more is better.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from scipy.integrate import trapezoid
from torch import Tensor

from heta_lens._util.numerics import kl, token_count
from heta_lens._util.options import check_choice
from heta_lens.metrics.evidence import Order, highest, ranked
from heta_lens.metrics.scores import (
    Apart,
    Normalisation,
    Positions,
    candidate_positions,
    finite_scores,
    normalised,
    ordinary,
    ratios,
    root,
    rows_of,
    with_mean,
)
from heta_lens.model.lock import one_at_a_time
from heta_lens.prediction.masking import ablated, mask_vector
from heta_lens.prediction.prediction import Prediction, prompt_generator
from heta_lens.prediction.target import exact, log_softmax

RELEASED = (0.1, 0.2, 0.3)  # shares of tokens that the authors' released code removes


@dataclass(frozen=True)
class Soft:
    """Soft-NC and Soft-NS of a prompt, and of random scores.

    ``nc`` is ``comprehensive / nothing``, at least 0, and may pass 1; ``ns`` is ``max(0, nothing - sufficient) /
    nothing``, from 0 to 1; more is better. These are distances from the clean prediction after thinning, and after
    removing every candidate (``nothing``). NC and NS are NaN if ``nothing`` is 0.
    """

    nc: float
    ns: float
    nc_random: float
    ns_random: float


def soft(
    prediction: Prediction,
    scores: Float[Tensor, "pos"],
    *,
    norm: Normalisation = "sum",
    keep: float | None = None,
    paired: bool = False,
    seed: int = 0,
    candidates: Positions | None = None,
) -> Soft:
    """Compute Soft-NC and Soft-NS of scores, and of random scores (a softmax of uniform numbers) to compare with.

    - ``norm``: the conversion of scores to retentions (see `normalised`)
    - ``keep``: the expected share of the context that is kept for sufficiency, and left out for comprehensiveness; it
      replaces ``norm``, under which methods keep different shares
    - ``paired``: random scores are thinned by the same draws
    - ``seed``: the seed of the draws, which differ between prompts
    - ``candidates``: the positions that are thinned; None stands for every position, as in ReAGent
    """
    scores = finite_scores(scores, len(prediction))
    positions = candidate_positions(candidates, len(prediction))
    own = scores.detach().cpu()[positions]
    random = torch.from_numpy(prompt_generator(seed, prediction.ids).random(len(positions))).softmax(0)
    values = [normalised(own, norm), random] if keep is None else [with_mean(row, keep) for row in (own, random)]
    rows = torch.stack(values)
    kept = torch.ones(5, len(prediction), dtype=torch.float64)  # the last row keeps no candidate
    ways = rearrange([rows, 1 - rows], "way row pos -> (row way) pos")
    kept[:, positions] = torch.cat([ways, rows.new_zeros(1, len(positions))])
    *moved, nothing = thinned(prediction, kept, paired=paired, seed=seed)
    sufficient, comprehensive = rearrange(moved, "(row way) -> way row", way=2)
    (nc, nc_random), (ns, ns_random) = (ratio.tolist() for ratio in ratios(comprehensive, sufficient, float(nothing)))
    return Soft(nc, ns, nc_random, ns_random)


@one_at_a_time("prediction")
@torch.no_grad()
def thinned(prediction: Prediction, kept: Float[Tensor, "row pos"], *, paired: bool, seed: int) -> Float[Tensor, "row"]:
    """Return distances from the clean prediction after tokens kept the given shares of their embeddings."""
    embeddings, ids = prediction.embeddings, prediction.ids
    rerun, clean = prediction.rerun(), exact(prediction.log_probs)

    def states_of(row: int) -> Float[Tensor, "pos d"]:
        drawn = torch.from_numpy(prompt_generator(seed, ids, 0, 0 if paired else row).random(embeddings.shape))
        return embeddings * (drawn < rearrange(kept[row], "pos -> pos 1")).to(embeddings)

    def moved(rows: Int[Tensor, "run"]) -> Float[Tensor, "run"]:
        states = torch.stack([states_of(row) for row in rows.tolist()])
        return root(exact(rerun.log_probs(states)), clean).cpu()

    batches = prediction.batches("auto")
    with prediction.running():
        return batches.map(moved, torch.arange(len(kept)), len(ids))


def hard(
    prediction: Prediction, scores: Float[Tensor, "pos"], *, share: float = 0.2, candidates: Positions | None = None
) -> dict[str, float]:
    """Compute NC and NS of a ``share`` of the tokens, rounded down, with the highest scores.

    Both are shares of the distance without any candidate, and more is better; NaN if this distance is 0. ReAGent's code
    takes another distance in the numerator of NC than in its denominator.
    """
    scores = finite_scores(scores, len(prediction))
    positions = candidate_positions(candidates, len(scores))
    first = highest(scores, token_count(share, len(positions)), positions)
    gone = rows_of([first, {*positions} - {*first}, positions], len(scores))
    comprehensive, sufficient, nothing = distances(prediction, gone, root).split(1)
    nc, ns = ratios(comprehensive, sufficient, float(nothing))
    return {"nc": float(nc), "ns": float(ns)}


def released(
    prediction: Prediction,
    scores: Float[Tensor, "pos"],
    *,
    shares: Sequence[float] = RELEASED,
    candidates: Positions | None = None,
) -> dict[str, float]:
    """Compute Soft-NC and Soft-NS of HETA's released code: mean divergences in nats over shares of the tokens.

    ``nc`` is ``KL(P ‖ P without the highest)``, more is better; ``ns`` is ``-KL(P ‖ P with nothing but the highest)``,
    at most 0.
    """
    scores = finite_scores(scores, len(prediction))
    positions = candidate_positions(candidates, len(scores))
    first = [highest(scores, token_count(share, len(positions), least=1), positions) for share in shares]
    gone = rows_of([*first, *({*positions} - {*kept} for kept in first)], len(scores))
    left_out, only = distances(prediction, gone, lambda log_p, log_q: kl(log_q, log_p)).chunk(2)
    return {"nc": float(left_out.mean()), "ns": -float(only.mean())}


def distances(prediction: Prediction, gone: Bool[Tensor, "row pos"], apart: Apart) -> Float[Tensor, "row"]:
    """Return the distance from the clean prediction for every row of tokens whose embeddings are 0."""
    clean = exact(prediction.log_probs)
    return without(prediction, gone, lambda logits: apart(exact(log_softmax(logits)), clean))


@one_at_a_time("prediction")
@torch.no_grad()
def without(
    prediction: Prediction, gone: Bool[Tensor, "row pos"], read: Callable[[Float[Tensor, "some vocab"]], Tensor]
) -> Tensor:
    """Return a function of the logits for every row of tokens whose embeddings are 0."""
    nothing, batches = mask_vector(prediction, "zero"), prediction.batches("auto")
    with prediction.running():
        return ablated(prediction, ~gone, nothing, read, batches).cpu()


# --------------------------------------------------------------------------------------------------------------- curves
TENTHS = tuple(share / 10 for share in range(11))


@dataclass(frozen=True)
class Curve:
    """The target's likelihood after the removal (or return) of shares of the tokens; the first share is 0."""

    shares: tuple[float, ...]
    values: tuple[float, ...]


def curve(
    prediction: Prediction,
    scores: Float[Tensor, "pos"],
    *,
    order: Order = "morf",
    insert: bool = False,
    steps: Sequence[float] = TENTHS,
    candidates: Positions | None = None,
) -> Curve:
    """Measure the target's probability while the embeddings of more and more tokens are 0; with ``insert``, restored.

    - ``order``: highest scores first (``morf``) or lowest first (``lerf``); equal scores in the order of the text
    - ``steps``: shares of the tokens from 0 up, rounded down to whole tokens
    - ``candidates``: positions that may be removed; None stands for every token that is not special
    """
    check_choice("order", order, ("morf", "lerf"))
    scores = finite_scores(scores, len(prediction))
    order_of = ranked(scores, ordinary(prediction) if candidates is None else candidates, order)
    counts = [token_count(share, len(order_of)) for share in steps]
    gone = rows_of([order_of[count:] if insert else order_of[:count] for count in counts], len(prediction))
    values = without(prediction, gone, partial(prediction.read, scale="prob"))
    return Curve(tuple(steps), tuple(values.tolist()))


def aopc(drawn: Curve, *, insert: bool = False) -> float:
    """Return the mean fall of the likelihood from the start of the curve (``insert``: its rise); more is better."""
    drops = drawn.values[0] - np.array(drawn.values)
    return float(-drops.mean() if insert else drops.mean())


def area(drawn: Curve, kind: Literal["value", "drop"] = "value") -> float:
    """Return the area under the curve, by trapezoids; with ``drop``, the area under the fall of the likelihood."""
    check_choice("kind", kind, ("value", "drop"))
    values = np.array(drawn.values)
    return float(trapezoid(values if kind == "value" else values[0] - values, drawn.shares))


def abpc(morf: Curve, lerf: Curve) -> float:
    """Return the area between the curves: the advantage of removing the least relevant tokens first."""
    return area(lerf) - area(morf)
