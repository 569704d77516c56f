"""A table of numbers as a heat map that needs nothing else: plain HTML, and if it is large a canvas; no network."""

from collections.abc import Iterator, Mapping, Sequence
from math import ceil
from typing import Any

from einops import rearrange
from jaxtyping import Float
from markupsafe import Markup
from torch import Tensor

from heta_lens._util.html_view import View, html_from, source
from heta_lens._util.printable_text import single_line
from heta_lens.plots.colours import BLUE, ORANGE, Shade, deepest
from heta_lens.plots.view_data import embedded, packed

WIDE = 38  # columns that a page of a notebook has room for
MANY = 4000  # cells that a browser lays out at once; more of them are drawn where they are in view


def heat(
    title: str,
    rows: Sequence[str],
    columns: Sequence[str],
    values: Float[Tensor, "row column"],
    notes: str = "",
    positions: Sequence[int] = (),
) -> View:
    """Every number as a colour: none at 0, deeper with size, blue above and orange below; pointed at, as itself.

    What is too wide goes on below, so that nothing is out of sight; a large table scrolls, and its names stay.
    ``positions`` are where columns stand in the text.
    """
    for row, column in (~values.isfinite()).nonzero().tolist():
        value = float(values[row, column])
        raise ValueError(f"{rows[row]!r}, {columns[column]!r} is {value}, which has no colour: leave it out, or put 0")
    flat = rearrange(values, "row column -> (row column)")
    table = _drawn(rows, columns, flat, positions) if len(flat) > MANY else _written(rows, columns, values, positions)
    fragment = html_from(
        "plots/heat_map.html",
        title=title,
        notes=notes,
        above=BLUE,
        below=ORANGE,
        scale=_scale(flat),
        beyond=bool((flat.abs() > deepest(flat)).any()),
        **{"parts": [], "lines": [], "columns": columns, "positions": positions, "data": "", "script": "", **table},
    )
    return View(title, fragment)


def _written(
    rows: Sequence[str], columns: Sequence[str], values: Float[Tensor, "row column"], positions: Sequence[int]
) -> Mapping[str, Any]:
    """Cells as HTML."""
    most, width = (
        deepest(rearrange(values, "row column -> (row column)")),
        ceil(len(columns) / ceil(len(columns) / WIDE)),
    )
    return {
        "parts": [slice(at, at + width) for at in range(0, len(columns), width)],
        "positions": positions,
        "lines": [(row, [*_cells(columns, line, most)]) for row, line in zip(rows, values.tolist(), strict=True)],
    }


def _cells(columns: Sequence[str], line: Sequence[float], most: float) -> Iterator[tuple[str, float, str]]:
    """Each column's name, value and colour, which lets the page's own through."""
    for column, value in zip(columns, line, strict=True):
        sign = "--neg" if value < 0 else "--pos"
        yield column, value, f"rgb(var({sign})/{min(1.0, abs(value) / most):.2f})"


def _drawn(
    rows: Sequence[str], columns: Sequence[str], values: Float[Tensor, "cell"], positions: Sequence[int]
) -> Mapping[str, Any]:
    """Cells as numbers, for a script that draws what is in view."""
    names = {"rows": [*map(single_line, rows)], "columns": [*map(single_line, columns)]}
    data = {**names, "deepest": deepest(values), "values": packed(values.detach().cpu().float())}
    own = embedded({**data, "positions": [*positions]})
    return {"data": Markup(own), "script": source("plots/table.js"), "positions": []}


def _scale(values: Float[Tensor, "cell"]) -> dict[float, Shade]:
    """What the deepest colours stand for, where there are values of their sign."""
    most = deepest(values)
    return {end: shade for end, shade in {most: BLUE, -most: ORANGE}.items() if (values / end > 0).any()}
