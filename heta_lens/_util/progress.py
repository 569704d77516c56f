"""Showing work while it lasts."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from importlib.util import find_spec
from time import perf_counter

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from heta_lens._util.progress_bar import Bar
from heta_lens._util.progress_lines import WorkLines
from heta_lens._util.work_counting import Work

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
