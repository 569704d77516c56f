"""Alignment of scores with known evidence, and the order of tokens by their scores.

Positions are indices of ``scores``. Negative scores count as 0.
"""

from math import comb, nan
from typing import Literal, TypeAlias, get_args

from jaxtyping import Float
from torch import Tensor

from heta_lens._util.numerics import token_count
from heta_lens._util.options import check_at_least, check_choice
from heta_lens.metrics.scores import Positions, candidate_positions, finite_scores, positions_in

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


def dsa(
    scores: Float[Tensor, "pos"],
    support: Positions,
    distractor: Positions,
    gold: Positions | None = None,
    *,
    reading: DsaReading = "supervised",
) -> float:
    """Dependent Sentence Attribution: the share of scores on the support less the share on the distractor.

    The paper has several definitions; higher is better. The results of the first three readings lie in [-1, 1].

    - ``supervised``: ``gold`` tokens of the support, less the whole distractor, as shares of the two segments.
    - ``model_selected``: tokens of the two segments with at least half the highest score, as shares of the segments.
    - ``segments``: the whole support, less the whole distractor, as shares of the whole context.
    - ``thresholded_max``: like ``model_selected``, in units of the highest score in place of shares.
    """
    check_choice("reading", reading, get_args(DsaReading))
    scores = finite_scores(scores)
    wanted = {*positions_in("support", support, len(scores))}
    unwanted = {*positions_in("distractor", distractor, len(scores))}
    if overlap := wanted & unwanted:
        raise ValueError(f"positions {sorted(overlap)} are in the support and in the distractor")
    counted = scores.relu()
    if reading == "thresholded_max":
        whole = float(counted.max())
    else:
        whole = float((counted if reading == "segments" else counted[[*wanted, *unwanted]]).sum())
    if reading == "supervised":
        if gold is None:
            raise ValueError("reading='supervised' needs gold positions: tokens of the support that tell the answer")
        golden = {*positions_in("gold", gold, len(scores))}
        if stray := golden - wanted:
            raise ValueError(f"gold positions {sorted(stray)} are not in the support")
        wanted = golden
    elif reading != "segments":
        selected = {*(counted >= counted.max() / 2).nonzero().flatten().tolist()}
        wanted, unwanted = wanted & selected, unwanted & selected
    return float(counted[[*wanted]].sum() - counted[[*unwanted]].sum()) / whole if whole > 0 else 0.0


def f1(scores: Float[Tensor, "pos"], gold: Positions, *, candidates: Positions | None = None) -> float:
    """F1 of as many tokens with the highest scores as are ``gold``; NaN without gold, higher is better.

    Of equal scores, the earlier token is chosen, out of the ``candidates`` (default: every position).
    """
    scores = finite_scores(scores)
    wanted = {*positions_in("gold", gold, len(scores))}
    chosen = {*highest(scores, len(wanted), candidates)}
    return 2 * len(chosen & wanted) / (len(chosen) + len(wanted)) if wanted else nan


def evidence_mass(scores: Float[Tensor, "pos"], evidence: Positions, *, candidates: Positions | None = None) -> float:
    """Share of the candidates' scores on the evidence, in [0, 1]; higher is better."""
    scores = finite_scores(scores).relu()
    wanted = {*positions_in("evidence", evidence, len(scores))}
    positions = candidate_positions(candidates, len(scores))
    whole = float(scores[positions].sum())
    return float(scores[sorted(wanted & {*positions})].sum()) / whole if whole > 0 else 0.0


def reciprocal_rank(scores: Float[Tensor, "pos"], evidence: Positions, *, candidates: Positions | None = None) -> float:
    """Return 1 over the rank of the highest score on the evidence, higher is better; NaN without evidence.

    Of equal scores, the earlier token ranks first.
    """
    wanted = {*positions_in("evidence", evidence, len(scores))}
    ranks = (rank for rank, position in enumerate(ranked(scores, candidates), 1) if position in wanted)
    return 1 / next(ranks, nan)


def recovery(
    scores: Float[Tensor, "pos"], evidence: Positions, share: float = 0.1, *, candidates: Positions | None = None
) -> float:
    """Share of the evidence among the first ``share`` of all candidates, rounded up; NaN without evidence."""
    order = ranked(scores, candidates)
    wanted = {*positions_in("evidence", evidence, len(scores))} & {*order}
    first = order[: token_count(share, len(order), "up")]
    return len(wanted.intersection(first)) / len(wanted) if wanted else nan


def passes(scores: Float[Tensor, "pos"], gold: Positions, k: int = 5, *, candidates: Positions | None = None) -> float:
    """Return 1 if a gold token is among the ``k`` highest scores, else 0; NaN without a gold candidate."""
    scores = finite_scores(scores)
    wanted = {*positions_in("gold", gold, len(scores))} & {*candidate_positions(candidates, len(scores))}
    return float(not wanted.isdisjoint(highest(scores, k, candidates))) if wanted else nan


def chance_of_passing(tokens: int, gold: int, k: int = 5) -> float:
    """Return the probability of a pass for a random order of tokens; NaN without a gold token."""
    chosen = min(k, tokens)
    return 1 - comb(tokens - gold, chosen) / comb(tokens, chosen) if gold else nan
