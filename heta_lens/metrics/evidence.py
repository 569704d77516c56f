"""Alignment of scores with known evidence, and the order of tokens by their scores.

Positions are indices of ``scores``. Negative scores count as 0 unless ``sign`` (``relu``, ``abs`` or ``none``) says
otherwise.
"""

from collections.abc import Sequence
from math import comb, nan
from typing import Literal, TypeAlias, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from heta_lens._util.numerics import TOLERANCE
from heta_lens._util.options import check_at_least, check_choice
from heta_lens.metrics.scores import (
    Positions,
    Sign,
    candidate_positions,
    check_number,
    finite_scores,
    positions_in,
    signed,
)

Order = Literal["morf", "lerf"]
DsaReading: TypeAlias = Literal["supervised", "model_selected", "segments", "thresholded_max"]


def ranked(scores: Float[Tensor, "pos"], candidates: Positions | None = None, order: Order = "morf") -> list[int]:
    """Return the candidates by score, highest first (``lerf``: lowest first), equal scores in the order of the text."""
    scores = finite_scores(scores)
    positions = candidate_positions(candidates, len(scores))
    ranking = scores[positions].argsort(descending=order == "morf", stable=True)
    return [positions[rank] for rank in ranking.tolist()]


def highest(scores: Float[Tensor, "pos"], k: int, candidates: Positions | None = None) -> list[int]:
    """Return the positions of the ``k`` highest scores, or every candidate if fewer than ``k`` exist."""
    check_at_least("k", k, 0, whole=True)
    return ranked(scores, candidates)[:k]


def reaching(values: Sequence[float], mass: float) -> int:
    """Return the number of first values with a share of the sum; the number of values for a sum of 0."""
    if not 0 < mass <= 1:
        raise ValueError(f"mass={mass} must be above 0 and at most 1")
    whole, reached = sum(values), 0.0
    for count, value in enumerate(values, 1):
        reached += value
        if whole > 0 and reached >= mass * whole * (1 - TOLERANCE):
            return count
    return len(values)


def dsa(
    scores: Float[Tensor, "pos"],
    support: Positions,
    distractor: Positions,
    gold: Positions | None = None,
    *,
    reading: DsaReading = "supervised",
    over: Literal["segments", "context"] | None = None,
    threshold: float = 0.5,
    k: int | None = None,
    sign: Sign = "relu",
) -> float:
    """Dependent Sentence Attribution: the share of scores on the support less the share on the distractor.

    The paper has several definitions; higher is better. For scores of at least 0, the results of the first three
    readings lie in [-1, 1].

    - ``supervised``: ``gold`` tokens of the support, less the whole distractor.
    - ``model_selected``: tokens of the two segments with at least ``threshold`` times the highest score (or the ``k``
      tokens with the highest scores).
    - ``segments``: the whole support, less the whole distractor, as shares of the whole context.
    - ``thresholded_max``: like ``model_selected``, in units of the highest score in place of shares.

    ``over`` is the denominator of the shares: the two segments (the default except for ``segments``) or the context.
    """
    check_choice("reading", reading, get_args(DsaReading))
    check_choice("over", over, (None, "segments", "context"))
    check_number("threshold", threshold)
    scores = finite_scores(scores)
    wanted = {*positions_in("support", support, len(scores))}
    unwanted = {*positions_in("distractor", distractor, len(scores))}
    if overlap := wanted & unwanted:
        raise ValueError(f"positions {sorted(overlap)} are in the support and in the distractor")
    counted = signed(scores, sign)
    if reading == "thresholded_max":
        whole = float(counted.max())
    elif (over or ("context" if reading == "segments" else "segments")) == "segments":
        whole = float(counted[[*wanted, *unwanted]].sum())
    else:
        whole = float(counted.sum())
    if reading == "supervised":
        if gold is None:
            raise ValueError("reading='supervised' needs gold positions: tokens of the support that tell the answer")
        golden = {*positions_in("gold", gold, len(scores))}
        if stray := golden - wanted:
            raise ValueError(f"gold positions {sorted(stray)} are not in the support")
        wanted = golden
    elif reading in ("model_selected", "thresholded_max"):
        above = (counted >= threshold * counted.max()).nonzero().flatten().tolist()
        selected = {*(above if k is None else highest(counted, k))}
        wanted, unwanted = wanted & selected, unwanted & selected
    return float(counted[[*wanted]].sum() - counted[[*unwanted]].sum()) / whole if whole > 0 else 0.0


def f1(
    scores: Float[Tensor, "pos"],
    gold: Positions,
    *,
    candidates: Positions | None = None,
    k: int | None = None,
    mass: float | None = None,
    threshold: float | None = None,
) -> float:
    """F1 of the chosen tokens against ``gold`` tokens; NaN without gold, higher is better.

    Chosen are the ``k`` highest scores (by default as many as ``gold``), or the fewest with a share ``mass`` of the
    sum, or the scores of at least ``threshold`` times the highest. Of equal scores, the earlier token is chosen.
    ``candidates`` are the positions to choose from (default: every position).
    """
    if sum(rule is not None for rule in (k, mass, threshold)) > 1:
        raise ValueError("k, mass and threshold are three ways to choose: give one of them")
    check_at_least("k", 0 if k is None else k, 0, whole=True)
    check_number("threshold", 0 if threshold is None else threshold)
    scores = finite_scores(scores)
    wanted = {*positions_in("gold", gold, len(scores))}
    order = ranked(scores, candidates)
    sizes = scores[order]
    if mass is not None:
        k = reaching(torch.relu(sizes).tolist(), mass) if sizes[0] > 0 else 0
    elif threshold is not None:
        k = int((sizes >= threshold * sizes[0]).sum()) if sizes[0] > 0 else 0
    chosen = {*order[: len(wanted) if k is None else k]}
    return 2 * len(chosen & wanted) / (len(chosen) + len(wanted)) if wanted else nan


def evidence_mass(
    scores: Float[Tensor, "pos"], evidence: Positions, *, sign: Sign = "relu", candidates: Positions | None = None
) -> float:
    """Share of the candidates' scores on the evidence, in [0, 1] except for ``sign="none"``; higher is better."""
    scores = finite_scores(scores)
    wanted = {*positions_in("evidence", evidence, len(scores))}
    positions = candidate_positions(candidates, len(scores))
    counted = signed(scores, sign)
    whole = float(counted[positions].sum())
    return float(counted[sorted(wanted & {*positions})].sum()) / whole if whole > 0 else 0.0


def passes(scores: Float[Tensor, "pos"], gold: Positions, k: int = 5, *, candidates: Positions | None = None) -> float:
    """Return 1 if a gold token is among the ``k`` highest scores, else 0; NaN without a gold candidate."""
    scores = finite_scores(scores)
    wanted = {*positions_in("gold", gold, len(scores))} & {*candidate_positions(candidates, len(scores))}
    return float(not wanted.isdisjoint(highest(scores, k, candidates))) if wanted else nan


def chance_of_passing(tokens: int, gold: int, k: int = 5) -> float:
    """Return the probability of a pass for a random order of tokens; NaN without a gold token."""
    chosen = min(k, tokens)
    return 1 - comb(tokens - gold, chosen) / comb(tokens, chosen) if gold else nan
