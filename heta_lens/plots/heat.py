"""A table of numbers as a heat map that needs nothing else: no script, no network."""

from collections.abc import Sequence
from html import escape

from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from heta_lens.plots.shades import legible, shades
from heta_lens.show import View

STYLE = """
.heta-heat { font: 14px/1.4 system-ui, sans-serif; color: #222; overflow-x: auto; }
.heta-heat table { border-collapse: separate; border-spacing: 1px; }
.heta-heat th { font-weight: normal; text-align: right; padding: 0 .5em; white-space: pre; font-family: monospace; }
.heta-heat thead th { writing-mode: vertical-rl; text-align: right; vertical-align: bottom; padding: .4em 0; }
.heta-heat td { min-width: 1.5em; height: 1.5em; outline: 1px solid #eee; }
"""


def heat(
    title: str, rows: Sequence[str], columns: Sequence[str], values: Float[Tensor, "row column"], notes: str = ""
) -> View:
    """Every number as a colour: white at 0, deeper with size, blue above and orange below; pointed at, as itself."""
    colours = iter(shades(rearrange(values, "row column -> (row column)")))
    head = "".join(f"<th>{escape(legible(column))}</th>" for column in columns)
    lines = []
    for row, line in zip(rows, values.tolist(), strict=True):
        told = [f"{row}, {column}: {value:.4g}" for column, value in zip(columns, line, strict=True)]
        cells = (f'<td style="background:{next(colours).css}" title="{escape(legible(one))}"></td>' for one in told)
        lines.append(f"<tr><th>{escape(legible(row))}</th>{''.join(cells)}</tr>")
    caption = f"<p><strong>{escape(title)}</strong><br><small>{escape(notes)}</small></p>"
    table = f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    return View(title, f'<style>{STYLE}</style>\n<div class="heta-heat">{caption}{table}</div>')
