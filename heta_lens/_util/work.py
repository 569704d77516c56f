"""Work counts and progress: forwards, backwards and Hessian-vector products, and the bytes that tensors hold.

``diagnostics`` reports three counts:

    forwards    rows that passed through the model: a batch of k copies counts k, a partial run counts as a whole run,
                and a frozen window with its tail, which takes two calls, counts two
    backwards   first gradients, one for each differentiated copy of the context
    hvps        products of H (or of its stand-in) with one direction

`ModelAdapter.run` and the functions that take gradients and products report their work to the innermost ``counting``,
which moves the bar, and to the ``watcher``, which may raise `Cancelled`. The runs of checks count too, in
``diagnostics["checks"]``.
"""

import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta
from importlib.util import find_spec
from time import perf_counter
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

PATIENCE = 2.0  # seconds before a bar appears
EVERY = 15.0  # seconds between two lines, where no bar can be drawn
LONG = 60.0  # seconds left that are announced, with what shortens them
SETTLED = 10.0  # seconds after which the time left is known; the first runs are slow

NAMES = {"forwards": "forward passes", "backwards": "gradients", "hvps": "Hessian–vector products"}  # on bars
in_lines: ContextVar[bool] = ContextVar("in_lines", default=False)  # commands report so; the library is silent instead

watcher: ContextVar[Callable[[str, int], None] | None] = ContextVar("watcher", default=None)
"""A function that is called with the kind and the rows of each piece of work."""

_counting: ContextVar["Progress | None"] = ContextVar("_counting", default=None)


class Cancelled(BaseException):
    """Work was cancelled; not an `Exception`, so that no handler of errors catches it."""


@dataclass(frozen=True)
class Work:
    """Runs of a model that lie ahead, at most: copies that run forwards and backwards, and Hessian-vector products."""

    forwards: int = 0
    backwards: int = 0
    hvps: int = 0

    @property
    def worth(self) -> int:
        """The runs in plain forwards: a backward counts as two, and so does a Hessian-vector product."""
        return self.forwards + 2 * (self.backwards + self.hvps)

    def __add__(self, other: "Work") -> "Work":
        return Work(self.forwards + other.forwards, self.backwards + other.backwards, self.hvps + other.hvps)


def count(kind: str, rows: int) -> None:
    """Add rows to the innermost count, and move its bar."""
    progress = _counting.get()
    if progress is not None:
        progress.ran[kind] += rows
        progress.advance(kind, rows)
    if watch := watcher.get():
        watch(kind, rows)


@contextmanager
def counting(counts: Counter[str]) -> Iterator[Counter[str]]:
    """Count the work inside a block in ``counts``, and nowhere else."""
    with Progress(counts).receiving():
        yield counts


@dataclass
class Progress:
    """The work so far: the runs that the model counted, and seconds. ``bars`` appear when ``due``."""

    ran: Counter[str] = field(default_factory=Counter[str])
    started: float = field(default_factory=perf_counter)
    bars: Bars | None = None
    due: float = 0.0

    def advance(self, kind: str, units: int) -> None:
        """Move the bar of a kind of work."""
        if self.bars is not None:
            for task in self.bars.tasks:
                if task.description == NAMES.get(kind, kind):
                    self.bars.advance(task.id, units)
            if perf_counter() >= self.due:
                self.bars.start()

    @contextmanager
    def receiving(self) -> Iterator["Progress"]:
        """Count the model's work inside a block here, and nowhere else."""
        before = _counting.set(self)
        try:
            yield self
        finally:
            _counting.reset(before)

    def cost(self) -> dict[str, Any]:
        return {"forwards": 0, "backwards": 0, "hvps": 0, **self.ran, "seconds": perf_counter() - self.started}


class Waits(Bars):
    """Bars, or lines in the place of bars that cannot be drawn. Without both, only a long wait is announced."""

    def __init__(
        self, *columns: ProgressColumn, console: Console, drawn: bool, lines: bool, shorter: str, times: int
    ) -> None:
        super().__init__(*columns, console=console, transient=console.is_terminal)
        self.drawn, self.lines, self.shorter, self.times = drawn, lines, shorter if times else "", times
        self.begun, self.said = perf_counter(), 0.0

    def start(self) -> None:
        """Draw the bars, or say the share that is done and the time that is left, now and then."""
        now = perf_counter()
        weights = [1 if task.description == NAMES["forwards"] else 2 for task in self.tasks]
        done = sum(weight * task.completed for weight, task in zip(weights, self.tasks, strict=True))
        expected = sum(weight * (task.total or 0) for weight, task in zip(weights, self.tasks, strict=True))
        whole = max(done, expected)  # more may run
        seconds = (now - self.begun) * (whole - done) / done if done else None
        left = "unknown" if seconds is None else timedelta(seconds=round(seconds))
        settled = SETTLED if done > whole / 100 else LONG
        if self.shorter and seconds is not None and now - self.begun >= settled:
            seconds += (self.times - 1) * (seconds + now - self.begun)
            if seconds > LONG:
                self._say(f"about {timedelta(seconds=round(seconds))} left: {self.shorter}")
                self.shorter = ""
        if self.drawn:
            super().start()
        elif self.lines and now - (self.said or self.begun) >= EVERY:
            self.said = now
            self._say(f"{done / whole:.0%} done, about {left} left")

    def _say(self, line: str) -> None:
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)


def step() -> AbstractContextManager[Progress]:
    """Count the model's work inside a block apart, and move the bar of the work around it."""
    around = _counting.get() or Progress()
    return Progress(bars=around.bars, due=around.due).receiving()


@contextmanager
def working(expected: dict[str, int], show: bool | None, shorter: str = "", times: int = 1) -> Iterator[Progress]:
    """Count the model's work inside a block; ``show`` draws a bar per kind of work.

    With None, a bar is drawn on a terminal or in a notebook, if the work lasts; a command prints lines elsewhere. A
    long wait is announced, except with False; ``shorter`` says what shortens it, and ``times`` how often the work is
    done in all.
    """
    console, bars = Console(file=sys.stderr), None
    watched = console.is_terminal or (console.is_jupyter and find_spec("ipywidgets") is not None)
    drawn = watched if show is None else show
    if any(expected.values()) and show is not False:
        columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
        bars = Waits(*columns, console=console, drawn=drawn, lines=in_lines.get(), shorter=shorter, times=times)
        for kind, total in expected.items():
            if total:
                bars.add_task(NAMES.get(kind, kind), total=total)
    try:
        due = perf_counter() + (PATIENCE if show is None else 0.0)
        with Progress(bars=bars, due=due).receiving() as progress:
            yield progress
    finally:
        if bars is not None and bars.live.is_started:
            bars.stop()


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
