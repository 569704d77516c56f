"""A progress bar for each kind of work, drawn once the work lasts."""

import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from importlib.util import find_spec
from threading import Event, Thread
from time import perf_counter
from typing import Any, TypeAlias

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

LONG = 10.0  # seconds still to come of which one may want to know what would be cheaper
_said: set[str] = set()


@dataclass(eq=False)
class Bar:
    """Bars that appear when they are ``due``; if there is long to wait, ``cheaper`` says what is, once."""

    bars: Progress
    due: float
    cheaper: Callable[[], str]

    @property
    def drawn(self) -> bool:
        return self.bars.live.is_started

    def advance(self, kind: str, units: int) -> None:
        if not self.drawn and perf_counter() >= self.due:
            self.bars.start()
        for task in self.bars.tasks:
            if task.fields["kind"] == kind:
                self.bars.advance(task.id, units)
                if self.drawn and (task.time_remaining or 0) > LONG:
                    self._say_once(self.cheaper())

    def _say_once(self, advice: str) -> None:
        if advice and advice not in _said:
            _said.add(advice)
            self.bars.console.print(advice, markup=False, highlight=False, soft_wrap=True)
        self.cheaper = lambda: ""

    def stop(self) -> None:
        if self.drawn:
            self.bars.stop()


# ------------------------------------------------------------------------------------------------------ progress lines
# Progress in plain lines, one now and then, for logs and other places where no bar can be drawn.


EVERY = 15.0  # seconds between two lines
FIRST, LONGEST = 10.0, 60.0  # seconds before the first of some work, and at most between two
ENOUGH = 0.1  # of the work, to tell from it how long the rest will take
FORWARDS = {"backwards": 2, "hvps": 4}  # that a unit of work is worth, if not one


@dataclass(eq=False)
class ProgressLines:
    """Says how many of ``total`` are done, at once and then now and then, and how long the others will take.

    That is as long as those before them took; what was ``kept`` from an earlier run took no time.
    """

    total: int
    say: Callable[[str], None]
    clock: Callable[[], float] = perf_counter
    kept: int = 0
    done: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.start = self.last = self.clock()
        if self.total > self.kept:
            self.say(f"{self.kept} of {self.total} done")

    def advance(self, count: int) -> None:
        self.done += count
        now, left = self.clock(), self.total - self.kept - self.done
        if now - self.last >= EVERY and left > 0:
            self.last = now
            time_left = timedelta(seconds=round((now - self.start) * left / self.done))
            self.say(f"{self.kept + self.done} of {self.total} done, about {time_left} left")


@dataclass(eq=False)
class WorkLines:
    """Says how much of the ``expected`` work is done, first after ten seconds and then less and less often.

    A thread of its own does so, because a single batch may take longer than that.
    """

    expected: Mapping[str, int]
    say: Callable[[str], None]
    done: Counter[str] = field(default_factory=Counter, init=False)

    def __post_init__(self) -> None:
        self._ended = Event()
        self._thread = Thread(target=self._report, daemon=True)
        self._thread.start()

    def advance(self, kind: str, units: int) -> None:
        self.done[kind] += units

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def _report(self) -> None:
        start, wait = perf_counter(), FIRST
        while not self._ended.wait(wait):
            self.say(self._line(perf_counter() - start))
            wait = min(2 * wait, LONGEST)

    def _line(self, seconds: float) -> str:
        done, expected = (
            sum(FORWARDS.get(kind, 1) * count for kind, count in [*counts.items()])
            for counts in (self.done, self.expected)
        )
        after = timedelta(seconds=round(seconds))
        if not ENOUGH * expected < done < expected:
            return f"working for {after}"
        left = timedelta(seconds=round(seconds * (expected - done) / done))
        return f"{done / expected:.0%} done after {after}, about {left} left"


# ------------------------------------------------------------------------------------------------------- work counting
# Counting the work as it is done.
#
# What is counted, and reported in ``diagnostics``:
#
#     forwards    rows that passed through the model: a batch of k copies counts k, a copy run from some position on
#                 counts as much as a whole one, and a frozen window with its tail, which are two calls, counts two
#     backwards   first gradients, one for each copy of the context that was differentiated
#     hvps        products of H (or of what stands for it) with one direction
#
# They are counted where they happen, in `ModelAdapter.run` and where gradients are taken, and go to the
# innermost ``counting``.
# Checks run the model as well: ``diagnostics["checks"]`` counts the same kinds, by what was checked.


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


# ------------------------------------------------------------------------------------------------------------ progress
# Showing work while it lasts.


MOST_WORK = 10**9  # runs of one kind: weeks of them, of the smallest model
PATIENCE = 2.0  # seconds that nobody needs a bar for

_in_lines: ContextVar[bool] = ContextVar("_in_lines", default=False)


@contextmanager
def progress_in_lines() -> Iterator[None]:
    """Report work in lines where no bar can be drawn, as commands do; a library is silent there."""
    before = _in_lines.set(True)
    try:
        yield
    finally:
        _in_lines.reset(before)


@contextmanager
def working(expected: dict[str, int], show: bool | None, cheaper: Callable[[], str] = lambda: "") -> Iterator[Work]:
    """Count the work done inside; ``show`` draws a bar per kind of work, and says what is ``cheaper`` than long work.

    None draws it only where someone watches, and only of work that lasts. Work without end is refused.
    """
    for kind, total in expected.items():
        if total > MOST_WORK:
            raise ValueError(
                f"this would take {total} {kind}, and at most {MOST_WORK} can be run: lower what is counted"
            )
    console = Console(file=sys.stderr)
    if not (_watched(console) if show is None else show):
        if show is not None or not _in_lines.get():
            yield Work()
            return
        lines = WorkLines(expected, partial(console.print, markup=False, highlight=False, soft_wrap=True))
        try:
            yield Work(bar=lines)
        finally:
            lines.stop()
        return
    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
    bars = Progress(*columns, console=console, transient=console.is_terminal)
    for kind, total in expected.items():
        if total:
            bars.add_task(kind, total=total, kind=kind)
    bar = Bar(bars, perf_counter() + PATIENCE if show is None else 0.0, cheaper)
    try:
        yield Work(bar=bar)
    finally:
        bar.stop()


def _watched(console: Console) -> bool:
    """Whether a bar can be drawn where somebody sees it: in a notebook, that takes ipywidgets."""
    return console.is_terminal or (console.is_jupyter and find_spec("ipywidgets") is not None)


# ------------------------------------------------------------------------------------------------- allocation counting
# How many bytes tensors hold: counted as operations make them and nobody has them any more.


class Allocations(TorchDispatchMode):
    """Bytes of tensors made in its block: those that are there ``now``, and the ``most`` that were at once.

    Views share what they view, and what was there before does not count. What a kernel needs within is not seen. It is
    the same in every run, unlike a process's size: freed memory stays with a process, for whoever comes next.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self._known: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._note((args, kwargs), new=False)
        results = func(*args, **(kwargs or {}))
        self._note(results, new=True)
        return results

    def _note(self, values: Any, *, new: bool) -> None:
        for value in tree_leaves(values):
            if isinstance(value, Tensor):
                storage = value.untyped_storage()
                key = storage._cdata
                if key not in self._known:
                    self._known[key] = storage.nbytes() if new else 0
                    self.now += self._known[key]
                    weakref.finalize(storage, self._release, key)
        self.most = max(self.most, self.now)

    def _release(self, key: int) -> None:
        self.now -= self._known.pop(key)
