"""Distances between predictions, and NC and NS as ratios of them."""

from collections.abc import Callable
from math import nan
from typing import Literal, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from heta_lens._util.divergence import kl
from heta_lens._util.target_kinds import Target, kind_of, sides
from heta_lens.prediction.readout import joint_logit

Distance: TypeAlias = Literal["root", "hellinger", "hellinger_sq", "target_prob", "kl"]
Apart: TypeAlias = Callable[[Tensor, Tensor, Target], Tensor]  # of log-probabilities after and before, and the target


def squared_roots(log_p: Float[Tensor, "run vocab"], log_q: Float[Tensor, "vocab"]) -> Float[Tensor, "run"]:
    """``Σ (√p - √q)²``"""
    return ((log_p / 2).exp() - (log_q / 2).exp()).square().sum(-1)


def fallen(log_p: Float[Tensor, "run vocab"], log_q: Float[Tensor, "vocab"], target: Target) -> Float[Tensor, "run"]:
    if (kind := kind_of(target)) in ("contrast", "function"):
        raise ValueError(
            f"distance='target_prob' needs a token or a set of tokens, not a {kind}: choose another distance"
        )
    (tokens,) = sides(target)
    return (joint_logit(log_q, tokens).exp() - joint_logit(log_p, tokens).exp()).clamp(min=0)


DISTANCES: dict[str, Apart] = {
    "root": lambda log_p, log_q, _: squared_roots(log_p, log_q) / 2**0.5,
    "hellinger": lambda log_p, log_q, _: (squared_roots(log_p, log_q) / 2).sqrt(),
    "hellinger_sq": lambda log_p, log_q, _: squared_roots(log_p, log_q) / 2,
    "target_prob": fallen,
    "kl": lambda log_p, log_q, _: kl(log_q, log_p),
}


def ratios(
    comprehensive: Float[Tensor, "row"], sufficient: Float[Tensor, "row"], nothing: float
) -> tuple[Float[Tensor, "row"], Float[Tensor, "row"]]:
    """NC and NS, as parts of the distance at which nothing is left; NaN where that is 0."""
    if not nothing > 0:
        return torch.full_like(comprehensive, nan), torch.full_like(sufficient, nan)
    return comprehensive / nothing, (nothing - sufficient).clamp(min=0) / nothing
