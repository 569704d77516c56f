"""Do the scores lie where the answer is known to come from?

Positions are places in ``scores``. Scores that do not say "for" are set to 0 first, unless told otherwise: ``sign`` is
``"relu"``, ``"abs"`` or ``"none"``.
"""

from collections.abc import Collection
from math import nan
from typing import Literal, TypeAlias, get_args

import torch
from jaxtyping import Float
from torch import Tensor

Positions: TypeAlias = Collection[int]
Sign: TypeAlias = Literal["relu", "abs", "none"]
Reading: TypeAlias = Literal["supervised", "model_selected", "segments", "thresholded_max"]
SIGNS = {"relu": torch.relu, "abs": torch.abs, "none": lambda scores: scores}


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
    if reading not in get_args(Reading):
        raise ValueError(f"reading={reading!r} is not one of {', '.join(get_args(Reading))}")
    if over not in (None, "segments", "context"):
        raise ValueError(f"over={over!r} is not segments or context")
    _check(scores, support, distractor, gold or ())
    if overlap := set(support) & set(distractor):
        raise ValueError(f"positions {sorted(overlap)} are in the support and in the distractor")
    if stray := set(gold or ()) - set(support):
        raise ValueError(f"gold positions {sorted(stray)} are not in the support")
    if reading == "supervised" and gold is None:
        raise ValueError("reading='supervised' needs gold positions: the tokens of the support that tell the answer")
    counted = _signed(scores, sign)
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
        return set(scores.argsort(descending=True, stable=True)[:k].tolist())
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

    Chosen are the ``k`` highest scores (as many as ``gold``, if nothing is said), the fewest that hold a share ``mass``
    of their sum, or those of at least ``threshold`` times the highest. Of equal scores the earlier comes first.
    ``candidates`` are the positions to choose from (all of them).
    """
    if sum(rule is not None for rule in (k, mass, threshold)) > 1:
        raise ValueError("k, mass and threshold are three ways to choose: give one of them")
    if mass is not None and not 0 < mass <= 1:
        raise ValueError(f"mass={mass} must be above 0 and at most 1")
    if k is not None and k < 0:
        raise ValueError(f"k={k} must be 0 or more")
    _check(scores, gold, candidates or ())
    pool = torch.tensor(sorted(set(range(len(scores)) if candidates is None else candidates)), dtype=torch.long)
    ranked = pool[scores[pool].argsort(descending=True, stable=True)]
    sizes = scores[ranked]
    if mass is not None:
        sums = torch.relu(sizes).cumsum(0)
        k = int((sums < mass * sums[-1]).sum()) + 1 if len(sums) and sums[-1] > 0 else 0
    if threshold is not None:
        k = int((sizes >= threshold * sizes[0]).sum()) if len(sizes) and sizes[0] > 0 else 0
    chosen = set(ranked[: len(set(gold)) if k is None else k].tolist())
    return 2 * len(chosen & set(gold)) / (len(chosen) + len(set(gold))) if gold else nan


def evidence_mass(scores: Float[Tensor, "pos"], evidence: Positions, *, sign: Sign = "relu") -> float:
    """The share of the scores that lies on the evidence, in [0, 1] but for ``sign="none"``; higher is better."""
    _check(scores, evidence)
    counted = _signed(scores, sign)
    whole = float(counted.sum())
    return float(counted[list(set(evidence))].sum()) / whole if whole > 0 else 0.0


def _signed(scores: Float[Tensor, "pos"], sign: Sign) -> Float[Tensor, "pos"]:
    if sign not in SIGNS:
        raise ValueError(f"sign={sign!r} is not one of {', '.join(SIGNS)}")
    return SIGNS[sign](scores)


def _check(scores: Float[Tensor, "pos"], *places: Positions) -> None:
    if not bool(scores.isfinite().all()):
        raise ValueError(f"scores[{int((~scores.isfinite()).nonzero()[0])}] is {float(scores[~scores.isfinite()][0])}")
    outside = sorted({at for some in places for at in some if not 0 <= at < len(scores)})
    if outside:
        raise ValueError(f"positions {outside} are not among the {len(scores)} scores")
