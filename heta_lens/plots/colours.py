"""Scores as colours: white at 0, deeper with size, blue above and orange below."""

from collections.abc import Sequence
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from heta_lens.attribution import Attribution


class Shade(NamedTuple):
    red: int
    green: int
    blue: int

    @property
    def css(self) -> str:
        return f"rgb({self.red},{self.green},{self.blue})"


class Coloured(NamedTuple):
    """A token with its value, and the colour of that."""

    text: str
    position: int
    value: float
    shade: Shade


WHITE, BLUE, ORANGE = Shade(255, 255, 255), Shade(33, 113, 217), Shade(225, 105, 20)


def shades(values: Float[Tensor, "pos"]) -> list[Shade]:
    depths = (values / deepest(values)).clamp(-1, 1).tolist()
    return [_between(WHITE, BLUE if depth > 0 else ORANGE, abs(depth)) for depth in depths]


def coloured(tokens: Sequence[str], positions: Sequence[int], values: Float[Tensor, "pos"]) -> list[Coloured]:
    return [Coloured(*row) for row in zip(tokens, positions, values.tolist(), shades(values), strict=True)]


def _between(start: Shade, stop: Shade, share: float) -> Shade:
    return Shade(*(round(a + (b - a) * share) for a, b in zip(start, stop, strict=True)))


def strips(attribution: Attribution) -> dict[str, Float[Tensor, "pos"]]:
    """What there is to colour: the score, and the parts it is made of."""
    return {"score": attribution.scores, **attribution.parts}


def deepest(values: Float[Tensor, "pos"]) -> float:
    """Where colour is deepest: twice the second largest size, so that one outlier does not bleach the rest."""
    sizes = values.abs().sort(descending=True).values.tolist()
    return (min(sizes[0], 2 * sizes[1]) if len(sizes) > 1 and sizes[1] else sizes[0]) or 1.0
