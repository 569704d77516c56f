"""Perturbation curves: the target's likelihood as tokens are taken away, or given back, in the order of their scores.

`curve` runs the model; what is read off curves is plain arithmetic on their values. Whether more or less is better
depends on what is drawn: of a likelihood (``kind="value"``) the area under MoRF should be small and that under LeRF
large; of how far it fell (``"drop"``) the other way round. ABPC is the same of both, and more is better.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Literal, TypeAlias

import numpy as np
from jaxtyping import Float
from scipy.integrate import trapezoid
from torch import Tensor

from heta_lens.coalitions import nothing_left, removed
from heta_lens.likelihood import ablated
from heta_lens.masking import Mask
from heta_lens.metrics.candidates import Positions, ordinary, rows_of
from heta_lens.metrics.checks import check_number, finite_scores
from heta_lens.metrics.ranking import Order, ranked
from heta_lens.options import check_choice
from heta_lens.prediction import Prediction
from heta_lens.scales import Scale
from heta_lens.turns import one_at_a_time

Steps: TypeAlias = Sequence[float] | Literal["tokens"]
Kind: TypeAlias = Literal["value", "drop"]

TENTHS = tuple(share / 10 for share in range(11))


@dataclass(frozen=True)
class Curve:
    """The target's likelihood after acting on these shares of the tokens; the first is 0."""

    shares: tuple[float, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if not len(self.shares) == len(self.values) >= 1:
            raise ValueError(f"a curve has a value for each share, not {len(self.values)} for {len(self.shares)}")
        for name, numbers in (("shares", self.shares), ("values", self.values)):
            for place, number in enumerate(numbers):
                if not isfinite(number):
                    raise ValueError(f"{name}[{place}] of the curve is {number}")


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
    """The likelihood when more and more tokens are gone; with ``insert``, when more and more are back.

    - ``order``: tokens with the highest scores first (``morf``) or the lowest (``lerf``); equal ones as they stand
    - ``steps``: shares of the tokens, of which the whole number below counts, from 0 up; or ``tokens``, one at a time
    - ``ablate``, ``mask``: what it is to be gone: masked, and by what, or removed, so that the rest moves together
    - ``scale``: what is drawn, the target's ``prob``, ``log_prob``, ``logit`` or ``log_odds``
    - ``candidates``: positions that are touched at all; None: all but special tokens
    """
    check_choice("order", order, ("morf", "lerf"))
    check_choice("ablate", ablate, ("mask", "remove"))
    scores = finite_scores(scores, len(prediction))
    order_of = ranked(scores, ordinary(prediction) if candidates is None else candidates, order)
    shares, counts = counted(steps, len(order_of))
    gone = rows_of([order_of[count:] if insert else order_of[:count] for count in counts], len(prediction))
    batches, done = prediction.prompt.batches("auto", len(prediction)), lambda _: None
    with prediction.running():
        if ablate == "remove":
            values = removed(prediction, ~gone, nothing_left(prediction), scale, batches, done)
        else:
            values = ablated(prediction, ~gone, prediction.mask_vector(mask), scale, batches, done)
    return Curve(shares, tuple(values.tolist()))


def counted(steps: Steps, tokens: int) -> tuple[tuple[float, ...], list[int]]:
    """Shares, and how many tokens they are."""
    if steps == "tokens":
        return tuple(count / max(1, tokens) for count in range(tokens + 1)), [*range(tokens + 1)]
    shares = tuple(float(share) for share in steps)
    for share in shares:
        check_number("a share of steps", share)
    if shares[:1] != (0.0,) or list(shares) != sorted(shares) or not shares[-1] <= 1 or len(shares) < 2:
        raise ValueError(f"steps={steps!r} must be shares from 0 up to at most 1, or 'tokens'")
    return shares, [int(share * tokens + 1e-9) for share in shares]  # .3 of 10 is 3, whatever floats say


# ------------------------------------------------------------------------------------------------- reading them off
def aopc(drawn: Curve, *, insert: bool = False, skip_first: bool = False) -> float:
    """How far the likelihood fell on average (with ``insert``: rose) from where the curve began; more is better.

    ``skip_first`` leaves the beginning itself, which is always 0, out of the mean (ERASER).
    """
    fallen = drawn.values[0] - np.array(drawn.values)[int(skip_first) :]
    return float(-fallen.mean() if insert else fallen.mean())


def area(drawn: Curve, kind: Kind = "value") -> float:
    """Under the curve, by trapezoids; ``drop``, of how far it fell."""
    check_choice("kind", kind, ("value", "drop"))
    values = np.array(drawn.values)
    return float(trapezoid(values if kind == "value" else values[0] - values, drawn.shares))


def abpc(morf: Curve, lerf: Curve) -> float:
    """The area between the two curves: how much longer the likelihood lasts when the least relevant go first."""
    return area(lerf) - area(morf)
