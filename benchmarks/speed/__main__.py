"""The cost of scores and of cheaper ways to them, beside a naive implementation of the paper's formulas.

`python -m benchmarks.speed` writes RESULTS.md and the table in docs/models.md; with `--model` or `--length`, that
model's tables or the rows of that length; with another option it only shows what it finds.
The naive implementation is `benchmarks/reference.py`: one full-length HVP for each token and probe, one full run for
each masked token.

Long contexts would take hours, so a part of the work is measured and stands for the rest (see `parts.py`).
"""

from typing import Annotated

import typer
from rich.console import Console

from benchmarks import stories3m
from benchmarks.report import show
from benchmarks.speed.cases import LENGTHS
from benchmarks.speed.models import MODELS
from benchmarks.speed.pages import Table, keep
from benchmarks.speed.tables import measured

REPEATS = 2


def main(
    length: Annotated[list[int] | None, typer.Option(help="Context lengths.")] = None,
    model: Annotated[list[str] | None, typer.Option(help=f"Of {', '.join(MODELS)}.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="How often both are timed in turn.")] = REPEATS,
    probes: Annotated[int | None, typer.Option(min=1, help="Probes a token, instead of what suits a length.")] = None,
) -> None:
    console = Console(stderr=True)
    for name in model or MODELS:
        if name == "stories3M" and not stories3m.MODEL.is_dir():
            console.print(f"no stories3M model at {stories3m.MODEL}: skipped")
            continue
        latest: dict[str, Table] = {}
        for table in measured(name, length or LENGTHS, repeats, probes, console):
            latest[table[0]] = table
            if (repeats, probes) == (REPEATS, None):
                keep(table)
        for table in latest.values():
            show(*table)


if __name__ == "__main__":
    typer.run(main)
