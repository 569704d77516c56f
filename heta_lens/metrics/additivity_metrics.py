"""Additivity: whether scores sum to the effect of removing their tokens, in nats; of any set of tokens, or of all."""

from dataclasses import dataclass
from typing import Any

from jaxtyping import Bool, Float, Int
from torch import Tensor

from heta_lens._util.options import check_at_least
from heta_lens._util.short_repr import short_repr
from heta_lens.methods.heta import additivity
from heta_lens.metrics.score_checks import finite_scores
from heta_lens.model.locking import one_at_a_time
from heta_lens.prediction.masking import Mask
from heta_lens.prediction.prediction import Prediction, prompt_generator


@dataclass(frozen=True, eq=False)
class Drops:
    """The target's loss, in nats, when each of some sets of tokens is masked, and when all tokens are.

    It does not depend on scores: measured once, it serves to evaluate many.
    """

    def __repr__(self) -> str:
        return short_repr(self)

    sets: Bool[Tensor, "subset pos"]
    each: Float[Tensor, "subset"]
    whole: float
    order: Int[Tensor, "subset"]

    @classmethod
    @one_at_a_time("prediction")
    def of(cls, prediction: Prediction, *, mask: Mask = "zero", seed: int = 0) -> "Drops":
        """Every single token and 32 random sets."""
        check_at_least("seed", seed, 0, whole=True)
        generator = prompt_generator(seed, prediction.ids)
        sets = additivity.subsets(generator, len(prediction))
        with prediction.running():
            each = additivity.drops(prediction, mask, sets, "auto", lambda _: None)
            (whole,) = additivity.whole_drops([prediction], mask, lambda _: None)
        return cls(sets, each.cpu().double(), whole, additivity.shuffled(generator, sets))


def faithfulness_error(drops: Drops, scores: Float[Tensor, "pos"]) -> dict[str, Any]:
    """The mean of ``|g(X) - g(X without R) - Σ_R scores|`` over sets R; less is better.

    ``raw``, of the scores as they are; ``calibrated``, with one common factor, at least 0, that fits half of the sets
    best, evaluated on the other half; and ``nothing``, the error of scores that are all 0.
    """
    scores = finite_scores(scores, drops.sets.shape[1]).detach().cpu().double()
    return additivity.faithfulness(drops.each, drops.sets.to(scores) @ scores, drops.order)


def additivity_gap(drops: Drops, scores: Float[Tensor, "pos"]) -> float:
    """``|Σ scores - (g(X) - g(X with everything masked))|``; at least 0, less is better."""
    return abs(float(finite_scores(scores, drops.sets.shape[1]).detach().double().sum()) - drops.whole)
