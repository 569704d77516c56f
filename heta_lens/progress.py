"""Counting the work as it is done, and showing it while it lasts."""

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn


@dataclass
class Work:
    """What a run has cost so far: units of each kind (``forwards``, ``hvps``), and seconds."""

    done: Counter[str] = field(default_factory=Counter)
    started: float = field(default_factory=perf_counter)
    bar: Progress | None = None

    def add(self, kind: str, units: int) -> None:
        self.done[kind] += units
        if self.bar is not None:
            for task in self.bar.tasks:
                if task.fields["kind"] == kind:
                    self.bar.advance(task.id, units)

    def step(self) -> "Work":
        """A part of it, with counts of its own."""
        return Work(bar=self.bar)

    def cost(self) -> dict[str, int | float]:
        return {"forwards": 0, "hvps": 0, **self.done, "seconds": perf_counter() - self.started}


@contextmanager
def working(expected: dict[str, int], show: bool | None) -> Iterator[Work]:
    """Count the work done inside; ``show`` draws a bar per kind of work (None: only where someone watches)."""
    console = Console(file=sys.stderr)
    if not ((console.is_terminal or console.is_jupyter) if show is None else show):
        yield Work()
        return
    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=console.is_terminal) as bar:
        for kind, total in expected.items():
            if total:
                bar.add_task(kind, total=total, kind=kind)
        yield Work(bar=bar)
