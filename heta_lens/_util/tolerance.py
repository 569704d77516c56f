"""How far two runs of the same thing may be apart through rounding."""

import torch
from torch import Tensor

LEAST_TOLERANCE = 1e-5  # some norms compute in float32 even inside a float64 model


def tolerance(*tensors: Tensor) -> float:
    """A relative error of half the digits that the least precise of these tensors' dtypes holds."""
    return max(LEAST_TOLERANCE, *(torch.finfo(tensor.dtype).eps ** 0.5 for tensor in tensors))


def differences(now: Tensor, then: Tensor) -> Tensor:
    exact = torch.promote_types(now.dtype, then.dtype)
    return (now.to(exact) - then.to(now.device, exact)).abs()
