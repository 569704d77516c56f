"""What the tables share: numbers with intervals, and pages that are written table by table."""

import re
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

import rich
from rich.console import Console
from rich.table import Table as Shown

from heta_lens.evaluation.statistics import Bounds, estimate

Rows = Sequence[Sequence[str]]

TOY_MODELS = "Measured on toy models: what comes first here need not come first on a real model."
EACH_ALONE = (
    "*HETA was measured here with every token probed alone (`groups=None`), and has not been measured again since "
    "tokens share HVPs.*"
)
INTERVALS = "95 % intervals"
INDEPENDENT = (
    "*These intervals treat prompts as independent, which those of one template are not: they are too narrow. The "
    "outcomes behind this table have not all been measured again.*"
)


def number(value: float) -> str:
    """Three digits, or all before the point."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def average(
    values: Sequence[float], clusters: Sequence[Hashable], bounds: Bounds | None = None, digits: int = 2
) -> str:
    """A mean with its 95 % interval over clusters; none where all values are equal."""
    if len(set(values)) == 1:
        return f"{values[0]:.{digits}f}"
    return _with_interval(values, clusters, bounds, f".{digits}f")


def proportion(hits: Sequence[float], clusters: Sequence[Hashable], digits: int = 0) -> str:
    """A share with its 95 % interval over clusters; a dash where there is nothing to have a share of."""
    return _with_interval(hits, clusters, (0, 1), f".{digits}%") if len(hits) else "–"


def _with_interval(values: Sequence[float], clusters: Sequence[Hashable], bounds: Bounds | None, form: str) -> str:
    """Without the interval where the data say nothing of an end."""
    mean = estimate([float(value) for value in values], clusters, bounds=bounds)
    value, low, high = (f"{number:{form}}" for number in (mean.value, mean.low, mean.high))
    return f"{value} [{low}, {high}]" if isfinite(mean.low) and isfinite(mean.high) else value


def intervals_over(groups: Iterable[Iterable[Hashable]], what: str = "templates") -> str:
    """What the intervals of a table are over: the clusters of each of its rows."""
    counts = sorted({len(set(clusters)) for clusters in groups})
    if not counts:
        return ""
    number = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0])
    return f"{INTERVALS} over {number} {what}; none for means of equal values, or of too few to tell."


@dataclass(frozen=True)
class Table:
    """One table of a page. ``missing`` outcomes are not measured yet; the rows are of those that are."""

    title: str
    columns: Sequence[str]
    rows: Rows
    missing: int = 0
    note: str = ""


def show(title: str, columns: Sequence[str], rows: Rows) -> None:
    table = Shown(*columns, title=title)
    for cells in rows:
        table.add_row(*cells)
    Console(width=160).print(table)


def write(path: Path, preamble: str, tables: Sequence[Table], level: int = 2) -> None:
    """Write the tables that are measured; the others stay as they stand in the file, and it is said which."""
    before = _sections(path.read_text(encoding="utf-8")) if path.exists() else {}
    sections = []
    for table in tables:
        if table.missing:
            rich.print(f"{path.name}: {table.title!r} stays as it was, {table.missing} of its outcomes are missing")
        body = _kept(before.get(table.title, [])) if table.missing else _body(table)
        sections += [f"{'#' * level} {table.title}", *body]
    path.write_text("\n\n".join([preamble, *sections]) + "\n", encoding="utf-8")


def _body(table: Table) -> list[str]:
    return [*([table.note] if table.note else []), markdown(table.columns, table.rows)]


def _kept(body: list[str]) -> list[str]:
    """A table as it stands, saying what its intervals are where it does not."""
    says = any(paragraph.startswith((INTERVALS, INDEPENDENT)) for paragraph in body)
    has_intervals = re.search(r"\[-?\d.*?, -?\d.*?\]", "".join(body))
    return [*([INDEPENDENT] if has_intervals and not says else []), *body] or ["Not measured yet."]


def _sections(page: str) -> dict[str, list[str]]:
    """The paragraphs below each heading."""
    _, *parts = re.split(r"^#+ (.*)$", page, flags=re.MULTILINE)
    bodies = ([one for one in body.strip().split("\n\n") if one] for body in parts[1::2])
    return dict(zip(parts[::2], bodies, strict=True))


def markdown(columns: Sequence[str], rows: Rows) -> str:
    lines: Iterable[Sequence[str]] = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |" for cells in lines)
