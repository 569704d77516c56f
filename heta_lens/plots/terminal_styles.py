"""How deep a score is in a terminal: colours that are legible on a dark and a light one, or marks in the text.

A depth is between -1 and 1, as deep as colour goes. A terminal of millions or of 256 colours shows it as ink on paper,
so that nothing depends on the terminal's own background. Of 16 colours nobody knows how they look, so that only pairs
are used that are far apart in the usual palettes. Without colours, brackets say it.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from heta_lens.plots.colours import Shade, shade_of

STRONG, MIDDLE = 0.5, 0.25  # the depths from which there are marks, where there are only two of them
BRACKETS, UNDERLINES = ("[]", "{}", "<>", "⟦⟧"), ("_", "~", "‗")
BLUES, ORANGES = (231, 189, 153, 111, 69, 26), (231, 230, 223, 216, 209, 166)  # of 256 colours, darker and darker


class Look(NamedTuple):
    """A style for `rich`, and what is written around the word."""

    style: str = ""
    opening: str = ""
    closing: str = ""


Looks: TypeAlias = Callable[[float], Look]


def truecolour(depth: float) -> Look:
    shade = shade_of(depth)
    return Look(f"{_ink(shade)} on {shade.css}")


def of_256(depth: float) -> Look:
    ramp = BLUES if depth > 0 else ORANGES
    number = ramp[round(abs(depth) * (len(ramp) - 1))]
    return Look(f"{_ink(_of_number(number))} on color({number})")


def of_16(depth: float) -> Look:
    """Bright white on blue or red, and bold where it is strong."""
    if abs(depth) < MIDDLE:
        return Look()
    weight = "bold " if abs(depth) >= STRONG else ""
    return Look(f"{weight}bright_white on {'blue' if depth > 0 else 'red'}")


def in_brackets(brackets: str) -> Looks:
    """One pair around what is of middle depth, two around what is strong, with a minus where it is below 0."""
    opening, closing = brackets

    def look(depth: float) -> Look:
        pairs = (abs(depth) >= MIDDLE) + (abs(depth) >= STRONG)
        return Look("", opening * pairs + ("-" if pairs and depth < 0 else ""), closing * pairs)

    return look


def unused(marks: Sequence[str], text: str) -> str:
    """The first of these marks that the text does not use itself; the last, if it uses all."""
    return next((mark for mark in marks if not set(mark) & set(text)), marks[-1])


def _of_number(number: int) -> Shade:
    """One of the 6 · 6 · 6 colours that are numbered from 16 on."""
    steps = (*divmod((number - 16) // 6, 6), (number - 16) % 6)
    return Shade(*(55 + 40 * step if step else 0 for step in steps))


def _ink(paper: Shade) -> str:
    """Black or white, whichever is easier to read: the contrast is 4.5 or more on any paper."""
    red, green, blue = (_linear(channel / 255) for channel in paper)
    # The contrast of WCAG, (lighter + 0.05) / (darker + 0.05), is the same for both at this luminance.
    return "color(16)" if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 else "color(231)"


def _linear(channel: float) -> float:
    return channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4
