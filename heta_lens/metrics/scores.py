"""Checks, token positions, normalisations and distances for several metrics."""

from collections.abc import Callable, Collection, Iterable, Sequence
from math import inf, nan
from operator import index
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from heta_lens._util.numerics import kl
from heta_lens._util.options import check_at_least, check_choice, is_whole
from heta_lens._util.target_kinds import Target, kind_of, sides
from heta_lens._util.text import Span, tokens_in
from heta_lens.data.instance import Instance
from heta_lens.prediction.prediction import Prediction
from heta_lens.prediction.target import joint_logit

Positions: TypeAlias = Collection[int]
Sign: TypeAlias = Literal["relu", "abs", "none"]
Normalisation: TypeAlias = Literal["none", "sum", "softmax", "max", "minmax", "sigmoid", "zscore"]


def finite_scores(scores: Any, length: int | None = None, name: str = "scores") -> Float[Tensor, "pos"]:
    """Return a vector of scores as floating-point numbers; refuse a NaN, an infinity or a wrong number of tokens."""
    vector = finite_numbers(scores, name)
    if vector.ndim != 1 or not len(vector):
        raise ValueError(f"{name} has the shape {tuple(vector.shape)}: give a number per token")
    if length is not None and len(vector) != length:
        raise ValueError(f"{name} has {len(vector)} numbers for {length} tokens of the context: give one for each")
    return vector


def finite_numbers(numbers: Any, name: str) -> Float[Tensor, "..."]:
    """Return a tensor as floating-point numbers; refuse a NaN or an infinity by its place."""
    if not isinstance(numbers, Tensor):
        raise TypeError(f"{name} is a {type(numbers).__name__}, and must be a tensor: torch.tensor([0.5, 0.25])")
    if numbers.dtype == torch.bool or numbers.is_complex():
        raise TypeError(f"{name} is a tensor of {numbers.dtype}, and must hold real numbers")
    if not bool(numbers.isfinite().all()):
        place = (~numbers.isfinite()).nonzero()[0].tolist()
        raise ValueError(f"{name}[{', '.join(map(str, place))}] is {float(numbers[tuple(place)])}")
    return numbers if numbers.is_floating_point() else numbers.double()


def check_number(name: str, value: Any, least: float | int = -inf, most: float | int = inf) -> None:
    """Refuse values except finite numbers from ``least`` to ``most``."""
    check_at_least(name, value, least)
    if value == -inf or value > most:
        raise ValueError(f"{name}={value!r} must be {'finite' if value == -inf else f'at most {most}'}")


def positions_in(name: str, given: Any, length: int) -> list[int]:
    """Return the given positions as plain integers in the given order; refuse a position outside the scores."""
    if isinstance(given, str) or not isinstance(given, Iterable) or getattr(given, "ndim", 1) == 0:
        raise TypeError(f"{name}={given!r} must be a list of positions: write [3] for one, [3, 4] for two")
    positions = list(given)
    for position in positions:
        if not (is_whole(position) and 0 <= index(position) < length):
            raise ValueError(
                f"{name} holds {position!r}, and must hold whole numbers from 0 to {length - 1}: write "
                "range(start, stop) for the span (start, stop)"
            )
    return [*map(index, positions)]


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
    special = prediction.adapter.tokenizer.special(prediction.ids.tolist())
    return [position for position, is_special in enumerate(special) if not is_special]


def evidence_positions(instance: Instance, prediction: Prediction, name: str) -> list[int]:
    """Return the tokens of an instance's ``gold``, ``support``, ``distractor`` or ``question`` spans."""
    text, tokens = prediction.located
    start = text.find(instance.text)
    if start < 0:
        raise ValueError(f"instance {instance.id!r}: the tokenizer does not give its text back, so no span has tokens")
    spans = [Span(start + span.start, start + span.stop) for span in getattr(instance, name)]
    inside = {position for span in spans for position in tokens_in(text, tokens, span)}
    return sorted(inside & {*ordinary(prediction)})


def rows_of(chosen: Sequence[Positions], length: int) -> Bool[torch.Tensor, "row pos"]:
    """Return a row of booleans per set of positions, True at the positions."""
    rows = torch.zeros(len(chosen), length, dtype=torch.bool)
    for row, positions in zip(rows, chosen, strict=True):
        row[[*positions]] = True
    return rows


class Normalised(NamedTuple):
    """Normalised scores; for ``degenerate`` scores, equal or not above 0, every token counts the same."""

    values: Float[Tensor, "pos"]
    degenerate: bool


def signed(scores: Float[Tensor, "pos"], sign: Sign) -> Float[Tensor, "pos"]:
    """Set negative scores to 0 (``relu``), make scores absolute (``abs``), or leave the scores (``none``)."""
    check_choice("sign", sign, get_args(Sign))
    return {"relu": torch.relu, "abs": torch.abs, "none": torch.clone}[sign](scores)


def normalised(scores: Float[Tensor, "pos"], sign: Sign = "relu", norm: Normalisation = "sum") -> Normalised:
    """Normalise scores in float64, after the treatment of negative scores by ``sign``.

    ``sum`` divides by the sum and ``max`` by the largest score; ``minmax`` stretches the scores from 0 to 1, ``zscore``
    to mean 0 and deviation 1; ``softmax`` and ``sigmoid`` are these functions; ``none`` leaves the scores.
    """
    check_choice("norm", norm, get_args(Normalisation))
    values = signed(finite_scores(scores).double(), sign)
    level = values.unique().numel() == 1
    if norm in ("sum", "max"):
        whole = values.sum() if norm == "sum" else values.max()
        if whole <= 0:
            return Normalised(torch.full_like(values, 1 / len(values) if norm == "sum" else 1.0), True)
        return Normalised(values / whole, level)
    if norm == "minmax":
        values = torch.full_like(values, 0.5) if level else (values - values.min()) / (values.max() - values.min())
    elif norm == "zscore":
        values = torch.zeros_like(values) if level else (values - values.mean()) / values.std(correction=0)
    elif norm in ("softmax", "sigmoid"):
        values = values.softmax(0) if norm == "softmax" else values.sigmoid()
    return Normalised(values, level)


def with_mean(values: Float[Tensor, "pos"], mean: float) -> Normalised:
    """Return ``min(1, c · value)``, with a factor c for an average of ``mean``.

    Values of 0 stay 0 unless every positive value is at 1 already: then the zeros share the rest equally.
    """
    if not 0 < mean < 1:
        raise ValueError(f"mean={mean} must be between 0 and 1")
    values = finite_scores(values, name="values").double()
    if values.min() < 0:
        raise ValueError("retention needs scores of at least 0: choose sign='relu' or 'abs'")
    wanted, positive, level = mean * len(values), values > 0, values.unique().numel() == 1
    if wanted >= int(positive.sum()):
        rest = (wanted - int(positive.sum())) / max(1, int((~positive).sum()))
        return Normalised(torch.where(positive, 1.0, rest), level)
    largest = values.sort(descending=True).values
    sum_from_here = values.sum() - largest.cumsum(0) + largest
    cut_before = torch.arange(len(values))  # the number of larger values, which are cut off at 1
    factors = (wanted - cut_before) / sum_from_here
    first_uncut = int((factors * largest <= 1).nonzero()[0])
    return Normalised((values * factors[first_uncut]).clamp(max=1), level)


DistanceName: TypeAlias = Literal["root", "hellinger", "hellinger_sq", "target_prob", "kl"]
Apart: TypeAlias = Callable[[Tensor, Tensor, Target], Tensor]
"""A distance, from the log-probabilities after and before a change, and the target."""


def squared_roots(log_p: Float[Tensor, "run vocab"], log_q: Float[Tensor, "vocab"]) -> Float[Tensor, "run"]:
    """Return ``Σ (√p - √q)²`` over the vocabulary."""
    return ((log_p / 2).exp() - (log_q / 2).exp()).square().sum(-1)


def probability_lost(
    log_p: Float[Tensor, "run vocab"], log_q: Float[Tensor, "vocab"], target: Target
) -> Float[Tensor, "run"]:
    """Return the fall of the target's probability from q to p, at least 0."""
    if (kind := kind_of(target)) in ("contrast", "function"):
        raise ValueError(f"distance='target_prob' needs a token or a set, not a {kind}: choose another distance")
    (tokens,) = sides(target)
    return (joint_logit(log_q, tokens).exp() - joint_logit(log_p, tokens).exp()).clamp(min=0)


DISTANCES: dict[str, Apart] = {
    "root": lambda log_p, log_q, _: squared_roots(log_p, log_q) / 2**0.5,
    "hellinger": lambda log_p, log_q, _: (squared_roots(log_p, log_q) / 2).sqrt(),
    "hellinger_sq": lambda log_p, log_q, _: squared_roots(log_p, log_q) / 2,
    "target_prob": probability_lost,
    "kl": lambda log_p, log_q, _: kl(log_q, log_p),
}


def ratios(
    comprehensive: Float[Tensor, "row"], sufficient: Float[Tensor, "row"], nothing: float
) -> tuple[Float[Tensor, "row"], Float[Tensor, "row"]]:
    """Return NC and NS: distances as shares of the distance without a token; NaN for a share of 0."""
    if not nothing > 0:
        return torch.full_like(comprehensive, nan), torch.full_like(sufficient, nan)
    return comprehensive / nothing, (nothing - sufficient).clamp(min=0) / nothing
