"""Divergences between next-token distributions, given as log-probabilities, in nats."""

from collections.abc import Callable
from typing import Literal, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

Divergence: TypeAlias = Callable[[Tensor, Tensor], Tensor]
Direction: TypeAlias = Literal["orig_masked", "masked_orig", "js"]


def kl(log_p: Float[Tensor, "*#batch vocab"], log_q: Float[Tensor, "*#batch vocab"]) -> Float[Tensor, "*#batch"]:
    """KL(P ‖ Q) as a sum of terms ``p log(p/q) - p + q``, none of which is negative.

    The added ``q - p`` sums to nothing for distributions, but without it rounding makes small divergences negative.
    """
    gap = log_p - log_q
    p = log_p.exp()
    # δ + e^-δ - 1 loses no digits near 0 when written with expm1; far from 0 its e^-δ may overflow before p tames it.
    near = p * (gap + torch.expm1(-gap))
    far = p * gap - p + log_q.exp()
    terms = torch.where(gap.abs() < 1, near, far)
    return torch.where(p > 0, terms, log_q.exp()).sum(-1)


def js(log_p: Float[Tensor, "*#batch vocab"], log_q: Float[Tensor, "*#batch vocab"]) -> Float[Tensor, "*#batch"]:
    """Jensen–Shannon divergence: the mean KL to the even mixture; symmetric, at most log 2."""
    high, low = torch.maximum(log_p, log_q), torch.minimum(log_p, log_q)
    # log of the mean of e^high and e^low, which is exactly high where they are equal
    middle = torch.where(high.isinf(), high, high + torch.log1p(torch.expm1(low - high) / 2))
    return (kl(log_p, middle) + kl(log_q, middle)) / 2


def reverse_kl(
    log_p: Float[Tensor, "*#batch vocab"], log_q: Float[Tensor, "*#batch vocab"]
) -> Float[Tensor, "*#batch"]:
    """KL(Q ‖ P)."""
    return kl(log_q, log_p)


DIVERGENCES: dict[Direction, Divergence] = {"orig_masked": kl, "masked_orig": reverse_kl, "js": js}
