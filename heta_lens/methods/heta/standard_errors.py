"""The standard error of a score, from the spread of its probes."""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from heta_lens._util.numerics import Samples


def standard_error(
    samples: Samples, score: Callable[[Float[Tensor, "pos"]], Float[Tensor, "pos"]]
) -> Float[Tensor, "pos"] | None:
    """Return the standard error of ``score(mean of the samples)`` by the delta method; None without two samples.

    Tokens with fewer than two samples have NaN. The function carries each sample through the score's derivative at the
    mean, which accounts for samples that tokens share or that the score divides by their sum.
    """
    if not (samples.counts > 1).any():
        return None
    moved = torch.stack(_derivatives(score, samples.mean, samples.deviations))
    return moved.square().sum(0).sqrt().where(samples.counts > 1, math.nan)


def _derivatives(
    score: Callable[[Tensor], Tensor], at: Float[Tensor, "pos"], directions: Float[Tensor, "sample pos"]
) -> list[Float[Tensor, "pos"]]:
    """Return the derivatives of the score along directions, by a second backward pass through the first."""
    with torch.enable_grad():
        at = at.detach().requires_grad_()
        scores = score(at)
        weights = torch.zeros_like(scores, requires_grad=True)
        (gradient,) = torch.autograd.grad(scores, at, weights, create_graph=True)
        return [torch.autograd.grad(gradient, weights, along, retain_graph=True)[0] for along in directions]
