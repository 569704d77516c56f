"""Counting the work as it is done, and showing it while it lasts."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from time import perf_counter
from typing import TypeAlias

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

Done: TypeAlias = Callable[[int], None]  # is told how many units of work were just done

MOST_WORK = 10**9  # runs of one kind: weeks of them, of the smallest model
PATIENCE = 2.0  # seconds that nobody needs a bar for


@dataclass
class Work:
    """What a run has cost so far: units of each kind (``forwards``, ``backwards``, ``hvps``), and seconds."""

    done: Counter[str] = field(default_factory=Counter)
    started: float = field(default_factory=perf_counter)
    bar: Progress | None = None
    due: float = 0.0  # when the bar is to appear

    def add(self, kind: str, units: int) -> None:
        self.done[kind] += units
        if self.bar is not None:
            if not self.bar.live.is_started and perf_counter() >= self.due:
                self.bar.start()
            for task in self.bar.tasks:
                if task.fields["kind"] == kind:
                    self.bar.advance(task.id, units)

    def step(self) -> "Work":
        """A part of it, with counts of its own."""
        return Work(bar=self.bar, due=self.due)

    def cost(self) -> dict[str, int | float]:
        return {"forwards": 0, "hvps": 0, **self.done, "seconds": perf_counter() - self.started}


@contextmanager
def working(expected: dict[str, int], show: bool | None) -> Iterator[Work]:
    """Count the work done inside; ``show`` draws a bar per kind of work.

    None draws it only where someone watches, and only of work that lasts. Work without end is refused.
    """
    for kind, total in expected.items():
        if total > MOST_WORK:
            raise ValueError(
                f"this would take {total} {kind}, and at most {MOST_WORK} can be run: lower what is counted"
            )
    console = Console(file=sys.stderr)
    if not (_watched(console) if show is None else show):
        yield Work()
        return
    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
    bar = Progress(*columns, console=console, transient=console.is_terminal)
    for kind, total in expected.items():
        if total:
            bar.add_task(kind, total=total, kind=kind)
    try:
        yield Work(bar=bar, due=perf_counter() + PATIENCE if show is None else 0.0)
    finally:
        if bar.live.is_started:
            bar.stop()


def _watched(console: Console) -> bool:
    """Whether a bar can be drawn where somebody sees it: in a notebook, that takes ipywidgets."""
    return console.is_terminal or (console.is_jupyter and find_spec("ipywidgets") is not None)
