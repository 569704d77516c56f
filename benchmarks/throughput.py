"""Prompts per second of two workers, compared with one: processes of this machine, and Ray on the same machine."""

import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import NamedTuple

from benchmarks import pages
from benchmarks.pages import number
from heta_lens.data.suites import suite
from heta_lens.evaluation import Entry, Workers, evaluate

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
        some, entries = suite("recall", limit=prompts), [Entry.read(method) for method in METHODS]
        evaluate("demo", some, entries, METRICS, Path(folder), workers=workers, progress=False)
        return perf_counter() - begun


def measured() -> dict[str, Timing]:
    """Return medians of rounds, in which the setups take turns."""
    rounds = [
        {name: Timing(seconds(workers, PROMPTS), seconds(workers, FEW)) for name, workers in SETUPS.items()}
        for _ in range(ROUNDS)
    ]
    by_rate = {name: sorted((one[name] for one in rounds), key=lambda timing: timing.rate) for name in SETUPS}
    return {name: timings[ROUNDS // 2] for name, timings in by_rate.items()}


def rows(timings: dict[str, Timing]) -> list[Sequence[str]]:
    single = next(iter(timings.values())).rate
    return [
        [name, number(each.rate), number(each.rate / single), number(each.many), number(each.start)]
        for name, each in timings.items()
    ]


def write() -> None:
    note = f"{os.cpu_count()} CPU cores, one thread for each worker."
    pages.write("throughput", [pages.Table("Prompts per second", COLUMNS, rows(measured()), note=note)])
