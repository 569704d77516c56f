"""An evaluation on Ray whose worker and then driver are killed, and which resumes, has the results of one process."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from helpers.evaluating import demo, entries
from heta_lens.data.suites import suite
from heta_lens.evaluation import Workers, evaluate
from heta_lens.evaluation.run_database import read_records
from heta_lens.evaluation.saved_scores import load_scores

METHODS = "leave_one_out", "random"
LIMIT = 600  # seconds that nothing here takes


def command(folder: Path, prompts: int) -> list[str]:
    words = ["evaluate", "recall", "--limit", str(prompts), "-m", ",".join(METHODS), "--metrics", "morf,f1"]
    where = ["--engine", "ray", "--workers", "2", "--threads", "1", "--out", str(folder)]
    return [sys.executable, "-m", "heta_lens", *words, *where]


def finished(folder: Path) -> int:
    with suppress(ValueError):  # while the driver makes the database
        return len(read_records(folder))
    return 0


def wait_until(true: Callable[[], Any]) -> None:
    deadline = time.monotonic() + LIMIT
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def actors(driver: subprocess.Popen[str]) -> list[psutil.Process]:
    processes = psutil.Process(driver.pid).children(recursive=True)
    return [process for process in processes if "RayWorker" in " ".join(process.cmdline())]


def values(folder: Path) -> dict[Any, Any]:
    kept = load_scores(folder)
    scores = {name: each.scores.tolist() for name, each in zip(kept.names, kept, strict=True)}
    return {record.key: (replace(record, seconds=0.0), scores[record.key]) for record in read_records(folder)}


@pytest.mark.slow
@pytest.mark.parametrize(
    "prompts", [pytest.param(12, marks=pytest.mark.thorough), pytest.param(200, marks=pytest.mark.nightly)]
)
def test_a_killed_worker_and_a_killed_driver_change_no_result(prompts: int, tmp_path: Path) -> None:
    folder, log = tmp_path / "ray", tmp_path / "log"
    with log.open("w") as out, subprocess.Popen(command(folder, prompts), stdout=out, stderr=out, text=True) as driver:
        wait_until(lambda: finished(folder) >= prompts // 3 or driver.poll() is not None)
        assert driver.poll() is None, log.read_text()
        os.kill(actors(driver)[0].pid, signal.SIGKILL)
        wait_until(lambda: finished(folder) >= prompts or driver.poll() is not None)
        assert driver.poll() is None, log.read_text()
        started, workers = psutil.Process(driver.pid).children(recursive=True), actors(driver)
        driver.kill()
    kept = {record.key: record for record in read_records(folder)}
    assert finished(folder) < prompts * len(METHODS)
    _, alive = psutil.wait_procs(workers, timeout=60)
    assert workers and not alive
    for process in started:  # Ray's own, of which some take minutes to notice
        if process.is_running():
            process.kill()
    done = subprocess.run(command(folder, prompts), capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    after = {record.key: record for record in read_records(folder)}
    assert {key: after[key] for key in kept} == kept
    assert finished(folder) == prompts * len(METHODS)

    one = tmp_path / "one"
    given = suite("recall", split="test", limit=prompts), entries(*METHODS), ["morf", "f1"], one
    evaluate(demo(), *given, workers=Workers(threads=1), progress=False)
    assert values(folder) == values(one)
