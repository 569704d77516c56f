"""A document of texts, tables and figures, written as Markdown or as a self-contained page."""

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import NamedTuple, TypeAlias

import pandas as pd

from heta_lens._util.html_view import html_from
from heta_lens._util.printable_text import legible

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

    @classmethod
    def of(cls, frame: pd.DataFrame) -> "Table":
        return cls([*frame.columns], frame.to_numpy().tolist())


class Drawn(NamedTuple):
    """A figure, for a page and for a paper."""

    svg: str
    pdf: bytes


@dataclass(frozen=True)
class Figure:
    """A figure, kept in files of this ``name``, and a description of it for those who cannot see it."""

    name: str
    drawn: Drawn
    shows: str

    @property
    def path(self) -> str:
        return f"figures/{self.name}.svg"

    @property
    def files(self) -> Mapping[str, str | bytes]:
        return {self.path: self.drawn.svg, f"figures/{self.name}.pdf": self.drawn.pdf}


Block: TypeAlias = Heading | Paragraph | Notes | Table | Figure


def markdown(blocks: Sequence[Block]) -> str:
    return "\n\n".join(map(_markdown, blocks)) + "\n"


def page(title: str, blocks: Sequence[Block]) -> str:
    kinds = [(type(block).__name__, block) for block in blocks]
    return html_from("evaluation/report/document.html", title=title, blocks=kinds, long=LONG, inline=_inline)


def _markdown(block: Block) -> str:
    match block:
        case Heading(text, level):
            return f"{'#' * level} {_plain(text)}"
        case Paragraph(text):
            return _plain(text)
        case Notes(lines):
            return "\n".join(f"- {_plain(line)}" for line in lines)
        case Figure():
            return f"![{_plain(block.shows)}]({block.path})"
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
    """The text with characters of Markdown escaped."""
    return re.sub(r"[\\|*<`]|(?<!\w)_|_(?!\w)|(?<=\])(?=\()", r"\\\g<0>", legible(" ".join(text.split())))


FORMULA = "=+-@\t\r\n＝＋－＠"  # what a spreadsheet takes for a formula, if a cell begins with it


def sheet(frame: pd.DataFrame) -> str:
    """CSV. A text that a spreadsheet would take for a formula begins with an apostrophe, a number does not.

    Who reads the file with a program takes one apostrophe away where the text after all of them begins with one of
    ``= + - @``, a tab or a line end.
    """
    return "".join(_line([_cell(cell) for cell in row]) for row in [frame.columns, *frame.itertuples(index=False)])


def _line(cells: Iterable[object]) -> str:
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
    """The figure as part of a page: in its colours, with unique ids."""
    drawn = svg[svg.index("<svg") :].strip()
    drawn = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}", drawn)
    for colour, own in {INK: "currentColor", QUIET: "var(--quiet)", PAPER: "var(--paper)"}.items():
        drawn = drawn.replace(colour, own)
    return drawn
