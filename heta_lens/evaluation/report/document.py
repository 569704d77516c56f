"""A document of texts, tables and figures, written as Markdown or as a self-contained page."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from string import ascii_lowercase
from typing import TypeAlias

import pandas as pd

from heta_lens._util.html_view import html_from
from heta_lens._util.text import legible
from heta_lens.plots.figures import INK, QUIET

PAPER = "#ffffff"  # of figures; a page replaces this colour, INK and QUIET by its own colours
LONG = 40  # characters of a cell without line breaks


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
    """A table whose first ``texts`` columns are texts, and whose other columns are numbers.

    ``bold`` names cells by row and column.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    texts: int = 1
    bold: frozenset[tuple[int, int]] = frozenset()


@dataclass(frozen=True)
class Figure:
    """A figure as SVG for a page and as PDF for a paper, and a description for readers who cannot see the figure."""

    name: str
    svg: str
    pdf: bytes
    shows: str

    @property
    def path(self) -> str:
        return f"figures/{self.name}.svg"

    @property
    def files(self) -> Mapping[str, str | bytes]:
        return {self.path: self.svg, f"figures/{self.name}.pdf": self.pdf}


Block: TypeAlias = Heading | Paragraph | Notes | Table | Figure


@dataclass
class Footnotes:
    """Notes under letters, from a to z and then from aa on, in the order of their first use."""

    letters: dict[str, str] = field(default_factory=dict)

    def letter(self, note: str) -> str:
        return self.letters.setdefault(note, _letter(len(self.letters)))

    def marks(self, notes: Iterable[str]) -> str:
        """Return the letters of notes in brackets, behind a blank."""
        letters = ", ".join(map(self.letter, notes))
        return f" ({letters})" if letters else ""

    def lines(self) -> list[str]:
        return [f"({letter}) {note}" for note, letter in self.letters.items()]


def _letter(number: int) -> str:
    return (_letter(number // 26 - 1) if number >= 26 else "") + ascii_lowercase[number % 26]


def markdown(blocks: Sequence[Block]) -> str:
    return "\n\n".join(map(_markdown, blocks)) + "\n"


def _markdown(block: Block) -> str:
    match block:
        case Heading(text, level):
            return f"{'#' * level} {_escaped(text)}"
        case Paragraph(text):
            return _escaped(text)
        case Notes(lines):
            return "\n".join(f"- {_escaped(line)}" for line in lines)
        case Figure():
            return f"![{_escaped(block.shows)}]({block.path})"
        case Table():
            return _markdown_table(block)


def _markdown_table(table: Table) -> str:
    ruler = ["---" if column < table.texts else "---:" for column in range(len(table.columns))]
    rows = [[*map(_escaped, table.columns)], ruler]
    for number, cells in enumerate(table.rows):
        texts = map(_escaped, cells)
        rows.append([f"**{text}**" if (number, column) in table.bold else text for column, text in enumerate(texts)])
    return "\n".join("| " + " | ".join(cells) + " |" for cells in rows)


def _escaped(text: str) -> str:
    """Escape the characters that mean something in Markdown."""
    return re.sub(r"[\\|*<`]|(?<!\w)_|_(?!\w)|(?<=\])(?=\()", r"\\\g<0>", legible(" ".join(text.split())))


def page(title: str, blocks: Sequence[Block]) -> str:
    kinds = [(type(block).__name__, block) for block in blocks]
    return html_from("evaluation/report/document.html", title=title, blocks=kinds, long=LONG, inline=_inline)


def _inline(svg: str, prefix: str) -> str:
    """Return a figure as a part of a page: in the colours of the page, with unique ids."""
    drawn = svg[svg.index("<svg") :].strip()
    drawn = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}", drawn)
    for colour, of_page in {INK: "currentColor", QUIET: "var(--quiet)", PAPER: "var(--paper)"}.items():
        drawn = drawn.replace(colour, of_page)
    return drawn


def sheet(frame: pd.DataFrame) -> str:
    """Write a table as CSV, with six digits, which do not depend on the machine's rounding."""
    return frame.to_csv(index=False, float_format="%.6g", lineterminator="\n")
