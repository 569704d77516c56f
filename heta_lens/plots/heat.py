"""A table of numbers as a heat map that needs nothing else: no script, no network."""

from collections.abc import Sequence
from html import escape
from math import ceil

from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from heta_lens.plots.shades import BLUE, ORANGE, Shade, shades
from heta_lens.show import View, deepest
from heta_lens.text import legible

STYLE = """
.heta-heat { font: 14px/1.4 system-ui, sans-serif; color: #222; overflow-x: auto; }
.heta-heat table { border-collapse: separate; border-spacing: 1px; margin: 0 0 .5em; }
.heta-heat tr { background: none; }
.heta-heat th { font: 13px/1 monospace; text-align: right; padding: 0 .5em; white-space: pre; }
.heta-heat thead th { writing-mode: vertical-rl; vertical-align: bottom; padding: .4em 3px; }
.heta-heat thead th.number { writing-mode: horizontal-tb; text-align: center; font-size: 9px; padding: 0 0 .3em; }
.heta-heat td { min-width: 19px; height: 19px; padding: 0; outline: 1px solid #eee; }
.heta-heat i { display: inline-block; width: 1em; height: 1em; vertical-align: -.15em; }
"""
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
    cells = [
        [_cell(f"{row}, {column}: {value:.4g}", next(colours)) for column, value in zip(columns, line, strict=True)]
        for row, line in zip(rows, values.tolist(), strict=True)
    ]
    width = ceil(len(columns) / ceil(len(columns) / WIDE))
    parts = [slice(at, at + width) for at in range(0, len(columns), width)]
    tables = [_table(rows, columns[part], [line[part] for line in cells], positions[part]) for part in parts]
    caption = (
        f"<p><strong>{escape(legible(title))}</strong><br><small>{escape(legible(notes))}</small></p>{_scale(flat)}"
    )
    return View(title, f'<style>{STYLE}</style>\n<div class="heta-heat">{caption}{"".join(tables)}</div>')


def _table(
    rows: Sequence[str], columns: Sequence[str], cells: Sequence[Sequence[str]], positions: Sequence[int]
) -> str:
    head = f"<tr><th></th>{''.join(map(_head, columns))}</tr>"
    if positions:
        head += f"<tr><th></th>{''.join(f'<th class=number>{position}</th>' for position in positions)}</tr>"
    lines = "".join(f"<tr>{_head(row)}{''.join(line)}</tr>" for row, line in zip(rows, cells, strict=True))
    return f"<table><thead>{head}</thead><tbody>{lines}</tbody></table>"


def _head(said: str) -> str:
    return f"<th>{escape(legible(said))}</th>"


def _cell(said: str, shade: Shade) -> str:
    return f'<td style="background:{shade.css}" title="{escape(legible(said))}"></td>'


def _scale(values: Float[Tensor, "cell"]) -> str:
    """What the deepest colours stand for."""
    most = deepest(values)
    ends = {most: BLUE, -most: ORANGE}
    told = [
        f'<i style="background:{shade.css}"></i> {end:.3g}' for end, shade in ends.items() if (values / end > 0).any()
    ]
    beyond = " and beyond" if (values.abs() > most).any() else ""
    return f"<p><small>{', '.join(told)}{beyond}; white is 0</small></p>" if told else ""
