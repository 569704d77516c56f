"""A table of numbers as a heat map that needs nothing else: no script, no network."""

from collections.abc import Sequence
from html import escape
from math import ceil

from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from heta_lens.plots.shades import Shade, legible, shades
from heta_lens.show import View

STYLE = """
.heta-heat { font: 14px/1.4 system-ui, sans-serif; color: #222; overflow-x: auto; }
.heta-heat table { border-collapse: separate; border-spacing: 1px; margin: 0 0 .5em; }
.heta-heat th { font-weight: normal; text-align: right; padding: 0 .5em; white-space: pre; font-family: monospace; }
.heta-heat thead th { writing-mode: vertical-rl; line-height: 1; vertical-align: bottom; padding: .4em 0; }
.heta-heat td { min-width: 1.15em; height: 1.5em; outline: 1px solid #eee; }
"""
WIDE = 36  # columns that a page of a notebook has room for


def heat(
    title: str, rows: Sequence[str], columns: Sequence[str], values: Float[Tensor, "row column"], notes: str = ""
) -> View:
    """Every number as a colour: white at 0, deeper with size, blue above and orange below; pointed at, as itself.

    What is too wide goes on below, so that nothing is out of sight.
    """
    colours = iter(shades(rearrange(values, "row column -> (row column)")))
    cells = [
        [_cell(f"{row}, {column}: {value:.4g}", next(colours)) for column, value in zip(columns, line, strict=True)]
        for row, line in zip(rows, values.tolist(), strict=True)
    ]
    width = ceil(len(columns) / ceil(len(columns) / WIDE))
    tables = [
        _table(rows, columns[at : at + width], [line[at : at + width] for line in cells])
        for at in range(0, len(columns), width)
    ]
    caption = f"<p><strong>{escape(title)}</strong><br><small>{escape(notes)}</small></p>"
    return View(title, f'<style>{STYLE}</style>\n<div class="heta-heat">{caption}{"".join(tables)}</div>')


def _table(rows: Sequence[str], columns: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    head = "".join(map(_head, columns))
    lines = "".join(f"<tr>{_head(row)}{''.join(line)}</tr>" for row, line in zip(rows, cells, strict=True))
    return f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{lines}</tbody></table>"


def _head(said: str) -> str:
    return f"<th>{escape(legible(said))}</th>"


def _cell(said: str, shade: Shade) -> str:
    return f'<td style="background:{shade.css}" title="{escape(legible(said))}"></td>'
