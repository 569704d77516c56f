"""The order that scores put tokens in: highest first, of equal ones the first in the text."""

from collections.abc import Sequence
from math import comb, nan
from typing import Literal, TypeAlias, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from heta_lens._util.numerics import TOLERANCE
from heta_lens._util.options import check_at_least, check_choice
from heta_lens.metrics.scores import Positions, Sign, check_number, finite_scores, places, positions_in, signed

Order = Literal["morf", "lerf"]


def ranked(scores: Float[Tensor, "pos"], candidates: Positions | None = None, order: Order = "morf") -> list[int]:
    """The candidates (all, if none are named), most relevant first, or least (``lerf``)."""
    scores = finite_scores(scores)
    positions = places(candidates, len(scores))
    ranking = scores[positions].argsort(descending=order == "morf", stable=True)
    return [positions[rank] for rank in ranking.tolist()]


def highest(scores: Float[Tensor, "pos"], k: int, candidates: Positions | None = None) -> list[int]:
    """Where the ``k`` highest scores are, or all where there are less."""
    return ranked(scores, candidates)[:k]


def reaching(values: Sequence[float], mass: float) -> int:
    """How many of these values, from the first on, make up that share of their sum; all of them, where it is 0."""
    if not 0 < mass <= 1:
        raise ValueError(f"mass={mass} must be above 0 and at most 1")
    whole, reached = sum(values), 0.0
    for count, value in enumerate(values, 1):
        reached += value
        if whole > 0 and reached >= mass * whole * (1 - TOLERANCE):
            return count
    return len(values)


# -------------------------------------------------------------------------------------------------- evidence alignment
# Alignment with evidence: whether the scores lie where the answer is known to come from.
#
# Positions are indices of ``scores``. Scores that do not speak for the target are set to 0 first, unless ``sign``,
# which
# is ``"relu"``, ``"abs"`` or ``"none"``, says otherwise.


Reading: TypeAlias = Literal["supervised", "model_selected", "segments", "thresholded_max"]


def dsa(
    scores: Float[Tensor, "pos"],
    support: Positions,
    distractor: Positions,
    gold: Positions | None = None,
    *,
    reading: Reading = "supervised",
    over: Literal["segments", "context"] | None = None,
    threshold: float = 0.5,
    k: int | None = None,
    sign: Sign = "relu",
) -> float:
    """Dependent Sentence Attribution: the share on what supports the answer, less the share on the distractor.

    The paper defines it in several ways; higher is better, and of scores ≥ 0 all but the last lie in [-1, 1].

    - ``supervised``: ``gold`` tokens of the support, less the whole distractor.
    - ``model_selected``: of both, only tokens with at least ``threshold`` times the highest score (or, if ``k`` is
      given, the ``k`` tokens with the highest).
    - ``segments``: the whole support, less the whole distractor; shares of the whole context.
    - ``thresholded_max``: like ``model_selected``, with the highest score counted as 1 instead of shares.

    ``over`` says what shares are of: both segments (the default but for ``segments``), or the whole context.
    """
    check_choice("reading", reading, get_args(Reading))
    check_choice("over", over, (None, "segments", "context"))
    check_number("threshold", threshold)
    if k is not None:
        check_at_least("k", k, 0, whole=True)
    scores = finite_scores(scores)
    support, distractor = (
        positions_in(name, given, len(scores)) for name, given in (("support", support), ("distractor", distractor))
    )
    gold = None if gold is None else positions_in("gold", gold, len(scores))
    if overlap := set(support) & set(distractor):
        raise ValueError(f"positions {sorted(overlap)} are in the support and in the distractor")
    if stray := set(gold or ()) - set(support):
        raise ValueError(f"gold positions {sorted(stray)} are not in the support")
    if reading == "supervised" and gold is None:
        raise ValueError("reading='supervised' needs gold positions: the tokens of the support that tell the answer")
    counted = signed(scores, sign)
    both = [*support, *distractor]
    of = over or ("context" if reading == "segments" else "segments")
    whole = float(
        counted.max() if reading == "thresholded_max" else counted[both if of == "segments" else slice(None)].sum()
    )
    if whole <= 0:
        return 0.0
    wanted, unwanted = set(gold or ()) if reading == "supervised" else set(support), set(distractor)
    if reading in ("model_selected", "thresholded_max"):
        selected = _selected(counted, threshold, k)
        wanted, unwanted = wanted & selected, unwanted & selected
    return float(counted[list(wanted)].sum() - counted[list(unwanted)].sum()) / whole


def _selected(scores: Float[Tensor, "pos"], threshold: float, k: int | None) -> set[int]:
    if k is not None:
        return {*highest(scores, k)}
    return set((scores >= threshold * scores.max()).nonzero().flatten().tolist())


def f1(
    scores: Float[Tensor, "pos"],
    gold: Positions,
    *,
    candidates: Positions | None = None,
    k: int | None = None,
    mass: float | None = None,
    threshold: float | None = None,
) -> float:
    """2 |chosen ∩ gold| / (|chosen| + |gold|); NaN where there is no gold, higher is better.

    Chosen are the ``k`` highest scores (as many as ``gold``, by default), the fewest that hold a share ``mass``
    of their sum, or those of at least ``threshold`` times the highest. Of equal scores the earlier comes first.
    ``candidates`` are the positions to choose from (all of them).
    """
    if sum(rule is not None for rule in (k, mass, threshold)) > 1:
        raise ValueError("k, mass and threshold are three ways to choose: give one of them")
    if k is not None:
        check_at_least("k", k, 0, whole=True)
    if threshold is not None:
        check_number("threshold", threshold)
    scores = finite_scores(scores)
    gold = positions_in("gold", gold, len(scores))
    order = ranked(scores, candidates)
    sizes = scores[order]
    if mass is not None:
        k = reaching(torch.relu(sizes).tolist(), mass) if sizes[0] > 0 else 0
    if threshold is not None:
        k = int((sizes >= threshold * sizes[0]).sum()) if sizes[0] > 0 else 0
    chosen = set(order[: len(set(gold)) if k is None else k])
    return 2 * len(chosen & set(gold)) / (len(chosen) + len(set(gold))) if gold else nan


def evidence_mass(
    scores: Float[Tensor, "pos"], evidence: Positions, *, sign: Sign = "relu", candidates: Positions | None = None
) -> float:
    """The share of the candidates' scores that lies on the evidence; higher is better.

    In [0, 1], but for ``sign="none"``; without ``candidates`` of all scores.
    """
    scores = finite_scores(scores)
    evidence = positions_in("evidence", evidence, len(scores))
    counted = signed(scores, sign)
    positions = places(candidates, len(scores))
    whole = float(counted[positions].sum())
    return float(counted[sorted({*evidence} & {*positions})].sum()) / whole if whole > 0 else 0.0


def passes(scores: Float[Tensor, "pos"], gold: Positions, k: int = 5, *, candidates: Positions | None = None) -> float:
    """1 where one of the ``k`` highest scores is on a gold token, else 0; NaN where there is no gold to find."""
    check_at_least("k", k, 1, whole=True)
    scores = finite_scores(scores)
    evidence = {*positions_in("gold", gold, len(scores))} & {*places(candidates, len(scores))}
    return float(not evidence.isdisjoint(highest(scores, k, candidates))) if evidence else nan


def chance_of_passing(tokens: int, gold: int, k: int = 5) -> float:
    """The probability that a random order of this many tokens passes; NaN where there is no gold to find."""
    check_at_least("k", k, 1, whole=True)
    for name, count in (("tokens", tokens), ("gold", gold)):
        check_at_least(name, count, 0, whole=True)
    if gold > tokens:
        raise ValueError(f"gold={gold} must be from 0 to tokens={tokens}")
    chosen = min(k, tokens)
    return 1 - comb(tokens - gold, chosen) / comb(tokens, chosen) if gold else nan
