"""NC and NS: the change of a prediction without the tokens of high scores, and with nothing else.

Soft-NC and Soft-NS (Zhao & Aletras 2023, as in ReAGent) thin embeddings by score: every element of every embedding has
a draw of its own, and is kept if the draw is below its token's retention, else set to 0. For sufficiency the retention
is the score, for comprehensiveness 1 - score. Published numbers are the logarithm of a method's sum over prompts
divided by the sum of random scores: see `summed`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf, log, nan
from typing import Any

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from scipy.integrate import trapezoid
from torch import Tensor

from heta_lens._util.numerics import token_count
from heta_lens._util.options import check_at_least, check_choice, check_count
from heta_lens.metrics.evidence import highest
from heta_lens.metrics.scores import (
    DISTANCES,
    Apart,
    DistanceName,
    Normalisation,
    Positions,
    Sign,
    candidate_positions,
    check_number,
    finite_scores,
    normalised,
    ratios,
    rows_of,
    signed,
    with_mean,
)
from heta_lens.model.lock import one_at_a_time
from heta_lens.prediction.masking import with_others_masked
from heta_lens.prediction.prediction import Prediction, prompt_generator

SHARES = tuple(share / 10 for share in range(1, 10))  # of the context, kept by `soft_area`
RELEASED = (0.1, 0.2, 0.3)  # shares of tokens that the authors' released code removes


@dataclass(frozen=True)
class Soft:
    """Soft-NC and Soft-NS of a prompt: distances from the clean prediction, beside the values of random scores.

    ``nc`` is ``comprehensive / nothing``, at least 0, and may pass 1; ``ns`` is ``max(0, nothing - sufficient) /
    nothing``, from 0 to 1; more is better. ``nothing`` is the distance without any candidate; NC and NS are NaN if
    this distance is 0. ``spread`` is the standard deviation over the draws of the two distances.
    """

    nc: float
    ns: float
    comprehensive: float
    sufficient: float
    nothing: float
    nc_random: float
    ns_random: float
    spread: tuple[float, float]
    degenerate: bool
    options: dict[str, Any]


def soft(
    prediction: Prediction,
    scores: Float[Tensor, "pos"],
    *,
    sign: Sign = "relu",
    norm: Normalisation = "sum",
    keep: float | None = None,
    distance: DistanceName = "root",
    draws: int = 1,
    randoms: int = 1,
    paired: bool = False,
    seed: int = 0,
    candidates: Positions | None = None,
) -> Soft:
    """Compute Soft-NC and Soft-NS of scores, and of random scores to compare with.

    - ``sign``, ``norm``: the conversion of scores to retentions (see `normalised`)
    - ``keep``: the expected share of the context that is kept for sufficiency, and left out for comprehensiveness; it
      replaces ``norm``, under which methods keep different shares
    - ``distance``: ``root``, ``Σ (√p - √q)² / √2``, ReAGent's; ``hellinger`` and its square ``hellinger_sq``;
      ``target_prob``, the fall of the target's probability (Zhao & Aletras); or ``kl``
    - ``draws``: the number of times that embeddings are thinned; distances are averaged first
    - ``randoms``: the number of random scores (a softmax of uniform numbers) to compare with
    - ``paired``: random scores are thinned by the same draws
    - ``seed``: the seed of the draws, which differ between prompts
    - ``candidates``: the positions that are thinned; None stands for every position, as in ReAGent
    """
    options = {"sign": sign, "norm": norm, "keep": keep, "distance": distance, "draws": draws, "randoms": randoms}
    options |= {"paired": paired, "seed": seed}
    check_count("draws", draws)
    check_count("randoms", randoms)
    check_at_least("seed", seed, 0, whole=True)
    check_choice("distance", distance, DISTANCES)
    if keep is not None:
        check_number("keep", keep)
    scores = finite_scores(scores, len(prediction))
    positions = candidate_positions(candidates, len(prediction))
    own = scores.detach().cpu()[positions]
    values, degenerate = normalised(own, sign, norm) if keep is None else with_mean(signed(own, sign), keep)
    drawn = torch.from_numpy(prompt_generator(seed, prediction.ids).random((randoms, len(positions)))).softmax(1)
    others = drawn if keep is None else torch.stack([with_mean(row, keep).values for row in drawn])
    rows = torch.cat([values[None], others])
    kept = torch.ones(2 * len(rows) + 1, len(prediction), dtype=torch.float64)
    ways = rearrange([rows, 1 - rows], "way row pos -> (row way) pos")
    kept[:, positions] = torch.cat([ways, rows.new_zeros(1, len(positions))])
    moved = thinned(prediction, kept, DISTANCES[distance], draws=draws, paired=paired, seed=seed)
    nothing, distances_by_way = float(moved[-1, 0]), rearrange(moved[:-1], "(row way) draw -> way row draw", way=2)
    sufficient, comprehensive = distances_by_way.mean(-1)
    nc, ns = ratios(comprehensive, sufficient, nothing)
    spread = distances_by_way[:, 0].std(-1).tolist() if draws > 1 else [nan, nan]
    return Soft(
        nc=float(nc[0]),
        ns=float(ns[0]),
        comprehensive=float(comprehensive[0]),
        sufficient=float(sufficient[0]),
        nothing=nothing,
        nc_random=float(nc[1:].mean()),
        ns_random=float(ns[1:].mean()),
        spread=(spread[1], spread[0]),
        degenerate=degenerate,
        options=options,
    )


@one_at_a_time("prediction")
@torch.no_grad()
def thinned(
    prediction: Prediction, kept: Float[Tensor, "row pos"], apart: Apart, *, draws: int, paired: bool, seed: int
) -> Float[Tensor, "row draw"]:
    """Return distances from the clean prediction after tokens kept the given shares of their embeddings."""
    embeddings, ids = prediction.embeddings, prediction.ids
    rerun, clean = prediction.rerun(), prediction.log_probs.double()

    def states_of(run: int) -> Float[Tensor, "pos d"]:
        row, draw = divmod(run, draws)
        generator = prompt_generator(seed, ids, draw, 0 if paired else row)
        drawn = torch.from_numpy(generator.random(embeddings.shape))
        return embeddings * (drawn < rearrange(kept[row], "pos -> pos 1")).to(embeddings)

    def moved(runs: Int[Tensor, "run"]) -> Float[Tensor, "run"]:
        states = torch.stack([states_of(run) for run in runs.tolist()])
        return apart(rerun.log_probs(states).double(), clean, prediction.target).cpu()

    batches = prediction.prompt.batches("auto", len(ids))
    with prediction.running():
        distances = batches.map(moved, torch.arange(len(kept) * draws), len(ids))
    return rearrange(distances, "(row draw) -> row draw", draw=draws)


def soft_area(
    prediction: Prediction, scores: Float[Tensor, "pos"], shares: Sequence[float] = SHARES, **options: Any
) -> dict[str, float]:
    """Average Soft-NC and Soft-NS over shares of the context, the same for every method (areas by width)."""
    if len(shares) < 2 or not all(first < second for first, second in pairwise(shares)):
        raise ValueError(f"shares={tuple(shares)} must be two shares at least, from the smallest up")
    results = [soft(prediction, scores, keep=share, **options) for share in shares]
    width = shares[-1] - shares[0]
    return {
        name: float(trapezoid([getattr(result, name) for result in results], shares)) / width
        for name in ("nc", "ns", "nc_random", "ns_random")
    }


def summed(results: Sequence[Soft]) -> dict[str, float]:
    """Summarise prompts: the logarithm of the method's sum over the sum of random scores, and the plain means.

    Prompts with a ``nothing`` of 0 are skipped and counted as ``undefined``. A method's sum of 0 gives ``-inf``, and a
    sum of 0 for random scores ``inf``.
    """
    defined = [result for result in results if result.nothing > 0]
    summary: dict[str, float] = {}
    for name in ("nc", "ns"):
        own = [getattr(result, name) for result in defined]
        random = [getattr(result, f"{name}_random") for result in defined]
        summary[f"soft_{name}"] = log_ratio([*zip(own, random, strict=True)])
        summary[f"soft_{name}_raw"] = float(np.mean(own)) if own else nan
    degenerate = sum(result.degenerate for result in defined)
    return {**summary, "n": len(defined), "undefined": len(results) - len(defined), "degenerate": degenerate}


def log_ratio(pairs: Sequence[tuple[float, float]]) -> float:
    """Return the logarithm of the ratio of two sums; infinite if a sum is 0, NaN if the two sums are."""
    own, random = (sum(side) for side in zip(*pairs, strict=True)) if pairs else (0.0, 0.0)
    if own and random:
        return log(own / random)
    return nan if own == random else inf if own else -inf


def hard(
    prediction: Prediction,
    scores: Float[Tensor, "pos"],
    *,
    k: int | None = None,
    share: float = 0.2,
    candidates: Positions | None = None,
) -> dict[str, float]:
    """Compute NC and NS of the ``k`` tokens with the highest scores (by default a ``share``, rounded down).

    Both are shares of the distance without any candidate, and more is better; NaN if this distance is 0. ReAGent's code
    takes another distance in the numerator of NC than in its denominator.
    """
    check_number("share", share, 0, 1)
    scores = finite_scores(scores, len(prediction))
    positions = candidate_positions(candidates, len(scores))
    first = highest(scores, token_count(share, len(positions)) if k is None else k, positions)
    gone = rows_of([first, {*positions} - {*first}, positions], len(scores))
    apart = distances(prediction, gone, DISTANCES["root"])
    nc, ns = ratios(apart[:1], apart[1:2], float(apart[2]))
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
    for share in shares:
        check_number("shares", share, 0, 1)
    positions = candidate_positions(candidates, len(scores))
    first = [highest(scores, token_count(share, len(positions), least=1), positions) for share in shares]
    gone = rows_of([*first, *({*positions} - {*kept} for kept in first)], len(scores))
    left_out, only = distances(prediction, gone, DISTANCES["kl"]).chunk(2)
    return {"nc": float(left_out.mean()), "ns": -float(only.mean())}


def distances(prediction: Prediction, gone: Bool[Tensor, "row pos"], apart: Apart) -> Float[Tensor, "row"]:
    """Return the distance from the clean prediction for every row of tokens whose embeddings are 0."""
    clean = prediction.log_probs.double()
    return without(prediction, gone, lambda log_probs: apart(log_probs.double(), clean, prediction.target))


@one_at_a_time("prediction")
@torch.no_grad()
def without(
    prediction: Prediction, gone: Bool[Tensor, "row pos"], read: Callable[[Float[Tensor, "some vocab"]], Tensor]
) -> Tensor:
    """Return a function of the log-probabilities for every row of tokens whose embeddings are 0."""
    rerun, nothing = prediction.rerun(), prediction.mask_vector("zero")
    batches = prediction.prompt.batches("auto", len(prediction))
    with prediction.running():
        values = with_others_masked(prediction, ~gone, nothing, lambda states: read(rerun.log_probs(states)), batches)
    return values.cpu()
