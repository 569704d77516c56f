"""Writes GROUPS.md: `python -m benchmarks.groups`."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.progress import track

from benchmarks.groups import correction, early_and_late, errors, intervals, longer_contexts, pairs
from benchmarks.groups.asked import LENGTH, MANY, cases
from benchmarks.report import Table, write
from heta_lens._util.python import versions

PAGE = Path(__file__).parents[1] / "GROUPS.md"
LEGEND = f"""\
The expectation is the mean of {MANY} probes of every token alone, with another seed, where no other number is given.
Scores sum to 1, and L1 goes from 0 to 2. Models have one prompt each where no suite is named; the small ones have 3
layers of width 48 and random weights."""


class Section(NamedTuple):
    """A table: what it is of, and its rows about each."""

    title: str
    columns: Sequence[str]
    note: str
    cases: Callable[[], Iterable[tuple[str, Any]]]
    rows: Callable[[str, Any], Iterable[list[str]]]

    @classmethod
    def of(cls, module: Any, cases: Callable[[], Iterable[tuple[str, Any]]]) -> "Section":
        return cls(module.TITLE, module.COLUMNS, module.NOTE, cases, module.rows)


one_prompt_a_model = partial(cases, LENGTH)
SECTIONS = {
    "errors": Section.of(errors, one_prompt_a_model),
    "correction": Section.of(correction, correction.held_out),
    "intervals": Section.of(intervals, intervals.shorter_cases),
    "longer": Section.of(longer_contexts, longer_contexts.longer_cases),
    "pairs": Section.of(pairs, one_prompt_a_model),
    "split": Section.of(early_and_late, one_prompt_a_model),
}


def main(only: Annotated[str, typer.Option(help=f"One of {', '.join(SECTIONS)}; the others stay.")] = "") -> None:
    if only not in ("", *SECTIONS):
        raise typer.BadParameter(f"{only!r} is none of {', '.join(SECTIONS)}")
    tables = {key: Table(one.title, one.columns, [], missing=1) for key, one in SECTIONS.items()}
    preamble = f"# Grouped probes\n\nWritten by `python -m benchmarks.groups`. {LEGEND}"
    used = ", ".join(map(" ".join, versions().items()))
    for key, section in SECTIONS.items():
        if only in ("", key):
            rows = [row for case in track(list(section.cases()), key) for row in section.rows(*case)]
            tables[key] = Table(section.title, section.columns, rows, note=f"{section.note} Measured with {used}.")
            write(PAGE, preamble, [*tables.values()])


if __name__ == "__main__":
    typer.run(main)
