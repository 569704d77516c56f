"""Soft-NC and Soft-NS (Zhao & Aletras 2023, as in ReAGent): how a prediction changes when tokens are thinned by score.

Every element of every embedding has its own draw: it is kept if the draw is below its token's retention, else set to 0.
For sufficiency the retention is the score, for comprehensiveness the rest. Published numbers are the logarithm of a
method's sum over prompts divided by that of random scores: see `summed`.
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
    Distance,
    Norm,
    Positions,
    Sign,
    check_number,
    finite_scores,
    normalised,
    places,
    ratios,
    rows_of,
    signed,
    with_mean,
)
from heta_lens.model.lock import one_at_a_time
from heta_lens.prediction.masking import with_others_masked
from heta_lens.prediction.prediction import Prediction, prompt_generator

SHARES = tuple(share / 10 for share in range(1, 10))  # of the context to keep


@dataclass(frozen=True)
class Soft:
    """The result for one prompt: distances from the clean prediction, and NC and NS beside those of random scores.

    ``nc`` is ``comprehensive / nothing``, at least 0, and may pass 1; ``ns`` is ``max(0, nothing - sufficient) /
    nothing``, from 0 to 1; of both more is better. ``nothing`` is the distance when all embeddings are 0: where it is
    0 itself, both are NaN. ``spread`` is the standard deviation over the draws of the two distances.
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
    norm: Norm = "sum",
    keep: float | None = None,
    distance: Distance = "root",
    draws: int = 1,
    randoms: int = 1,
    paired: bool = False,
    seed: int = 0,
    candidates: Positions | None = None,
) -> Soft:
    """Soft-NC and Soft-NS of scores, with the random scores that they are compared with.

    - ``sign``, ``norm``: how scores become what is kept (see `normalised`)
    - ``keep``: the share of the context that is kept for sufficiency, in expectation, and left out for
      comprehensiveness: the same for all methods, in place of ``norm``, which lets some keep more than others
    - ``distance``: ``root``, ``Σ (√p - √q)² / √2``, ReAGent's; ``hellinger`` and its square ``hellinger_sq``;
      ``target_prob``, how far the target's probability falls (Zhao & Aletras); or ``kl``
    - ``draws``: how often embeddings are thinned; distances are averaged before anything else
    - ``randoms``: the number of random scores (a softmax of uniform numbers) to compare with
    - ``paired``: random scores are thinned by the same draws
    - ``seed``: the seed of the draws; every prompt has its own draws
    - ``candidates``: the positions that are thinned at all; None thins every one, as ReAGent does
    """
    for name, count in (("draws", draws), ("randoms", randoms)):
        check_count(name, count)
    check_count("draws · (1 + randoms)", draws * (1 + randoms))
    check_at_least("seed", seed, 0, whole=True)
    check_choice("distance", distance, DISTANCES)
    if keep is not None:
        check_number("keep", keep)
    scores = finite_scores(scores, len(prediction))
    positions = places(candidates, len(prediction))
    generator = prompt_generator(seed, prediction.ids)
    rows, degenerate = retained(scores.detach().cpu()[positions], sign, norm, keep, randoms, generator)
    kept = torch.ones(2 * len(rows) + 1, len(prediction), dtype=torch.float64)
    both = rearrange([rows, 1 - rows], "way row pos -> (row way) pos")
    kept[:, positions] = torch.cat([both, rows.new_zeros(1, len(positions))])
    moved = thinned(prediction, kept, DISTANCES[distance], draws=draws, paired=paired, seed=seed)
    nothing, apart = float(moved[-1, 0]), rearrange(moved[:-1], "(row way) draw -> way row draw", way=2)
    sufficient, comprehensive = apart.mean(-1)
    nc, ns = ratios(comprehensive, sufficient, nothing)
    return Soft(
        nc=float(nc[0]),
        ns=float(ns[0]),
        comprehensive=float(comprehensive[0]),
        sufficient=float(sufficient[0]),
        nothing=nothing,
        nc_random=float(nc[1:].mean()),
        ns_random=float(ns[1:].mean()),
        spread=(spread(apart[1, 0]), spread(apart[0, 0])),
        degenerate=degenerate,
        options={
            **{"sign": sign, "norm": norm, "keep": keep, "distance": distance},
            **{"draws": draws, "randoms": randoms, "paired": paired, "seed": seed},
        },
    )


def retained(
    scores: Float[Tensor, "pos"],
    sign: Sign,
    norm: Norm,
    keep: float | None,
    randoms: int,
    generator: np.random.Generator,
) -> tuple[Float[Tensor, "row pos"], bool]:
    """The retention of each token, by the scores and then by random ones; and whether the scores are degenerate."""
    values, degenerate = normalised(scores, sign, norm) if keep is None else with_mean(signed(scores, sign), keep)
    others = torch.from_numpy(generator.random((randoms, len(scores)))).softmax(1)
    if keep is not None:
        others = torch.stack([with_mean(row, keep).values for row in others])
    return torch.cat([values[None], others]), degenerate


def soft_area(
    prediction: Prediction, scores: Float[Tensor, "pos"], shares: Sequence[float] = SHARES, **options: Any
) -> dict[str, float]:
    """Soft-NC and Soft-NS where every method keeps the same share of the context: the mean height over these shares."""
    if len(shares) < 2 or not all(first < second for first, second in pairwise(shares)):
        raise ValueError(f"shares={tuple(shares)} must be two shares at least, from the smallest up")
    results = [soft(prediction, scores, keep=share, **options) for share in shares]
    width = shares[-1] - shares[0]
    return {
        name: float(trapezoid([getattr(result, name) for result in results], shares)) / width
        for name in ("nc", "ns", "nc_random", "ns_random")
    }


def summed(results: Sequence[Soft]) -> dict[str, float]:
    """Over prompts: the logarithm of the method's sum over that of random scores, and the plain means.

    Prompts where ``nothing`` is 0 are skipped and counted as ``undefined``. Where the method's sum is 0 the logarithm
    is ``-inf``; where that of random scores is, ``inf``.
    """
    defined = [result for result in results if result.nothing > 0]
    return {
        **{
            f"soft_{name}": log_ratio(
                [(getattr(result, name), getattr(result, f"{name}_random")) for result in defined]
            )
            for name in ("nc", "ns")
        },
        **{
            f"soft_{name}_raw": float(np.mean([getattr(result, name) for result in defined])) if defined else nan
            for name in ("nc", "ns")
        },
        "n": len(defined),
        "undefined": len(results) - len(defined),
        "degenerate": sum(result.degenerate for result in defined),
    }


def log_ratio(pairs: Sequence[tuple[float, float]]) -> float:
    own, random = (sum(side) for side in zip(*pairs, strict=True)) if pairs else (0.0, 0.0)
    if not own or not random:
        return nan if own == random else -inf if not own else inf
    return log(own / random)


@one_at_a_time("prediction")
@torch.no_grad()
def thinned(
    prediction: Prediction,
    kept: Float[Tensor, "row pos"],
    apart: Apart,
    *,
    draws: int,
    paired: bool,
    seed: int,
) -> Float[Tensor, "row draw"]:
    """How far the prediction moves when tokens keep these shares of their embeddings, on average."""
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


def spread(distances: Float[Tensor, "draw"]) -> float:
    return float(distances.std()) if len(distances) > 1 else nan


# ---------------------------------------------------------------------------------------------------------- hard nc ns
# Hard NC and NS: how a prediction changes without the tokens of the highest scores, and with nothing but them.


RELEASED = (0.1, 0.2, 0.3)  # the shares of tokens that the authors' released code takes


def hard(
    prediction: Prediction,
    scores: Float[Tensor, "pos"],
    *,
    k: int | None = None,
    share: float = 0.2,
    as_reagent: bool = False,
    candidates: Positions | None = None,
) -> dict[str, float]:
    """NC and NS of the ``k`` tokens with the highest scores (None: that ``share`` of them, rounded down).

    Both are parts of the distance at which all ``candidates`` are 0, and more is better; NaN where that distance is 0.
    ``as_reagent`` takes another distance in the numerator of NC than in its denominator, as that code does.
    """
    if k is not None:
        check_at_least("k", k, 0, whole=True)
    check_number("share", share, 0, 1)
    scores = finite_scores(scores, len(prediction))
    positions = places(candidates, len(scores))
    first = highest(scores, token_count(share, len(positions)) if k is None else k, positions)
    gone = rows_of([first, {*positions} - {*first}, positions], len(scores))
    apart = distances(prediction, gone, DISTANCES["root"])
    nc, ns = ratios(apart[:1], apart[1:2], float(apart[2]))
    if as_reagent and apart[2] > 0:
        nc = distances(prediction, gone[:1], DISTANCES["hellinger"]) / apart[2]
    return {"nc": float(nc), "ns": float(ns)}


def released(
    prediction: Prediction,
    scores: Float[Tensor, "pos"],
    *,
    shares: Sequence[float] = RELEASED,
    candidates: Positions | None = None,
) -> dict[str, float]:
    """Soft-NC and Soft-NS of HETA's released code: mean divergences in nats over these shares of the tokens.

    ``KL(P ‖ P without the highest)``, more is better; and ``-KL(P ‖ P with nothing but them)``, at most 0.
    """
    scores = finite_scores(scores, len(prediction))
    if not len(shares):
        raise ValueError("shares is empty: give one at least, such as (0.1, 0.2)")
    for share in shares:
        check_number("shares", share, 0, 1)
    positions = places(candidates, len(scores))
    first = [highest(scores, token_count(share, len(positions), least=1), positions) for share in shares]
    gone = rows_of([*first, *({*positions} - {*kept} for kept in first)], len(scores))
    left_out, only = distances(prediction, gone, DISTANCES["kl"]).chunk(2)
    return {"nc": float(left_out.mean()), "ns": -float(only.mean())}


def distances(prediction: Prediction, gone: Bool[Tensor, "row pos"], apart: Apart) -> Float[Tensor, "row"]:
    """How far the prediction moves when these tokens are 0."""
    clean = prediction.log_probs.double()
    return without(prediction, gone, lambda log_probs: apart(log_probs.double(), clean, prediction.target))


@one_at_a_time("prediction")
@torch.no_grad()
def without(
    prediction: Prediction, gone: Bool[Tensor, "row pos"], read: Callable[[Float[Tensor, "some vocab"]], Tensor]
) -> Tensor:
    """A function of the log-probabilities when each row's tokens have embeddings of 0."""
    rerun = prediction.rerun()
    with prediction.running():
        batches = prediction.prompt.batches("auto", len(prediction))
        nothing = prediction.mask_vector("zero")
        return with_others_masked(
            prediction, ~gone, nothing, lambda states: read(rerun.log_probs(states)), batches
        ).cpu()
