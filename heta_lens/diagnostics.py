"""What a score is made of and how sure it is: standard errors, shares of its parts, the mass on the sink."""

import math
import sys
import warnings
from collections.abc import Callable, Mapping
from contextvars import ContextVar, copy_context
from typing import TypeVar

import torch
from jaxtyping import Float
from scipy.stats import spearmanr
from torch import Tensor

from heta_lens.samples import Samples

T = TypeVar("T")


def standard_error(
    samples: Samples, score: Callable[[Float[Tensor, "pos"]], Float[Tensor, "pos"]]
) -> Float[Tensor, "pos"] | None:
    """Of ``score(mean of the samples)``, by the delta method; NaN for tokens with less than two, None if all have.

    Each sample is carried through the score's derivative at the mean, so that samples which are shared between tokens,
    or divided by their sum, are accounted for.
    """
    if not (samples.counts > 1).any():
        return None
    moved = [_derivative(score, samples.mean, deviation) for deviation in samples.deviations]
    return torch.stack(moved).square().sum(0).sqrt().where(samples.counts > 1, math.nan)


def _derivative(score: Callable[[Tensor], Tensor], at: Tensor, along: Tensor) -> Tensor:
    derivative = torch.autograd.functional.jvp(score, at, along)[1]
    assert isinstance(derivative, Tensor)
    return derivative


def shares(terms: Mapping[str, Float[Tensor, "pos"]]) -> dict[str, float]:
    """How much of the whole score comes from each of its terms."""
    totals = {name: float(term.abs().sum()) for name, term in terms.items()}
    whole = sum(totals.values())
    return {name: total / whole if whole else math.nan for name, total in totals.items()}


def sink_mass(scores: Float[Tensor, "pos"]) -> float:
    """The share of the score that sits on the first token, where attention goes when it has nowhere to go."""
    whole = float(scores.abs().sum())
    return float(scores[0].abs()) / whole if whole else math.nan


def agreement(scores: Float[Tensor, "pos"], others: Float[Tensor, "pos"]) -> dict[str, float]:
    """Spearman's rank correlation, and the L1 distance of the two once each sums to 1."""
    gap = scores / scores.abs().sum() - others / others.abs().sum()
    return {"rank_correlation": rank_correlation(scores, others), "l1": float(gap.abs().sum())}


def rank_correlation(one: Float[Tensor, "pos"], other: Float[Tensor, "pos"]) -> float:
    """Spearman's; NaN where one of them does not tell tokens apart."""
    if any(bool((values == values[0]).all()) for values in (one, other)):
        return math.nan
    return float(spearmanr(one.cpu(), other.cpu())[0])  # type: ignore[arg-type]


def weak(share: Mapping[str, float], least: float = 0.01) -> list[str]:
    """Parts that make up less than ``least`` of the score, so that it says next to nothing about them."""
    return [name for name, part in share.items() if part < least]


_quiet: ContextVar[bool] = ContextVar("quiet", default=False)


def quietly(function: Callable[[], T]) -> T:
    """Without warnings of `warn`, in this call alone: the filters of `warnings` are those of all threads."""
    context = copy_context()
    context.run(_quiet.set, True)
    return context.run(function)


def warn(message: str) -> None:
    """A warning that names the line which called heta_lens, and so is shown once for each such line."""
    if _quiet.get():
        return
    level = 1
    while sys._getframe(level).f_globals.get("__name__", "").startswith("heta_lens."):
        level += 1
    warnings.warn(message, stacklevel=level + 1)
