"""Pages with measured tables: every table is a CSV file, and its place on the page is below the heading of its title.

A measurement writes its tables with `write`. `python -m benchmarks.pages` writes all tables again from the CSV files.
"""

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from math import isfinite
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure

from docs import pictures
from heta_lens.evaluation.statistics import Estimate

ROOT = Path(__file__).parents[1]
CSV = Path(__file__).with_name("tables")
IN_DOCS = "results"
BESIDE = "browser components coverage growth memory peers probes real speed startup throughput"
PAGES = {name: ROOT / "docs" / f"{name}.md" for name in IN_DOCS.split()} | {
    name: ROOT / "benchmarks" / f"{name.upper()}.md" for name in BESIDE.split()
}
INTERVAL = re.compile(r"(?P<value>[^\s;]+) \[(?P<low>[^\s;]+), (?P<high>[^\s;]+)\]")
HEADING_OR_TABLE = re.compile(
    r"^#+ (?P<title>.*)$|(?P<head>^\|.*)\n\|(?: *:?-+:? *\|)+\n(?P<rows>(?:\|.*\n?)*)", re.MULTILINE
)
LOW, HIGH = ", low", ", high"


# --------------------------------------------------------------------------------------------------------------- cells
def number(value: float) -> str:
    """Return a number with three digits, or with all digits before the point."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def written(one: Estimate, sign: str = "") -> str:
    value, low, high = (f"{number:{sign}.2f}" for number in (one.value, one.low, one.high))
    return f"{value} [{low}, {high}]" if isfinite(one.low) and isfinite(one.high) else value


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |" for cells in lines)


# --------------------------------------------------------------------------------------------------------------- pages
@dataclass(frozen=True)
class Table:
    """A table of a page, with a note above the rows. A table with ``missing`` outcomes is not written."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    missing: int = 0
    note: str = ""

    @property
    def text(self) -> str:
        return (f"{self.note}\n\n" if self.note else "") + markdown(self.columns, self.rows)


def write(name: str, tables: Iterable[Table]) -> None:
    """Write the tables of a page below the headings of their titles, and the CSV files."""
    page = PAGES[name]
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    for table in tables:
        if table.missing:
            print(f"{page.name}: {table.title!r} stays, {table.missing} of its outcomes are missing")  # noqa: T201
        else:
            text = put(text, table.title, table.text)
    page.write_text(text, encoding="utf-8")
    save(name)


def put(page: str, title: str, body: str) -> str:
    """Return a page with a new text below a heading (added at the end if absent), or in place of the table if
    untitled.
    """
    if not title:
        return f"{page[: page.index('| ')]}{body}\n"
    heading = f"## {title}"
    before, _, after = f"\n{page}".partition(f"\n{heading}\n")
    rest = re.search(r"^#+ ", after, re.MULTILINE)
    following = after[rest.start() :] if rest else ""
    return "\n\n".join([before.strip(), heading, body, following]).strip() + "\n"


def save_figure(figure: Figure, path: Path) -> None:
    """Save a figure for light pages and for dark pages."""
    drawn = BytesIO()
    figure.savefig(drawn, dpi=150)
    pictures.keep(drawn.getvalue(), path)


# ----------------------------------------------------------------------------------------------------------- CSV files
class Placed(NamedTuple):
    """A table of a page: the CSV file of its section, and the place of its lines in the page."""

    file: str
    columns: list[str]
    rows: list[list[str]]
    start: int
    stop: int


def placed(name: str, text: str) -> Iterator[Placed]:
    title = ""
    for part in HEADING_OR_TABLE.finditer(text):
        if part["title"] is not None:
            title = part["title"] if part[0].startswith("##") else ""
            continue
        slug = re.sub(r"\W+", "_", title.lower()).strip("_")
        rows = [_cells(line) for line in part["rows"].splitlines()]
        yield Placed(f"{name}-{slug}.csv" if slug else f"{name}.csv", _cells(part["head"]), rows, *part.span("rows"))


def _cells(line: str) -> list[str]:
    return [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]]


def save(name: str) -> None:
    """Write the tables of a page into CSV files: one for each section, whose tables share their first column."""
    for old in [*CSV.glob(f"{name}-*.csv"), *CSV.glob(f"{name}.csv")]:
        old.unlink()
    files: dict[str, list[list[str]]] = {}
    for table in placed(name, PAGES[name].read_text(encoding="utf-8")):
        lines = files.setdefault(table.file, [[] for _ in range(1 + len(table.rows))])
        if [line[0] for line in lines[1:] if line] not in ([], [row[0] for row in table.rows]):
            raise ValueError(f"{name}: the tables of {table.file} have other rows: give them headings of their own")
        for column, cells in zip(table.columns, zip(*table.rows, strict=True), strict=True):
            if not lines[0] or column != table.columns[0]:
                for line, cell in zip(lines, split_cells(column, cells), strict=True):
                    line.extend(cell)
    CSV.mkdir(exist_ok=True)
    for file, lines in files.items():
        with (CSV / file).open("w", newline="", encoding="utf-8") as opened:
            csv.writer(opened, lineterminator="\n").writerows(lines)


def split_cells(column: str, cells: Sequence[str]) -> list[list[str]]:
    """Return a column's head and cells, with the ends of intervals in columns of their own."""
    found = [INTERVAL.fullmatch(cell) for cell in cells]
    if not any(found) or not all(match or "[" not in cell for match, cell in zip(found, cells, strict=True)):
        return [[column], *([cell] for cell in cells)]
    parts = ([*match.groups()] if match else [cell, "", ""] for match, cell in zip(found, cells, strict=True))
    return [[column, column + LOW, column + HIGH], *parts]


def from_csv(name: str) -> str:
    """Return a page with the numbers of the CSV files in its tables."""
    text = PAGES[name].read_text(encoding="utf-8")
    for table in reversed([*placed(name, text)]):
        with (CSV / table.file).open(newline="", encoding="utf-8") as file:
            rows = [[_joined(row, column) for column in table.columns] for row in csv.DictReader(file)]
        lines = markdown(table.columns, rows).split("\n", 2)[2]
        text = text[: table.start] + lines + "\n" * text[table.start : table.stop].endswith("\n") + text[table.stop :]
    return text


def _joined(row: dict[str, str], column: str) -> str:
    low, high = row.get(column + LOW), row.get(column + HIGH)
    return f"{row[column]} [{low}, {high}]" if low and high else row[column]


if __name__ == "__main__":
    for page in PAGES:
        PAGES[page].write_text(from_csv(page), encoding="utf-8")
