"""Checks of the arguments of metrics: one finite number per token, and positions among these."""

from collections.abc import Callable, Collection, Iterable, Sequence
from math import inf, nan
from operator import index
from typing import Any, Literal, NamedTuple, TypeAlias

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


def finite_scores(scores: Any, length: int | None = None, name: str = "scores") -> Float[Tensor, "pos"]:
    """The scores as floating-point numbers; refused, by position, if one is NaN or infinite.

    Of a context of ``length`` tokens there must be one for each.
    """
    vector = finite_numbers(scores, name)
    if vector.ndim != 1 or not len(vector):
        raise ValueError(
            f"{name} has the shape {tuple(vector.shape)}, and must hold one number per token: shape (pos,)"
        )
    if length is not None and len(vector) != length:
        raise ValueError(f"there are {len(vector)} {name} for {length} tokens: give one per token of the whole context")
    return vector


def finite_numbers(numbers: Any, name: str) -> Float[Tensor, "..."]:
    """A tensor of floating-point numbers; refused, by place, if one of them is NaN or infinite."""
    if not isinstance(numbers, Tensor):
        raise TypeError(f"{name} is a {type(numbers).__name__}, and must be a tensor: torch.tensor([0.5, 0.25])")
    if "bool" in str(numbers.dtype) or numbers.is_complex():
        raise TypeError(f"{name} is a tensor of {numbers.dtype}, and must hold real numbers")
    if not bool(numbers.isfinite().all()):
        place = (~numbers.isfinite()).nonzero()[0].tolist()
        raise ValueError(f"{name}[{', '.join(map(str, place))}] is {float(numbers[tuple(place)])}")
    return numbers if numbers.is_floating_point() else numbers.double()


def positions_in(name: str, given: Any, length: int) -> list[int]:
    """Positions as plain numbers, in the order they were given; refused if one is none of ``length``."""
    if isinstance(given, str) or not isinstance(given, Iterable) or getattr(given, "ndim", 1) == 0:
        raise TypeError(f"{name}={given!r} must be a list of positions: write [3] for one, [3, 4] for two")
    positions = list(given)
    for place in positions:
        if not is_whole(place):
            raise TypeError(
                f"{name} holds {place!r}, and must hold positions, whole numbers from 0 to {length - 1}: write "
                "range(start, stop) for the span (start, stop)"
            )
    places = [index(place) for place in positions]
    if outside := sorted({place for place in places if not 0 <= place < length}):
        raise ValueError(f"{name}: positions {outside} are not among the {length} scores")
    return places


def check_number(name: str, value: Any, least: float | int = -inf, most: float | int = inf) -> None:
    """Refuse a value that is not a finite number from ``least`` to ``most``."""
    check_at_least(name, value, least)
    if value == -inf:
        raise ValueError(f"{name}={value!r} must be finite")
    if value > most:
        raise ValueError(f"{name}={value!r} must be at most {most}")


# ---------------------------------------------------------------------------------------------------- candidate tokens
# Which tokens are evaluated: the same ones for every method.


Positions: TypeAlias = Collection[int]


def ordinary(prediction: Prediction) -> list[int]:
    """All but special tokens, which are attention sinks and carry no content."""
    special = prediction.adapter.tokenizer.special(prediction.ids.tolist())
    return [position for position, hidden in enumerate(special) if not hidden]


def places(candidates: Positions | None, length: int) -> list[int]:
    """Candidates in the order of the text; None stands for all positions."""
    if candidates is None:
        return [*range(length)]
    positions = sorted({*positions_in("candidates", candidates, length)})
    if not positions:
        raise ValueError("candidates is empty: there is no token to evaluate")
    return positions


def rows_of(chosen: Sequence[Positions], length: int) -> Bool[torch.Tensor, "row pos"]:
    """A row for each set of positions, True at them."""
    rows = torch.zeros(len(chosen), length, dtype=torch.bool)
    for row, positions in zip(rows, chosen, strict=True):
        row[[*positions]] = True
    return rows


# -------------------------------------------------------------------------------------------------- evidence positions
# Which tokens a prompt's known spans are: its evidence, distractors, and question.


def evidence_positions(instance: Instance, prediction: Prediction, name: str) -> list[int]:
    """The tokens of an instance's spans of this name: ``gold``, ``support``, ``distractor`` or ``question``."""
    text, spans = prediction.located
    start = text.find(instance.text)
    if start < 0:
        raise ValueError(
            f"instance {instance.id!r}: the tokenizer does not give its text back, so nothing can be located in it by "
            "its characters"
        )
    shifted = [Span(start + span.start, start + span.stop) for span in getattr(instance, name)]
    inside = {position for span in shifted for position in tokens_in(text, spans, span)}
    return sorted(inside & {*ordinary(prediction)})


# ------------------------------------------------------------------------------------------------- score normalisation
# Scores made comparable: the treatment of their sign, and their scale, before they are evaluated.


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


# ---------------------------------------------------------------------------------------------- distribution distances
# Distances between predictions, and NC and NS as ratios of them.


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
