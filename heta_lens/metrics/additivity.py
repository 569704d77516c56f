"""Do scores add up to what their tokens do? In nats, of any set of tokens, and of all of them."""

from dataclasses import dataclass
from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor

from heta_lens import faithfulness
from heta_lens.masking import Mask
from heta_lens.metrics.checks import finite_scores
from heta_lens.options import check_at_least
from heta_lens.prediction import Prediction
from heta_lens.text import brief
from heta_lens.turns import one_at_a_time


@dataclass(frozen=True, eq=False)
class Drops:
    """What the target loses, in nats, when each of some sets of tokens is masked, and when all tokens are.

    It is the same for all scores: measured once, it can judge many.
    """

    def __repr__(self) -> str:
        return brief(self)

    sets: Bool[Tensor, "subset pos"]
    each: Float[Tensor, "subset"]
    whole: float
    seed: int

    @classmethod
    @one_at_a_time("prediction")
    def of(cls, prediction: Prediction, *, mask: Mask = "zero", seed: int = 0) -> "Drops":
        """Of every token, and of 32 random sets."""
        check_at_least("seed", seed, 0, whole=True)
        sets = faithfulness.subsets(seed, len(prediction))
        with prediction.running():
            each = faithfulness.drops(prediction, mask, sets, "auto", lambda _: None)
            (whole,) = faithfulness.whole_drops([prediction], mask, lambda _: None)
        return cls(sets, each.cpu().double(), whole, seed)


def faithfulness_error(drops: Drops, scores: Float[Tensor, "pos"]) -> dict[str, Any]:
    """The mean of ``|g(X) - g(X without R) - Σ_R scores|`` over sets R; less is better.

    ``raw``, of the scores as they are; ``calibrated``, with the one factor for them all, at least 0, that fits half of
    the sets best, judged on the other half; and ``nothing``, what is left for scores that are all 0.
    """
    scores = finite_scores(scores, drops.sets.shape[1]).detach().cpu().double()
    return faithfulness.faithfulness(drops.each, drops.sets.to(scores) @ scores, drops.seed)


def additivity_gap(drops: Drops, scores: Float[Tensor, "pos"]) -> float:
    """``|Σ scores - (g(X) - g(X with everything masked))|``; at least 0, less is better."""
    return abs(float(finite_scores(scores, drops.sets.shape[1]).detach().double().sum()) - drops.whole)
