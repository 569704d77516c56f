"""A document of texts, tables and figures, written as Markdown or as a self-contained page."""

import csv
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from string import ascii_lowercase
from typing import NamedTuple, TypeAlias

import pandas as pd

from heta_lens._util.html_view import html_from
from heta_lens._util.text import legible
from heta_lens.evaluation.report.results import Summary

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


# ----------------------------------------------------------------------------------------------------------- footnotes
# Footnotes: notes with letters, in the order in which they are first needed.


class Footnotes:
    """Notes with letters: a to z, then aa."""

    def __init__(self) -> None:
        self._letters: dict[str, str] = {}

    def letter(self, note: str) -> str:
        return self._letters.setdefault(note, _letter(len(self._letters)))

    def lines(self) -> list[str]:
        return [f"({letter}) {note}" for note, letter in self._letters.items()]


def _letter(number: int) -> str:
    return (_letter(number // 26 - 1) if number >= 26 else "") + ascii_lowercase[number % 26]


# ------------------------------------------------------------------------------------------------------ missing values
# What is missing in a report: how many instances have no value, and why.


def missing_values(results: Summary) -> Iterator[Block]:
    """What is missing, a row for each reason and number of instances: first by method, then methods together."""
    of_method: dict[tuple[str, str, int], list[str]] = {}
    for name, method, reason, count in _rows(results):
        of_method.setdefault((method, reason, count), []).append(results.metrics[name].title)
    of_all: dict[tuple[str, int, str], list[str]] = {}
    for (method, reason, count), titles in of_method.items():
        of_all.setdefault((reason, count, _listed(titles, len(results.metrics))), []).append(method)
    rows = [
        [reason, titles, _listed(methods, len(results.methods)), str(count)]
        for (reason, count, titles), methods in of_all.items()
    ]
    if rows:
        yield Table(["reason", "metrics", "methods", "instances"], rows, texts=3)
    else:
        yield Paragraph("Nothing: every method has a value of every metric on every instance.")


def _listed(names: Sequence[str], whole: int) -> str:
    return "all" if len(names) == whole else ", ".join(names)


def missing_reasons(results: Summary) -> pd.DataFrame:
    """``missing.csv``: the number of instances by reason; a reason that all metrics share counts once for each."""
    return pd.DataFrame(_rows(results), columns=["metric", "method", "reason", "instances"], dtype=object)


def _rows(results: Summary) -> Iterator[tuple[str, str, str, int]]:
    for (name, method), cell in results.cells.items():
        for reason, count in cell.why.items():
            yield name, method, reason, count
