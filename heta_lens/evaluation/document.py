"""A text with tables and figures, written as Markdown or as a page that needs nothing else."""

import csv
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape as as_html
from io import StringIO
from typing import TypeAlias

from heta_lens.text import legible

STYLE = """
:root { color-scheme: light dark; --ink: #222; --quiet: #666; --line: #ddd; --paper: #fff; }
@media (prefers-color-scheme: dark) { :root { --ink: #ddd; --quiet: #999; --line: #444; --paper: #181a1b; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
       max-width: 64em; margin: 0 auto; padding: 1em; }
h1 { font-size: 1.5em; } h2 { font-size: 1.2em; margin-top: 2em; } h3 { font-size: 1em; margin-top: 2em; }
p, ul { margin: .5em 0; overflow-wrap: anywhere; } ul { padding-left: 1.2em; color: var(--quiet); }
.wide { overflow-x: auto; margin: 1em 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9em; }
th, td { padding: .2em .7em; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { vertical-align: bottom; white-space: normal; } td.text, th.text { text-align: left; }
td.long { white-space: normal; min-width: 16em; }
tr > :first-child { position: sticky; left: 0; background: var(--paper); padding-left: 0; }
td:first-child { min-width: 9em; max-width: 14em; white-space: normal; overflow-wrap: break-word; }
figure { margin: 1em 0; overflow-x: auto; } figure svg { width: 100%; min-width: 27em; max-width: 40em; height: auto; }
"""
INK, QUIET, PAPER = "#222222", "#777777", "#ffffff"
"""The colours of a figure that a page has its own for; all others stay."""
LONG = 40  # a cell of more characters is broken into lines


@dataclass(frozen=True)
class Heading:
    text: str
    level: int = 2


@dataclass(frozen=True)
class Paragraph:
    text: str


@dataclass(frozen=True)
class Notes:
    lines: Sequence[str]


@dataclass(frozen=True)
class Table:
    """The first ``texts`` columns are texts, all others numbers; ``bold`` names cells by row and column."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    texts: int = 1
    bold: frozenset[tuple[int, int]] = frozenset()


@dataclass(frozen=True)
class Figure:
    """An SVG of its own, kept in ``path``, and what it shows, for those who cannot see it."""

    path: str
    svg: str
    shows: str


Block: TypeAlias = Heading | Paragraph | Notes | Table | Figure


def escape(text: str) -> str:
    return as_html(legible(text))


def markdown(blocks: Sequence[Block]) -> str:
    return "\n\n".join(map(_markdown, blocks)) + "\n"


def page(title: str, blocks: Sequence[Block]) -> str:
    body = "\n".join(_html(block, number) for number, block in enumerate(blocks))
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"/>\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _markdown(block: Block) -> str:
    match block:
        case Heading(text, level):
            return f"{'#' * level} {_plain(text)}"
        case Paragraph(text):
            return _plain(text)
        case Notes(lines):
            return "\n".join(f"- {_plain(line)}" for line in lines)
        case Figure(path, _, shows):
            return f"![{_plain(shows)}]({path})"
        case Table():
            return _markdown_table(block)


def _markdown_table(table: Table) -> str:
    ruler = ["---" if column < table.texts else "---:" for column in range(len(table.columns))]
    body = [
        [f"**{_plain(cell)}**" if (at, column) in table.bold else _plain(cell) for column, cell in enumerate(row)]
        for at, row in enumerate(table.rows)
    ]
    head = [_plain(column) for column in table.columns]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [head, ruler, *body])


def _plain(text: str) -> str:
    """Characters that would say something to Markdown, made to say themselves."""
    return re.sub(r"[\\|*<`]|(?<!\w)_|_(?!\w)|(?<=\])(?=\()", r"\\\g<0>", legible(" ".join(text.split())))


def _html(block: Block, number: int) -> str:
    match block:
        case Heading(text, level):
            return f"<h{level}>{escape(text)}</h{level}>"
        case Paragraph(text):
            return f"<p>{escape(text)}</p>"
        case Notes(lines):
            return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"
        case Figure(_, svg, shows):
            return f'<figure role="img" aria-label="{escape(shows)}">{_inline(svg, f"f{number}-")}</figure>'
        case Table():
            return _html_table(block)


def _html_table(table: Table) -> str:
    def cell(kind: str, text: str, column: int, bold: bool = False) -> str:
        long = " long" if len(text) > LONG and kind == "td" else ""
        written = escape(text).replace("_", "_<wbr/>")  # names may be broken there
        shown = f"<strong>{written}</strong>" if bold else written
        return f'<{kind} class="{"text" if column < table.texts else "number"}{long}">{shown}</{kind}>'

    head = "".join(cell("th", text, column) for column, text in enumerate(table.columns))
    rows = "\n".join(
        "<tr>"
        + "".join(cell("td", text, column, (at, column) in table.bold) for column, text in enumerate(row))
        + "</tr>"
        for at, row in enumerate(table.rows)
    )
    return f'<div class="wide"><table>\n<tr>{head}</tr>\n{rows}\n</table></div>'


FORMULA = "=+-@\t\r\n＝＋－＠"  # what a spreadsheet takes for a formula, if a cell begins with it


def sheet(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A CSV table. A text that a spreadsheet would take for a formula begins with an apostrophe, a number does not.

    Who reads the file with a program takes one apostrophe away where the text after all of them begins with one of
    ``= + - @``, a tab or a line end.
    """
    return "".join(_line([_cell(cell) for cell in row]) for row in [columns, *rows])


def _line(cells: Sequence[object]) -> str:
    written = StringIO()
    csv.writer(written, lineterminator="\r\n").writerow(cells)  # which quotes cells that hold either of the two
    return written.getvalue().removesuffix("\r\n") + "\n"


def _cell(cell: object) -> object:
    if not isinstance(cell, str) or _is_number(cell):
        return cell
    return f"'{cell}" if cell.lstrip("'").startswith(tuple(FORMULA)) else cell


def _is_number(text: str) -> bool:
    try:
        return float(text) is not None
    except ValueError:
        return False


def _inline(svg: str, prefix: str) -> str:
    """As part of a page: in its colours, and with ids that no other figure of it has."""
    drawn = svg[svg.index("<svg") :].strip()
    drawn = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}", drawn)
    for colour, own in {INK: "currentColor", QUIET: "var(--quiet)", PAPER: "var(--paper)"}.items():
        drawn = drawn.replace(colour, own)
    return drawn
