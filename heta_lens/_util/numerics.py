"""Numerical helpers: finiteness, tolerances, divergences, intervals, and rounded shares."""

from collections.abc import Callable
from math import ceil, floor
from operator import attrgetter
from typing import Literal, TypeAlias

import torch
from jaxtyping import Float
from scipy.special import stdtrit
from torch import Tensor


def check_finite(values: Float[Tensor, "..."], message: Callable[[int, float], str], axis: int = 0) -> None:
    """Refuse a NaN or an infinity, with a message from the place along an axis and the value."""
    bad = ~values.isfinite()
    if bad.any():
        raise ValueError(message(int(bad.nonzero()[0, axis]), float(values[bad][0])))


LEAST_TOLERANCE = 1e-5  # several norms compute in float32 even inside a float64 model


def tolerance(*dtypes: torch.dtype) -> float:
    """Return the relative error allowed for rounding: half the digits of the least precise dtype."""
    return max(LEAST_TOLERANCE, max(map(torch.finfo, dtypes), key=attrgetter("eps")).eps ** 0.5)


def distance(now: Tensor, then: Tensor, least: float = 0.0) -> tuple[float, float]:
    """Return the largest difference over the largest entry, and how much rounding may take, at ``least`` so much.

    -inf equals -inf only.
    """
    allowed = max(tolerance(now.dtype, then.dtype), least)
    if now.shape != then.shape:
        return torch.inf, allowed
    largest, off = float(then.abs().max()), float(differences(now, then).max())
    if largest < torch.inf and off < torch.inf:
        return off / (largest or 1.0), allowed
    here, there = now > -torch.inf, then > -torch.inf
    if not torch.equal(here, there.to(here.device)):
        return torch.inf, allowed
    scale = float(then[there].abs().max()) or 1.0
    return float(differences(now[here], then[there]).max()) / scale, allowed


def differences(now: Tensor, then: Tensor) -> Tensor:
    exact = torch.promote_types(now.dtype, then.dtype)
    return (now.to(exact) - then.to(now.device, exact)).abs()


Divergence: TypeAlias = Callable[[Tensor, Tensor], Tensor]
Direction: TypeAlias = Literal["orig_masked", "masked_orig", "js"]


def kl(log_p: Float[Tensor, "*#batch vocab"], log_q: Float[Tensor, "*#batch vocab"]) -> Float[Tensor, "*#batch"]:
    """Compute KL(P ‖ Q) as a sum of non-negative terms ``p log(p/q) - p + q``.

    The added ``q - p`` sums to 0 for distributions, and keeps small divergences from turning negative by rounding.
    """
    gap = log_p - log_q
    p = log_p.exp()
    # δ + e^-δ - 1 loses no digits near 0 when written with expm1; far from 0 its e^-δ may overflow before p tames it.
    near = p * (gap + torch.expm1(-gap))
    far = p * gap - p + log_q.exp()
    terms = torch.where(gap.abs() < 1, near, far)
    return torch.where(p > 0, terms, log_q.exp()).sum(-1)


def js(log_p: Float[Tensor, "*#batch vocab"], log_q: Float[Tensor, "*#batch vocab"]) -> Float[Tensor, "*#batch"]:
    """Compute the Jensen–Shannon divergence, the mean KL to the even mixture; symmetric, at most log 2."""
    high, low = torch.maximum(log_p, log_q), torch.minimum(log_p, log_q)
    # log of the mean of e^high and e^low, exactly high if the two are equal
    middle = torch.where(high.isinf(), high, high + torch.log1p(torch.expm1(low - high) / 2))
    return (kl(log_p, middle) + kl(log_q, middle)) / 2


DIVERGENCES: dict[Direction, Divergence] = {
    "orig_masked": kl,
    "masked_orig": lambda log_p, log_q: kl(log_q, log_p),
    "js": js,
}


def powered_ends(
    scores: Float[Tensor, "*#pos"],
    mean: Float[Tensor, "*#pos"],
    reach: Float[Tensor, "*#pos"],
    power: float,
) -> tuple[Float[Tensor, "*pos"], Float[Tensor, "*pos"]]:
    """Transform ``mean ± reach``, floored at 0, to the ends of scores with the factor ``mean ** power``."""
    factors = [((mean + end).clamp(min=0) / mean) ** power for end in (-reach, reach)]
    one, other = (torch.where(scores == 0, 0, scores * factor) for factor in factors)
    return torch.minimum(one, other), torch.maximum(one, other)


def student_t(count: int, confidence: float = 0.95) -> float:
    """Return Student's t for the mean of ``count`` samples; 0 for a single sample."""
    return float(stdtrit(count - 1, (1 + confidence) / 2)) if count > 1 else 0.0


Rounding = Literal["down", "nearest", "up"]
TOLERANCE = 1e-9  # error of a product of floats: 0.3 of 10 tokens are 3


def token_count(share: float, tokens: int, rounding: Rounding = "down", *, least: int = 0) -> int:
    """Return the number of tokens in a share of ``tokens``, and at ``least`` the given number.

    Curves and hard NC/NS round down, a kept context rounds up, and the strides of windows round to the nearest number
    (halves to even).
    """
    exact = share * tokens
    counts = {"down": floor(exact + TOLERANCE), "nearest": round(exact), "up": ceil(exact - TOLERANCE)}
    return max(least, counts[rounding])
