"""Evaluations that are killed: run as a program of its own, which forks, by ``python -m helpers.killing 50``."""

import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

import heta_lens
from heta_lens.data.suites import suite
from heta_lens.evaluation import Entry, evaluate, write_report
from heta_lens.evaluation.run_database import read_records, reading
from heta_lens.evaluation.saved_scores import load_scores

METHODS = "leave_one_out", "random", "lime samples=20"
TABLES = "report.md", "results.csv", "missing.csv"


def run(model: Any, folder: Path, limit: int = 8) -> None:
    entries = [Entry.read(method) for method in METHODS]
    evaluate(model, suite("recall", limit=limit), entries, ["morf", "f1", "soft_nc"], folder, progress=False)


def forked(work: Callable[[], None]) -> int:
    """The process that does this and ends."""
    pid = os.fork()
    if pid:
        return pid
    try:
        work()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def tables(folder: Path) -> dict[str, bytes]:
    write_report(folder)
    return {name: (folder / name).read_bytes() for name in TABLES}


def scores(folder: Path) -> dict[tuple[str, str], list[float]]:
    kept = load_scores(folder)
    return {name: attribution.scores.tolist() for name, attribution in zip(kept.names, kept, strict=True)}


def kills(count: int, folder: Path) -> None:
    """Killed at a random moment of its work, an evaluation resumes to the same tables, and loses no written line."""
    model = heta_lens.load_demo_model()
    begun = time.process_time()
    run(model, folder / "whole")
    work = time.process_time() - begun  # of processors, whatever else the machine does
    expected, expected_scores = tables(folder / "whole"), scores(folder / "whole")
    moments, left = random.Random(0), []
    for number in range(count):
        here = folder / str(number)
        moment = moments.uniform(0, work) + 1e-6  # 0 would be no timer

        def killed() -> None:
            signal.setitimer(signal.ITIMER_PROF, moment)  # noqa: B023  # whose signal ends a process, like SIGKILL
            run(model, here)  # noqa: B023

        os.waitpid(forked(killed), 0)
        before = {}
        with suppress(ValueError):  # if the child was killed before the database was made
            before = {record.key: record for record in read_records(here)}
        run(model, here)
        after = {record.key: record for record in read_records(here)}
        assert {key: after[key] for key in before} == before, "a result is lost"
        assert len(after) == 8 * len(METHODS)
        with reading(here) as database:
            again = database.rows("SELECT count(*) FROM tasks WHERE attempt > 1")[0][0]
        assert again <= len(METHODS), "more was done twice than the work on one prompt"
        assert tables(here) == expected and scores(here) == expected_scores
        left.append(len(before))
    sys.stdout.write(f"{count} kills, after {sorted(left)} of {8 * len(METHODS)} results\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    with TemporaryDirectory() as folder:
        kills(int(sys.argv[1]), Path(folder))
