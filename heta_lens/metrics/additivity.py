"""Do scores add up to what their tokens do? In nats, of any set of tokens, and of all of them."""

from typing import Any

from jaxtyping import Float
from torch import Tensor

from heta_lens.faithfulness import drops, faithfulness, subsets, whole_drops
from heta_lens.masking import Mask
from heta_lens.prediction import Prediction


def faithfulness_error(
    prediction: Prediction, scores: Float[Tensor, "pos"], *, mask: Mask = "zero", seed: int = 0
) -> dict[str, Any]:
    """The mean of ``|g(X) - g(X without R) - Σ_R scores|`` over every token and 32 random sets R; less is better.

    ``raw``, of the scores as they are; ``calibrated``, with the one factor for them all, at least 0, that fits half of
    the sets best, judged on the other half; and ``nothing``, what is left for scores that are all 0.
    """
    sets = subsets(seed, len(prediction))
    with prediction.running():
        dropped = drops(prediction, mask, sets, "auto", lambda _: None)
    scores = scores.cpu().double()
    return faithfulness(dropped.cpu().double(), sets.to(scores) @ scores, seed)


def additivity_gap(prediction: Prediction, scores: Float[Tensor, "pos"], *, mask: Mask = "zero") -> float:
    """``|Σ scores - (g(X) - g(X with everything masked))|``; at least 0, less is better."""
    with prediction.running():
        (dropped,) = whole_drops([prediction], mask, lambda _: None)
    return abs(float(scores.double().sum()) - dropped)
