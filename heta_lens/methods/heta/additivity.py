"""How well scores add up: the target's drop when a set of tokens is masked, against the sum of their scores."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from einops import repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor

from heta_lens._util.work_counting import Done
from heta_lens.prediction.masking import Mask
from heta_lens.prediction.prediction import Prediction
from heta_lens.prediction.readout import ablated

SUBSETS = 32  # random ones, beside every single token


def subsets(generator: np.random.Generator, length: int, count: int = SUBSETS) -> Bool[Tensor, "subset pos"]:
    """Every single position, and ``count`` random sets of 1 to ``length`` of them, all sizes equally likely."""
    chosen = torch.zeros(count, length, dtype=torch.bool)
    for row in chosen:
        size = generator.integers(1, length, endpoint=True)
        row[generator.choice(length, size, replace=False)] = True
    return torch.cat([torch.eye(length, dtype=torch.bool), chosen])


def drops(
    prediction: Prediction,
    mask: Mask,
    members: Bool[Tensor, "subset pos"],
    batch: int | Literal["auto"],
    done: Done,
) -> Float[Tensor, "subset"]:
    """``g(X) - g(X with these tokens masked)``, for each set of them."""
    batches = prediction.prompt.batches(batch, len(prediction))
    left = ablated(prediction, ~members, prediction.mask_vector(mask), "log_prob", batches, done)
    return prediction.value - left


@torch.no_grad()
def whole_drops(targets: Sequence[Prediction], mask: Mask, done: Done) -> list[float]:
    """How much g drops when all of a target's context is masked: what its scores would sum to, were they additive.

    One run for all of them: they are of one prompt, the longest context last, and share the mask.
    """
    longest = targets[-1]
    logits = longest.prompt.logits_from(0, read=[len(target) - 1 for target in targets])
    masked = logits(repeat(longest.mask_vector(mask), "d -> 1 pos d", pos=len(longest)))[0]
    done(1)
    return [float(target.value - target.objective(after)) for target, after in zip(targets, masked, strict=True)]


def shuffled(generator: np.random.Generator, sets: Bool[Tensor, "subset pos"]) -> Int[Tensor, "subset"]:
    """Draw the order that splits sets into the half that a scale is fitted to and the half that evaluates it."""
    return torch.from_numpy(generator.permutation(len(sets)))


def faithfulness(
    dropped: Float[Tensor, "subset"], sums: Float[Tensor, "subset"], order: Int[Tensor, "subset"]
) -> dict[str, Any]:
    """The mean of ``|drop - sum of scores|``, as the scores are (``raw``) and with one scale for them (``calibrated``).

    The scale, which is not negative, is fitted to the first half of the sets in this order and evaluated on the other.
    ``nothing`` is that error for scores that are all 0.
    """
    fitted, held_out = order[: len(order) // 2], order[len(order) // 2 :]
    scale = best_scale(dropped[fitted], sums[fitted])
    calibrated = (dropped - scale * sums)[held_out].abs()
    return {
        "raw": float((dropped - sums).abs().mean()),
        "calibrated": float(calibrated.mean()),
        "calibrated_standard_error": float(calibrated.std() / len(held_out) ** 0.5),
        "nothing": float(dropped[held_out].abs().mean()),
        "scale": scale,
        "subsets": len(dropped),
    }


def best_scale(dropped: Float[Tensor, "subset"], sums: Float[Tensor, "subset"]) -> float:
    """The factor ≥ 0 that brings the sums nearest to the drops, in squares."""
    square = float(sums @ sums)
    return max(0.0, float(dropped @ sums) / square) if square else 0.0


def envelope(information: Float[Tensor, "pos"], drop: Float[Tensor, "pos"]) -> tuple[Float[Tensor, "pos"], float]:
    """``max(0, Δ)`` of each token's drop Δ, and the share of tokens whose information it bounds, as assumed."""
    gain = drop.clamp(min=0)
    return gain, int((information <= gain).sum()) / len(gain)
