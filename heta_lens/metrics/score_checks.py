"""Checks of the arguments of metrics: one finite number per token, and positions among these."""

from collections.abc import Iterable
from math import inf
from operator import index
from typing import Any

from jaxtyping import Float
from torch import Tensor

from heta_lens._util.options import check_at_least, is_whole


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
