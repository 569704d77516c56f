"""Counting the work as it is done.

What is counted, and reported in ``diagnostics``:

    forwards    rows that passed through the model: a batch of k copies counts k, a copy run from some position on
                counts as much as a whole one, and a frozen window with its tail, which are two calls, counts two
    backwards   first gradients, one for each copy of the context that was differentiated
    hvps        products of H (or of what stands for it) with one direction

They are counted where they happen, in `ModelAdapter.run` and where gradients are taken, and go to the
innermost ``counting``.
Checks run the model as well: ``diagnostics["checks"]`` counts the same kinds, by what was checked.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from time import perf_counter
from typing import TypeAlias

from heta_lens._util.progress_bar import Bar
from heta_lens._util.progress_lines import WorkLines

Done: TypeAlias = Callable[[int], None]  # called with how many units of work were just done

_counts: ContextVar[Counter[str] | None] = ContextVar("_counts", default=None)


def count(kind: str, rows: int) -> None:
    """Note that the model was run, or a gradient pulled back through it."""
    counts = _counts.get()
    if counts is not None:
        counts[kind] += rows


@contextmanager
def counting(counts: Counter[str]) -> Iterator[Counter[str]]:
    """What the model does inside is noted here, and nowhere else."""
    before = _counts.set(counts)
    try:
        yield counts
    finally:
        _counts.reset(before)


@dataclass
class Work:
    """What a run has cost so far: units of each kind, and seconds.

    ``done`` is what moved the bar; ``ran`` is what was counted where the model ran, which is what was paid.
    """

    done: Counter[str] = field(default_factory=Counter)
    ran: Counter[str] = field(default_factory=Counter)
    started: float = field(default_factory=perf_counter)
    bar: Bar | WorkLines | None = None

    def add(self, kind: str, units: int) -> None:
        self.done[kind] += units
        if self.bar is not None:
            self.bar.advance(kind, units)

    @contextmanager
    def step(self) -> Iterator["Work"]:
        """A part of it, which counts what the model does inside as its own."""
        part = Work(bar=self.bar)
        with part.counting():
            yield part

    def cost(self) -> dict[str, int | float]:
        return {"forwards": 0, "hvps": 0, **self.done, **self.ran, "seconds": perf_counter() - self.started}

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count what the model does inside as this work's."""
        self.ran.update(forwards=0, backwards=0)  # from here on they are counted where they happen
        with counting(self.ran):
            yield
