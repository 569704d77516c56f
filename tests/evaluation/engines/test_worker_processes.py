"""Worker processes: what is said of their deaths, and that they end with the process that started them."""

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

import heta_lens
from heta_lens.evaluation.prompt_evaluation import Identity
from heta_lens.evaluation.workers import Died, WorkerProcesses, WorkerSetup, _picklable
from heta_lens.model.loading import load_model


class Odd(Exception):
    """An exception that pickle cannot make again."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} and {two}")


def test_an_error_that_cannot_be_sent_says_the_same() -> None:
    error = ValueError("it is wrong")
    assert _picklable(error) is error
    sent = _picklable(Odd("this", "that"))
    assert isinstance(sent, RuntimeError) and str(sent) == "Odd: this and that"


def test_a_function_that_cannot_be_sent_is_refused_before_a_process_is_started() -> None:
    with pytest.raises(ValueError, match="give its name, a folder, or a function of a module"):
        WorkerProcesses(WorkerSetup(lambda: None, {}, 1))


PROGRAM = """
import heta_lens
from heta_lens.evaluation import Workers
def load():
    return heta_lens.load_demo_model()
heta_lens.attribute_dataset({model}, ["A key."], "random", out="o", workers=Workers(2))
"""


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "model", "message"),
    [(["-c"], "load", "by a function that is in no file"), (["-"], "'demo'", "a program that is in no file")],
)
def test_a_program_that_workers_cannot_import_is_refused(
    words: list[str], model: str, message: str, tmp_path: Path
) -> None:
    program = PROGRAM.format(model=model)
    given = [program] if words == ["-c"] else []
    done = subprocess.run(
        [sys.executable, *words, *given], input=program, cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1 and message in done.stderr
    assert not (tmp_path / "o").exists()


@pytest.mark.thorough
@pytest.mark.slow
def test_workers_that_are_idle_end_by_themselves_and_those_that_do_not_are_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    crew = WorkerProcesses(WorkerSetup(partial(load_model, "demo"), {}, 1))
    idle, stopped = crew.start(), crew.start()
    for member in (idle, stopped):
        crew.news([member])
    os.kill(stopped.process.pid or 0, signal.SIGSTOP)  # it heeds nothing but SIGKILL
    crew.stop([stopped], [])
    monkeypatch.setattr("heta_lens.evaluation.workers.PATIENCE", 120.0)  # a busy machine takes long
    crew.stop([idle], [])
    assert idle.process.exitcode == 0 and stopped.process.exitcode == -signal.SIGKILL


@pytest.mark.slow
def test_one_that_takes_anothers_place_has_its_number() -> None:
    crew = WorkerProcesses(WorkerSetup(partial(load_model, "demo"), {}, 1))
    first, second = crew.start(), crew.start()
    first.process.kill()
    crew.news([first])
    third = crew.start()
    assert (first.number, second.number, third.number) == (0, 1, 0)
    crew.stop([], [second, third])


@pytest.mark.thorough
@pytest.mark.slow
def test_a_death_is_told_by_its_signal() -> None:
    crew = WorkerProcesses(WorkerSetup(partial(load_model, "demo"), {}, 1))
    members = [crew.start(), crew.start()]
    heard: dict[Any, Any] = {}
    while len(heard) < 2:
        heard |= dict(crew.news([member for member in members if member not in heard]))
    assert all(isinstance(news, Identity) for news in heard.values()) and len(set(map(str, heard.values()))) == 1
    for member, code in zip(members, (signal.SIGKILL, signal.SIGTERM), strict=True):
        os.kill(member.process.pid or 0, code)
        ((_, news),) = crew.news([member])
        assert isinstance(news, Died) and f"its process was ended by {code.name}" in news.reason
        assert ("memory is short" in news.reason) == (code == signal.SIGKILL)
    crew.stop([], [])


def heed_interrupts() -> None:
    """As a command in a terminal does, whatever started the tests."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.mark.slow
@pytest.mark.parametrize("code", [pytest.param(signal.SIGKILL, marks=pytest.mark.thorough), signal.SIGINT])
def test_workers_end_with_the_command_and_what_is_finished_is_kept(code: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "heta_lens", "attribute-dataset", "recall", "--limit", "300", "--out", "o"]
    command += ["--workers", "2", "-m", "lime"]
    with (
        (tmp_path / "err").open("w") as err,
        subprocess.Popen(command, cwd=tmp_path, stdout=err, stderr=err, preexec_fn=heed_interrupts) as driver,
    ):
        scores = tmp_path / "o" / "scores.jsonl"
        deadline = time.time() + 120
        while not scores.exists() or scores.read_bytes().count(b"\n") < 3:
            assert time.time() < deadline and driver.poll() is None, (tmp_path / "err").read_text()
            time.sleep(0.05)
        workers = psutil.Process(driver.pid).children(recursive=True)
        assert len(workers) >= 2
        driver.send_signal(code)
        driver.wait(30)
    _, alive = psutil.wait_procs(workers, timeout=30)
    assert not alive
    assert len(heta_lens.load_scores(tmp_path / "o")) >= 3
    if code == signal.SIGINT:
        assert driver.returncode == 130
        assert "interrupted: what is finished is kept" in (tmp_path / "err").read_text()
