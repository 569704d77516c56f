"""Checks, token positions, normalisations and distances for several metrics."""

from collections.abc import Callable, Collection, Sequence
from math import nan
from operator import index
from typing import Any, Literal, TypeAlias, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from heta_lens._util.options import check_choice, is_whole
from heta_lens._util.text import Span, tokens_in
from heta_lens.data.instance import Instance
from heta_lens.prediction.prediction import Prediction

Positions: TypeAlias = Collection[int]
Normalisation: TypeAlias = Literal["none", "sum", "max"]


def finite_scores(scores: Any, length: int | None = None, name: str = "scores") -> Float[Tensor, "pos"]:
    """Return a vector of scores as floating-point numbers; refuse a NaN, an infinity or a wrong number of tokens."""
    if not isinstance(scores, Tensor):
        raise TypeError(f"{name} is a {type(scores).__name__}, and must be a tensor: torch.tensor([0.5, 0.25])")
    if scores.ndim != 1 or not len(scores):
        raise ValueError(f"{name} has the shape {tuple(scores.shape)}: give a number per token")
    if length is not None and len(scores) != length:
        raise ValueError(f"{name} has {len(scores)} numbers for {length} tokens of the context: give one for each")
    if not bool(scores.isfinite().all()):
        place = int((~scores.isfinite()).nonzero()[0])
        raise ValueError(f"{name}[{place}] is {float(scores[place])}")
    return scores if scores.is_floating_point() else scores.double()


def positions_in(name: str, given: Positions, length: int) -> list[int]:
    """Return the given positions as plain integers in the given order; refuse a position outside the scores."""
    for position in given:
        if not (is_whole(position) and 0 <= index(position) < length):
            raise ValueError(
                f"{name} holds {position!r}, and must hold whole numbers from 0 to {length - 1}: write "
                "range(start, stop) for the span (start, stop)"
            )
    return [*map(index, given)]


def candidate_positions(candidates: Positions | None, length: int) -> list[int]:
    """Return the candidates in the order of the text; by default every position."""
    if candidates is None:
        return [*range(length)]
    positions = sorted({*positions_in("candidates", candidates, length)})
    if not positions:
        raise ValueError("candidates is empty: there is no token to evaluate")
    return positions


def ordinary(prediction: Prediction) -> list[int]:
    """Return the positions without special tokens: attention sinks without content."""
    special = prediction.tokenizer.special(prediction.ids.tolist())
    return [position for position, is_special in enumerate(special) if not is_special]


def evidence_positions(instance: Instance, prediction: Prediction, name: str) -> list[int]:
    """Return the tokens of an instance's spans of a name, such as ``gold`` or ``eligible``."""
    text, tokens = prediction.located
    bare = instance.text.strip()  # as some chat templates write a message
    if (found := text.rfind(bare)) < 0:
        raise ValueError(f"instance {instance.id!r}: the tokenizer does not give its text back, so no span has tokens")
    start = found - instance.text.find(bare)
    spans = [Span(start + span.start, start + span.stop) for span in getattr(instance, name)]
    inside = {position for span in spans for position in tokens_in(text, tokens, span)}
    return sorted(inside & {*ordinary(prediction)})


def rows_of(chosen: Sequence[Positions], length: int) -> Bool[torch.Tensor, "row pos"]:
    """Return a row of booleans per set of positions, True at the positions."""
    rows = torch.zeros(len(chosen), length, dtype=torch.bool)
    for row, positions in zip(rows, chosen, strict=True):
        row[[*positions]] = True
    return rows


def normalised(scores: Float[Tensor, "pos"], norm: Normalisation = "sum") -> Float[Tensor, "pos"]:
    """Divide scores, negative ones as 0, by their ``sum`` or ``max`` in float64; ``none`` divides by nothing.

    Without a score above 0, every token counts the same.
    """
    check_choice("norm", norm, get_args(Normalisation))
    values = finite_scores(scores).double().relu()
    if norm == "none":
        return values
    if values.max() == 0:
        values = torch.ones_like(values)
    return values / (values.sum() if norm == "sum" else values.max())


def with_mean(values: Float[Tensor, "pos"], mean: float) -> Float[Tensor, "pos"]:
    """Return ``min(1, c · value)`` with a factor c for an average of ``mean``, and negative values as 0.

    Values of 0 stay 0 unless every positive value is at 1 already: then the zeros share the rest equally.
    """
    if not 0 < mean < 1:
        raise ValueError(f"mean={mean} must be between 0 and 1")
    values = finite_scores(values, name="values").double().relu()
    wanted, positive = mean * len(values), values > 0
    if wanted >= int(positive.sum()):
        rest = (wanted - int(positive.sum())) / max(1, int((~positive).sum()))
        return torch.where(positive, 1.0, rest)
    largest = values.sort(descending=True).values
    sum_from_here = values.sum() - largest.cumsum(0) + largest
    cut_before = torch.arange(len(values))  # the number of larger values, which are cut off at 1
    factors = (wanted - cut_before) / sum_from_here
    first_uncut = int((factors * largest <= 1).nonzero()[0])
    return (values * factors[first_uncut]).clamp(max=1)


Apart: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""A distance, from the log-probabilities after and before a change."""


def root(log_p: Float[Tensor, "run vocab"], log_q: Float[Tensor, "vocab"]) -> Float[Tensor, "run"]:
    """Return ``Σ (√p - √q)² / √2`` over the vocabulary."""
    return ((log_p / 2).exp() - (log_q / 2).exp()).square().sum(-1) / 2**0.5


def ratios(
    comprehensive: Float[Tensor, "row"], sufficient: Float[Tensor, "row"], nothing: float
) -> tuple[Float[Tensor, "row"], Float[Tensor, "row"]]:
    """Return NC and NS: distances as shares of the distance without a token; NaN for a share of 0."""
    if not nothing > 0:
        return torch.full_like(comprehensive, nan), torch.full_like(sufficient, nan)
    return comprehensive / nothing, (nothing - sufficient).clamp(min=0) / nothing
