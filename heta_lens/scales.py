"""What is read off a prediction: how likely the target is, on one scale or another."""

from typing import Literal, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

Scale: TypeAlias = Literal["log_prob", "prob", "logit", "log_odds"]


def log_softmax(logits: Float[Tensor, "*batch vocab"]) -> Float[Tensor, "*batch vocab"]:
    """In float64, where the device has it: what is left of a sure prediction's ``1 - p`` drowns in float32."""
    return _exact(logits).log_softmax(-1).to(logits)


def _exact(logits: Float[Tensor, "*batch vocab"]) -> Float[Tensor, "*batch vocab"]:
    return logits if logits.device.type == "mps" else logits.double()


def on_scale(logits: Float[Tensor, "*batch vocab"], token: int, scale: Scale) -> Float[Tensor, "*batch"]:
    """How likely a token is."""
    if scale == "logit":
        return logits[..., token]
    exact = _exact(logits)  # and no log-probabilities of other tokens, which may be many
    if scale == "log_odds":  # exact for a sure thing too, whose 1 - p is lost
        others = exact.index_fill(-1, torch.tensor([token], device=exact.device), -torch.inf)
        return (exact[..., token] - others.logsumexp(-1)).to(logits)
    log_prob = (exact[..., token] - exact.logsumexp(-1)).to(logits)
    return log_prob.exp() if scale == "prob" else log_prob
