"""Evaluations that are killed, and evaluations that meet in one folder: run as a program of its own, which forks.

python -m helpers.killing kills 50
python -m helpers.killing meetings 50
"""

import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

import heta_lens
from heta_lens.data.suites import suite
from heta_lens.evaluation import Entry, evaluate, write_report
from heta_lens.evaluation.run_folder import RECORDS, read_records
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
    """Killed at a random moment, every evaluation resumes to the same tables, and loses no line that was written."""
    model = heta_lens.load_demo_model()
    begun = time.monotonic()
    run(model, folder / "whole")
    seconds = time.monotonic() - begun
    expected, expected_scores = tables(folder / "whole"), scores(folder / "whole")
    moments, left = random.Random(0), []
    for number in range(count):
        here = folder / str(number)
        child = forked(lambda: run(model, here))  # noqa: B023
        time.sleep(moments.uniform(0, seconds))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        path = here / RECORDS
        written = path.read_bytes() if path.exists() else b""
        before = written[: written.rfind(b"\n") + 1]
        run(model, here)
        assert path.read_bytes().startswith(before), "a line that was written is lost"
        assert len(read_records(here)) == path.read_bytes().count(b"\n") == 8 * len(METHODS), "work was done twice"
        assert tables(here) == expected and scores(here) == expected_scores
        left.append(before.count(b"\n"))
    sys.stdout.write(f"{count} kills, after {sorted(left)} of {8 * len(METHODS)} results\n")


def meetings(count: int, folder: Path) -> None:
    """Of two that start at once in a folder, one works, and the other says which one does."""
    model = heta_lens.load_demo_model()
    for number in range(count):
        here, said = folder / str(number), folder / f"said-{number}"
        go, ready = os.pipe()

        def work() -> None:
            os.close(ready)  # noqa: B023
            os.read(go, 1)  # noqa: B023  # both begin when the other end is closed
            try:
                run(model, here, limit=3)  # noqa: B023
            except ValueError as error:
                said.write_text(f"{os.getpid()} {error}")  # noqa: B023

        pair = [forked(work), forked(work)]
        os.close(go)
        os.close(ready)
        assert [os.waitpid(pid, 0)[1] for pid in pair] == [0, 0]
        refused, _, why = said.read_text().partition(" ")
        (worked,) = {*map(str, pair)} - {refused}
        assert f"another evaluation (process {worked} on " in why, why
        assert len(read_records(here)) == 3 * len(METHODS)
    sys.stdout.write(f"{count} meetings\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    with TemporaryDirectory() as folder:
        {"kills": kills, "meetings": meetings}[sys.argv[1]](int(sys.argv[2]), Path(folder))
