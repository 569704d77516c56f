"""Work counts and progress: forwards, backwards and Hessian-vector products, and the bytes that tensors hold.

``diagnostics`` reports three counts:

    forwards    rows that passed through the model: a batch of k copies counts k, a partial run counts as a whole run,
                and a frozen window with its tail, which takes two calls, counts two
    backwards   first gradients, one for each differentiated copy of the context
    hvps        products of H (or of its stand-in) with one direction

`ModelAdapter.run` and the functions that take gradients and products report their work to the innermost ``counting``,
which moves the bar. The runs of checks count too, in ``diagnostics["checks"]``.
"""

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
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

MOST_WORK = 10**9  # runs of one kind: weeks of work for the smallest model
PATIENCE = 2.0  # seconds before a bar appears
LONG = 10.0  # remaining seconds from which cheaper settings are suggested
FIRST, LONGEST = 10.0, 60.0  # seconds before the first line of `WorkLines`, and at most between two lines
ENOUGH = 0.1  # share of the work from which the remaining time is estimated
FORWARDS = {"backwards": 2, "hvps": 2}  # cost in forwards

_counting: ContextVar["Progress | None"] = ContextVar("_counting", default=None)
_in_lines: ContextVar[bool] = ContextVar("_in_lines", default=False)
_said: set[str] = set()


@dataclass(frozen=True)
class Work:
    """Runs of a model that lie ahead, at most: copies that run forwards and backwards, and Hessian-vector products."""

    forwards: int = 0
    backwards: int = 0
    hvps: int = 0

    @property
    def worth(self) -> int:
        """The runs in plain forwards: a backward counts as two, and so does a Hessian-vector product."""
        return self.forwards + FORWARDS["backwards"] * self.backwards + FORWARDS["hvps"] * self.hvps

    def __add__(self, other: "Work") -> "Work":
        return Work(self.forwards + other.forwards, self.backwards + other.backwards, self.hvps + other.hvps)


def count(kind: str, rows: int) -> None:
    """Add rows to the innermost count, and move its bar."""
    progress = _counting.get()
    if progress is not None:
        progress.ran[kind] += rows
        if progress.bar is not None:
            progress.bar.advance(kind, rows)


@contextmanager
def counting(counts: Counter[str], bar: "Bar | WorkLines | None" = None) -> Iterator[Counter[str]]:
    """Count the work inside a block in ``counts``, and nowhere else."""
    before = _counting.set(Progress(counts, bar=bar))
    try:
        yield counts
    finally:
        _counting.reset(before)


@dataclass
class Progress:
    """The work so far: the runs that the model counted, and seconds."""

    ran: Counter[str] = field(default_factory=Counter[str])
    started: float = field(default_factory=perf_counter)
    bar: "Bar | WorkLines | None" = None

    def advance(self, kind: str, units: int) -> None:
        """Move the bar of a kind of work that the model does not count."""
        if self.bar is not None:
            self.bar.advance(kind, units)

    @contextmanager
    def step(self) -> Iterator["Progress"]:
        """Create a part of the work with separate counts, and count the model's work inside the block there."""
        part = Progress(bar=self.bar)
        with counting(part.ran, part.bar):
            yield part

    def cost(self) -> dict[str, int | float]:
        return {"forwards": 0, "backwards": 0, "hvps": 0, **self.ran, "seconds": perf_counter() - self.started}


@contextmanager
def working(expected: dict[str, int], show: bool | None, cheaper: Callable[[], str] = lambda: "") -> Iterator[Progress]:
    """Count the model's work inside a block; ``show`` draws a bar per kind of work, and suggests ``cheaper`` settings.

    With None, a bar is drawn on a terminal or in a notebook, if the work lasts. More than `MOST_WORK` is refused.
    """
    for kind, total in expected.items():
        if total > MOST_WORK:
            raise ValueError(
                f"this would take {total} {kind}, and at most {MOST_WORK} can be run: lower what is counted"
            )
    console = Console(file=sys.stderr)
    watched = console.is_terminal or (console.is_jupyter and find_spec("ipywidgets") is not None)
    if watched if show is None else show:
        columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
        bars = Bars(*columns, console=console, transient=console.is_terminal)
        for kind, total in expected.items():
            if total:
                bars.add_task(kind, total=total, kind=kind)
        shown = Bar(bars, perf_counter() + PATIENCE if show is None else 0.0, cheaper)
    elif show is None and _in_lines.get():
        shown = WorkLines(expected, partial(console.print, markup=False, highlight=False, soft_wrap=True))
    else:
        shown = None
    progress = Progress(bar=shown)
    try:
        with counting(progress.ran, shown):
            yield progress
    finally:
        if shown is not None:
            shown.stop()


@contextmanager
def progress_in_lines() -> Iterator[None]:
    """Report work in lines if no bar can be drawn, for commands; the library is silent instead."""
    before = _in_lines.set(True)
    try:
        yield
    finally:
        _in_lines.reset(before)


@dataclass(eq=False)
class Bar:
    """Bars that appear when ``due``; before a long wait, ``cheaper`` gives a suggestion, once."""

    bars: Bars
    due: float
    cheaper: Callable[[], str]

    def advance(self, kind: str, units: int) -> None:
        if perf_counter() >= self.due:
            self.bars.start()
        for task in self.bars.tasks:
            if task.fields["kind"] == kind:
                self.bars.advance(task.id, units)
                if self.bars.live.is_started and (task.time_remaining or 0) > LONG:
                    advice, self.cheaper = self.cheaper(), lambda: ""
                    if advice and advice not in _said:
                        _said.add(advice)
                        self.bars.console.print(advice, markup=False, highlight=False, soft_wrap=True)

    def stop(self) -> None:
        if self.bars.live.is_started:
            self.bars.stop()


@dataclass(eq=False)
class WorkLines:
    """Lines about the share of the ``expected`` work done, first after ten seconds, then less and less often.

    A thread prints the lines, because a single batch may take longer than the time between two lines.
    """

    expected: Mapping[str, int]
    say: Callable[[str], None]
    done: Counter[str] = field(default_factory=Counter, init=False)

    def __post_init__(self) -> None:
        self._ended = Event()
        self._thread = Thread(target=self._report, daemon=True)
        self._thread.start()

    def advance(self, kind: str, units: int) -> None:
        if kind in self.expected:
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
        done, expected = _in_forwards(self.done), _in_forwards(self.expected)
        after = timedelta(seconds=round(seconds))
        if not ENOUGH * expected < done < expected:
            return f"working for {after}"
        left = timedelta(seconds=round(seconds * (expected - done) / done))
        return f"{done / expected:.0%} done after {after}, about {left} left"


def _in_forwards(counts: Mapping[str, int]) -> int:
    return sum(FORWARDS.get(kind, 1) * count for kind, count in [*counts.items()])  # other threads count meanwhile


class Allocations(TorchDispatchMode):
    """Bytes of tensors made in a block: held ``now``, and the ``most`` held at once.

    Views share bytes, earlier tensors do not count, and the working memory of kernels is not seen. The counts are
    equal in every run, unlike a process's size, because freed memory stays with a process.
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
