"""Perturbation curves: the target's likelihood while tokens are removed, or restored, in the order of the scores.

`curve` runs the model; the areas are plain arithmetic on its values. Of a likelihood (``kind="value"``), a good order
has a small area under MoRF and a large area under LeRF; of the fall of the likelihood (``"drop"``), the reverse. ABPC
is the same for the two kinds, and more is better.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float
from scipy.integrate import trapezoid
from torch import Tensor

from heta_lens._util.numerics import token_count
from heta_lens._util.options import check_choice
from heta_lens.metrics.evidence import Order, ranked
from heta_lens.metrics.scores import Positions, finite_scores, ordinary, rows_of
from heta_lens.model.lock import one_at_a_time
from heta_lens.prediction.masking import ablated, mask_vector
from heta_lens.prediction.prediction import Prediction

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
    batches = prediction.batches("auto")
    with prediction.running():
        values = ablated(prediction, ~gone, mask_vector(prediction, "zero"), "prob", batches)
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
