"""A table of numbers as a heat map that needs nothing else: no script, no network."""

from collections.abc import Sequence
from math import ceil

from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from heta_lens._util.html_view import View, html_from
from heta_lens.plots.colours import BLUE, ORANGE, Shade, deepest, shades

WIDE = 38  # columns that a page of a notebook has room for


def heat(
    title: str,
    rows: Sequence[str],
    columns: Sequence[str],
    values: Float[Tensor, "row column"],
    notes: str = "",
    positions: Sequence[int] = (),
) -> View:
    """Every number as a colour: white at 0, deeper with size, blue above and orange below; pointed at, as itself.

    What is too wide goes on below, so that nothing is out of sight. ``positions`` are where columns stand in the text.
    """
    for row, column in (~values.isfinite()).nonzero().tolist():
        value = float(values[row, column])
        raise ValueError(f"{rows[row]!r}, {columns[column]!r} is {value}, which has no colour: leave it out, or put 0")
    flat = rearrange(values, "row column -> (row column)")
    colours = iter(shades(flat))
    lines = [
        (row, [(column, value, next(colours)) for column, value in zip(columns, line, strict=True)])
        for row, line in zip(rows, values.tolist(), strict=True)
    ]
    width = ceil(len(columns) / ceil(len(columns) / WIDE))
    fragment = html_from(
        "plots/heat_map.html",
        title=title,
        notes=notes,
        scale=_scale(flat),
        beyond=bool((flat.abs() > deepest(flat)).any()),
        parts=[slice(at, at + width) for at in range(0, len(columns), width)],
        columns=columns,
        positions=positions,
        lines=lines,
    )
    return View(title, fragment)


def _scale(values: Float[Tensor, "cell"]) -> dict[float, Shade]:
    """What the deepest colours stand for, where there are values of their sign."""
    most = deepest(values)
    return {end: shade for end, shade in {most: BLUE, -most: ORANGE}.items() if (values / end > 0).any()}
