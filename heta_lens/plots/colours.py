"""Scores as colours: white at 0, deeper with size, blue above and orange below."""

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor


class Shade(NamedTuple):
    red: int
    green: int
    blue: int

    @property
    def css(self) -> str:
        return f"rgb({self.red},{self.green},{self.blue})"


WHITE, BLUE, ORANGE = Shade(255, 255, 255), Shade(33, 113, 217), Shade(201, 84, 10)


def shades(values: Float[Tensor, "pos"], end: float) -> list[Shade]:
    """The colour of every value, where ``end`` has the deepest."""
    return [shade_of(depth) for depth in (values / end).clamp(-1, 1).tolist()]


def shade_of(depth: float) -> Shade:
    """The colour of a depth from -1 to 1."""
    deep = BLUE if depth > 0 else ORANGE
    return Shade(*(round(start + (stop - start) * abs(depth)) for start, stop in zip(WHITE, deep, strict=True)))


def deepest(values: Float[Tensor, "pos"]) -> float:
    """Where colour is deepest: twice the second largest size, so that one outlier does not bleach the rest."""
    sizes = values.abs().sort(descending=True).values.tolist()
    return (min(sizes[0], 2 * sizes[1]) if len(sizes) > 1 and sizes[1] else sizes[0]) or 1.0
