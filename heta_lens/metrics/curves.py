"""Perturbation curves: the target's likelihood while tokens are removed, or restored, in the order of the scores.

`curve` runs the model; the areas are plain arithmetic on its values. Of a likelihood (``kind="value"``), a good order
has a small area under MoRF and a large area under LeRF; of the fall of the likelihood (``"drop"``), the reverse. ABPC
is the same for the two kinds, and more is better.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Literal, TypeAlias

import numpy as np
from jaxtyping import Float
from scipy.integrate import trapezoid
from torch import Tensor

from heta_lens._util.numerics import token_count
from heta_lens._util.options import check_choice
from heta_lens.metrics.evidence import Order, ranked
from heta_lens.metrics.scores import Positions, finite_scores, ordinary, rows_of
from heta_lens.model.adapter import Mask
from heta_lens.model.lock import one_at_a_time
from heta_lens.prediction.coalitions import removed
from heta_lens.prediction.masking import ablated
from heta_lens.prediction.prediction import Prediction
from heta_lens.prediction.target import Scale, check_scale

Steps: TypeAlias = Sequence[float] | Literal["tokens"]

TENTHS = tuple(share / 10 for share in range(11))


@dataclass(frozen=True)
class Curve:
    """The target's likelihood after the removal (or return) of shares of the tokens; the first share is 0."""

    shares: tuple[float, ...]
    values: tuple[float, ...]


@one_at_a_time("prediction")
def curve(
    prediction: Prediction,
    scores: Float[Tensor, "pos"],
    *,
    order: Order = "morf",
    insert: bool = False,
    steps: Steps = TENTHS,
    ablate: Literal["mask", "remove"] = "mask",
    mask: Mask = "zero",
    scale: Scale = "prob",
    candidates: Positions | None = None,
) -> Curve:
    """Measure the target's likelihood while more and more tokens are removed; with ``insert``, restored.

    - ``order``: highest scores first (``morf``) or lowest first (``lerf``); equal scores in the order of the text
    - ``steps``: shares of the tokens from 0 up, rounded down to whole tokens; ``tokens`` goes token by token
    - ``ablate``, ``mask``: tokens are masked by ``mask``, or removed, so that the tokens after them move up
    - ``scale``: the target's ``prob``, ``log_prob``, ``logit`` or ``log_odds``
    - ``candidates``: positions that may be removed; None stands for every token that is not special
    """
    check_choice("order", order, ("morf", "lerf"))
    check_choice("ablate", ablate, ("mask", "remove"))
    check_scale(prediction.target, scale, "prob")
    scores = finite_scores(scores, len(prediction))
    order_of = ranked(scores, ordinary(prediction) if candidates is None else candidates, order)
    shares, counts = counted(steps, len(order_of))
    gone = rows_of([order_of[count:] if insert else order_of[:count] for count in counts], len(prediction))
    batches = prediction.prompt.batches("auto", len(prediction))
    with prediction.running():
        if ablate == "remove":
            values = removed(prediction, ~gone, partial(prediction.read, scale=scale), batches)
        else:
            values = ablated(prediction, ~gone, prediction.mask_vector(mask), scale, batches)
    return Curve(shares, tuple(values.tolist()))


def counted(steps: Steps, tokens: int) -> tuple[tuple[float, ...], list[int]]:
    """Return the shares of a curve, and the number of tokens of every share."""
    if steps == "tokens":
        return tuple(count / max(1, tokens) for count in range(tokens + 1)), [*range(tokens + 1)]
    shares = tuple(float(share) for share in steps)
    if len(shares) < 2 or shares[0] or not all(first <= second <= 1 for first, second in pairwise(shares)):
        raise ValueError(f"steps={steps!r} must be shares from 0 up to at most 1, or 'tokens'")
    return shares, [token_count(share, tokens) for share in shares]


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
