"""Progress of an evaluation: the ended tasks of all workers, and the time that is left."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from math import inf
from time import perf_counter

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from heta_lens.evaluation.run_database import RunDatabase

EVERY = 15.0  # seconds between two lines of progress
POWER = 1.5  # of the length of a prompt, by which seconds grow


@contextmanager
def progress_of(run: RunDatabase, shown: bool) -> Iterator[Callable[[], None]]:
    """Show the ended tasks of a run, of all its workers, when the function that is yielded is called now and then."""
    total, console, last = sum(run.counts().values()), Console(stderr=True), -inf
    has_bar = console.is_terminal or console.is_jupyter
    columns = TextColumn("evaluating"), BarColumn(), TextColumn("{task.fields[done]}")
    bar = Progress(*columns, console=console, disable=not shown)
    task = bar.add_task("", total=total, done="")

    def show(every: float = 0.5 if has_bar else EVERY) -> None:
        nonlocal last
        if not shown or perf_counter() - last < every:
            return
        last, counts, seconds = perf_counter(), run.counts(), seconds_left(run)
        workers = max(1, len(run.rows("SELECT DISTINCT worker FROM tasks WHERE state = 'claimed'")))
        left = "" if seconds is None else f", about {timedelta(seconds=round(seconds / workers))} left"
        completed = total - counts.get("pending", 0) - counts.get("claimed", 0)
        done = f"{completed} of {total} done{left}"
        if not has_bar and done != bar.tasks[task].fields["done"]:
            console.print(done, markup=False, highlight=False, soft_wrap=True)
        bar.update(task, completed=completed, done=done)

    show()
    with bar if has_bar else nullcontext():
        yield show
        show(0.0)


def seconds_left(run: RunDatabase) -> float | None:
    """Predict the seconds of work that are left, one worker's, from the ended tasks; None without any.

    Seconds grow with a power of the length of a prompt, times a factor of the method.
    """
    seconds, done, left = (Counter[str]() for _ in range(3))
    rows = run.rows("SELECT method, size, state, waited FROM tasks JOIN prompts USING (prompt)")
    for method, size, state, waited in rows:
        if state == "done" and waited is not None:
            seconds[method] += waited
            done[method] += size**POWER
        elif state in ("pending", "claimed"):
            left[method] += size**POWER
    if not left:
        return 0.0
    if not done:
        return None
    paces = {method: seconds[method] / work for method, work in done.items()}
    usual = sum(paces.values()) / len(paces)
    return sum(paces.get(method, usual) * work for method, work in left.items())
