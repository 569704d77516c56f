"""How many prompts per second two workers do, compared with one: processes of this machine, and Ray on it.

`python -m benchmarks.throughput` writes THROUGHPUT.md.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import NamedTuple

from benchmarks.report import markdown, number
from heta_lens.data.suites import suite
from heta_lens.evaluation import Entry, Workers, evaluate

PAGE = Path(__file__).with_name("THROUGHPUT.md")
METHODS = "heta", "leave_one_out", "lime"
METRICS = ["morf", "evidence_mass"]
PROMPTS, FEW, ROUNDS = 40, 4, 3  # what many take longer than few is without what takes as long for any number
SETUPS = {
    "one process": Workers(threads=1),
    "two processes": Workers(2, threads=1),
    "Ray, one worker": Workers(1, "ray", threads=1),
    "Ray, two workers": Workers(2, "ray", threads=1),
}
COLUMNS = ["workers", "prompts per second", "times one process", f"seconds of {PROMPTS} prompts", "until work begins"]


class Timing(NamedTuple):
    """Seconds of many prompts, and of few."""

    many: float
    few: float

    @property
    def rate(self) -> float:
        return (PROMPTS - FEW) / (self.many - self.few)

    @property
    def start(self) -> float:
        return self.few - FEW / self.rate


def seconds(workers: Workers, prompts: int) -> float:
    with TemporaryDirectory() as folder:
        begun = perf_counter()
        entries = [Entry.read(method) for method in METHODS]
        evaluate(
            "demo", suite("recall", limit=prompts), entries, METRICS, Path(folder), workers=workers, progress=False
        )
        return perf_counter() - begun


def measured() -> dict[str, Timing]:
    """Medians of rounds, in each of which every setup has its turn."""
    rounds = [{name: _timing(workers) for name, workers in SETUPS.items()} for _ in range(ROUNDS)]
    return {name: _median([timings[name] for timings in rounds]) for name in SETUPS}


def _median(timings: Sequence[Timing]) -> Timing:
    """The one of the median rate."""
    return sorted(timings, key=lambda timing: timing.rate)[len(timings) // 2]


def _timing(workers: Workers) -> Timing:
    return Timing(seconds(workers, PROMPTS), seconds(workers, FEW))


def rows(timings: dict[str, Timing]) -> list[Sequence[str]]:
    single = next(iter(timings.values())).rate
    return [
        [name, number(each.rate), number(each.rate / single), number(each.many), number(each.start)]
        for name, each in timings.items()
    ]


def page(timings: dict[str, Timing]) -> str:
    about = (
        f"Recall stories of the demo model, explained by {', '.join(METHODS)}, evaluated by {' and '.join(METRICS)}; "
        f"{os.cpu_count()} CPU cores, one thread for each worker. Medians of {ROUNDS} rounds. Prompts per second are "
        "without the time until work begins, which is the same for any number of prompts."
    )
    return f"{about}\n\n{markdown(COLUMNS, rows(timings))}\n"


if __name__ == "__main__":
    PAGE.write_text(page(measured()))
    sys.stdout.write(f"{PAGE}\n")
