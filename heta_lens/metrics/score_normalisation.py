"""Scores made comparable: the treatment of their sign, and their scale, before they are evaluated."""

from typing import Literal, NamedTuple, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from heta_lens._util.options import check_choice
from heta_lens.metrics.score_checks import finite_scores

Sign: TypeAlias = Literal["relu", "abs", "none"]
Norm: TypeAlias = Literal["none", "sum", "softmax", "max", "minmax", "sigmoid", "zscore"]

SIGNS = {"relu": torch.relu, "abs": torch.abs, "none": lambda scores: scores}


class Normalised(NamedTuple):
    """``degenerate``: all scores are equal, or none is above 0, so that all tokens count the same."""

    values: Float[Tensor, "pos"]
    degenerate: bool


def signed(scores: Float[Tensor, "pos"], sign: Sign) -> Float[Tensor, "pos"]:
    """Negative scores are set to 0 (``relu``), taken by size (``abs``), or left as they are."""
    check_choice("sign", sign, SIGNS)
    return SIGNS[sign](scores)


def normalised(scores: Float[Tensor, "pos"], sign: Sign = "relu", norm: Norm = "sum") -> Normalised:
    """In float64. ``sum`` divides by the sum, ``max`` by the largest; ``minmax`` stretches from 0 to 1, ``zscore`` to
    mean 0 and deviation 1; ``softmax`` and ``sigmoid`` are these functions.
    """
    check_choice("norm", norm, NORMS)
    values = signed(finite_scores(scores).double(), sign)
    return NORMS[norm](values)


def as_they_are(values: Float[Tensor, "pos"]) -> Normalised:
    return Normalised(values, _flat(values))


def by_sum(values: Float[Tensor, "pos"]) -> Normalised:
    if values.sum() <= 0:
        return Normalised(torch.full_like(values, 1 / len(values)), True)
    return Normalised(values / values.sum(), _flat(values))


def by_maximum(values: Float[Tensor, "pos"]) -> Normalised:
    if values.max() <= 0:
        return Normalised(torch.ones_like(values), True)
    return Normalised(values / values.max(), _flat(values))


def stretched(values: Float[Tensor, "pos"]) -> Normalised:
    if _flat(values):
        return Normalised(torch.full_like(values, 0.5), True)
    return Normalised((values - values.min()) / (values.max() - values.min()), False)


def standardised(values: Float[Tensor, "pos"]) -> Normalised:
    if _flat(values):
        return Normalised(torch.zeros_like(values), True)
    return Normalised((values - values.mean()) / values.std(correction=0), False)


def by_softmax(values: Float[Tensor, "pos"]) -> Normalised:
    return Normalised(values.softmax(0), _flat(values))


def by_sigmoid(values: Float[Tensor, "pos"]) -> Normalised:
    return Normalised(values.sigmoid(), _flat(values))


NORMS = {
    "none": as_they_are,
    "sum": by_sum,
    "softmax": by_softmax,
    "max": by_maximum,
    "minmax": stretched,
    "sigmoid": by_sigmoid,
    "zscore": standardised,
}


def with_mean(values: Float[Tensor, "pos"], mean: float) -> Normalised:
    """``min(1, c · value)``, with the c for which these average to ``mean``.

    Values of 0 stay 0 unless all the others are at 1 already: then they share what is missing.
    """
    if not 0 < mean < 1:
        raise ValueError(f"mean={mean} must be between 0 and 1")
    values = finite_scores(values, name="values").double()
    wanted, positive = mean * len(values), values > 0
    if values.min() < 0:
        raise ValueError("retention needs scores of at least 0: choose sign='relu' or 'abs'")
    if wanted >= int(positive.sum()):
        rest = (wanted - int(positive.sum())) / max(1, int((~positive).sum()))
        return Normalised(torch.where(positive, 1.0, rest), not positive.any() or _flat(values))
    largest = values.sort(descending=True).values
    below = values.sum() - largest.cumsum(0) + largest  # the sum of what is not above each
    full = torch.arange(len(values))  # how many are above each, and so cut off at 1
    factors = (wanted - full) / below
    cut = int((factors * largest <= 1).nonzero()[0])  # the first that need not be cut off
    return Normalised((values * factors[cut]).clamp(max=1), _flat(values))


def _flat(values: Float[Tensor, "pos"]) -> bool:
    return bool((values == values[0]).all())
