"""How far two runs of the same thing may be apart through rounding."""

from typing import NamedTuple

import torch
from torch import Tensor

LEAST_TOLERANCE = 1e-5  # some norms compute in float32 even inside a float64 model


def tolerance(*dtypes: torch.dtype) -> float:
    """A relative error of half the digits that the least precise of these dtypes holds."""
    return max(LEAST_TOLERANCE, *(torch.finfo(dtype).eps ** 0.5 for dtype in dtypes))


class Distance(NamedTuple):
    """The largest difference relative to the largest entry, and how much of it may be rounding."""

    relative: float
    allowed: float


def distance(now: Tensor, then: Tensor, least: float = 0.0) -> Distance:
    """Of two tensors of one shape, at ``least`` so much of it rounding; entries of -inf only equal themselves."""
    here, there = (tensor > -torch.inf for tensor in (now, then))
    allowed = max(tolerance(now.dtype, then.dtype), least)
    if not torch.equal(here, there.to(here.device)):
        return Distance(torch.inf, allowed)
    scale = float(then[there].abs().max()) or 1.0
    return Distance(float(differences(now[here], then[there]).max()) / scale, allowed)


def differences(now: Tensor, then: Tensor) -> Tensor:
    exact = torch.promote_types(now.dtype, then.dtype)
    return (now.to(exact) - then.to(now.device, exact)).abs()
