"""Workers give the results of one process; a worker's death costs one method of a prompt."""

import importlib
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from threadpoolctl import threadpool_info

import heta_lens
from helpers.evaluating import demo, entries
from heta_lens._util.files import RUN
from heta_lens.data.suites import suite
from heta_lens.evaluation import Workers, evaluate
from heta_lens.evaluation.run_database import read_records, reading
from heta_lens.evaluation.saved_scores import load_scores
from heta_lens.evaluation.workers import HELLO, Setup, _started, work_in_processes
from heta_lens.model.loading import load_model

SETUP = Setup(partial(load_model, "demo"), {}, (), {}, {}, 1)


# --------------------------------------------------------------------------------------------------------------- setup
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"engine": "slurm"}, "engine='slurm' is not one of 'local', 'ray'"),
        ({"count": 0}, "workers=0 must be at least 1"),
        ({"count": 2, "gpus": 0.5}, "gpus=0.5 is for engine='ray'"),
        ({"count": 2, "address": "auto"}, "address='auto' is for engine='ray'"),
        ({"threads": 0}, "threads=0 must be at least 1"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_wrong_workers_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Workers(**given)


def test_the_cores_are_divided_and_threads_of_all_libraries_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("torch.get_num_threads", lambda: 8)
        assert [Workers(count).threads_each for count in (1, 3, 8, 20)] == [8, 2, 1, 1]
        assert Workers(3, threads=4).threads_each == 4
    torch.set_num_threads(2)
    try:
        SETUP.evaluator()
        assert torch.get_num_threads() == 1
        assert {library["num_threads"] for library in threadpool_info()} == {1}
    finally:
        torch.set_num_threads(1)


@pytest.mark.usefixtures("unchecked")
def test_a_function_that_cannot_be_sent_is_refused_before_a_process_is_started() -> None:
    with pytest.raises(ValueError, match="give functions of a module"):
        work_in_processes(Any, Setup(lambda: None, {}, (), {}, {}), 2, lambda: None)


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_a_worker_that_is_starting_leaves_interrupts_to_the_command(tmp_path: Path) -> None:
    run: Any = SimpleNamespace(path=tmp_path / RUN)
    member = _started(run, 0)
    os.kill(member.process.pid or 0, signal.SIGINT)
    assert member.connection.recv() == HELLO
    member.connection.close()
    member.process.join(60)
    assert member.process.exitcode == 0
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())  # here


def heed_interrupts() -> None:
    """Handle interrupts as a command in a terminal, whatever started the tests."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def ended(path: Path) -> int:
    """Count the finished tasks of a run that may not have begun."""
    with suppress(ValueError), reading(path) as run:
        return run.counts().get("done", 0)
    return 0


@pytest.mark.thorough
@pytest.mark.parametrize("code", [pytest.param(signal.SIGKILL, marks=pytest.mark.thorough), signal.SIGINT])
def test_workers_end_with_the_command_and_finished_results_are_kept(code: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "heta_lens", "attribute-dataset", "recall", "--limit", "300", "--out", "o"]
    command += ["--workers", "2", "-m", "leave_one_out"]
    with (
        (tmp_path / "err").open("w") as err,
        subprocess.Popen(command, cwd=tmp_path, stdout=err, stderr=err, preexec_fn=heed_interrupts) as driver,
    ):
        try:
            while ended(tmp_path / "o" / RUN) < 3:
                assert driver.poll() is None, (tmp_path / "err").read_text()
                time.sleep(0.05)
            workers = psutil.Process(driver.pid).children(recursive=True)
            assert len(workers) >= 2
            driver.send_signal(code)
            driver.wait(60)
        finally:
            driver.kill()
    _, alive = psutil.wait_procs(workers, timeout=30)
    assert not alive
    assert len(heta_lens.load_scores(tmp_path / "o")) >= 3
    if code == signal.SIGINT:
        assert driver.returncode == 130
        assert "interrupted: what is finished is kept" in (tmp_path / "err").read_text()


# ----------------------------------------------------------------------------------------------------------------- Ray
@pytest.mark.thorough
@pytest.mark.slow
def test_a_cluster_without_room_is_refused_and_ends_only_if_it_was_started_here(tmp_path: Path) -> None:
    ray = pytest.importorskip("ray")

    def work(count: int, gpus: float = 0.0) -> None:
        evaluate("demo", suite("recall", limit=4), ["random"], [], tmp_path, workers=Workers(count, "ray", 1, gpus))

    with pytest.raises(ValueError, match="has room for 0 workers"):
        work(1, 1.0)
    assert not ray.is_initialized()
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    try:
        with pytest.raises(ValueError, match=r"has room for 2 workers with 1 CPU each, and 3 are asked"):
            work(3)
        with pytest.raises(ValueError, match=r"has room for 0 workers with 1 CPU and 0.5 GPU each, and 2 are asked"):
            work(2, 0.5)
        work(1)
        assert ray.is_initialized() and len(read_records(tmp_path)) == 4
    finally:
        ray.shutdown()


# --------------------------------------------------------------------------------------------------------- evaluations
ENGINES = ["local", pytest.param("ray", marks=pytest.mark.thorough)]  # Ray starts a cluster in every test
METHODS = "leave_one_out", "lime samples=20", "random", "recency"
DEADLY = """
import os, pathlib, signal

def deadly(prediction):
    here = pathlib.Path(__file__).parent
    if {when!r} in prediction.located[0] and not ({once} and (here / "died").exists()):
        (here / "died").write_text("")
        os.kill(os.getpid(), signal.SIGKILL)
    return prediction.embeddings.norm(dim=-1)
"""


def results(folder: Path) -> Any:
    """The records without times, and the scores."""
    scores = load_scores(folder)
    return (
        [replace(record, seconds=0.0) for record in read_records(folder)],
        {name: attribution.scores.tolist() for name, attribution in zip(scores.names, scores, strict=True)},
    )


def found_by_workers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers import the modules of a folder."""
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", str(folder))


def run(folder: Path, *methods: str, workers: Workers, model: Any = "demo") -> None:
    prompts = suite("recall", limit=6)
    evaluate(model, prompts, entries(*methods), ["morf", "f1"], folder, workers=workers, progress=False)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "methods",
    [["heta probes=1", "random", "context_cite", "recency"], pytest.param([*METHODS], marks=pytest.mark.thorough)],
)
def test_workers_have_the_results_of_one_process_bit_for_bit(methods: list[str], engine: Any, tmp_path: Path) -> None:
    run(tmp_path / "one", *methods, workers=Workers(threads=1), model=demo())
    run(tmp_path / "two", *methods, workers=Workers(2, engine, threads=1))
    assert results(tmp_path / "two") == results(tmp_path / "one")


@pytest.mark.thorough
@pytest.mark.parametrize("engine", ["local", "ray"])
def test_a_killed_worker_costs_one_method_of_a_prompt(
    engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *_, last = suite("recall", limit=6)
    (tmp_path / "deadly_once.py").write_text(DEADLY.format(when=first.text, once=True))
    (tmp_path / "deadly_always.py").write_text(DEADLY.format(when=last.text, once=False))
    found_by_workers(tmp_path, monkeypatch)
    run(tmp_path / "o", "recency", "deadly_once:deadly", workers=Workers(2, engine, threads=1))
    assert (tmp_path / "died").exists()
    assert [record.failed for record in read_records(tmp_path / "o")] == [""] * 12

    run(tmp_path / "p", "recency", "deadly_always:deadly", workers=Workers(2, engine, threads=1))
    (failed,) = (record for record in read_records(tmp_path / "p") if record.failed)
    assert failed.key == (last.id, "deadly_always:deadly")
    assert failed.failed.startswith("3 workers, one after the other, died of this method: ")
    assert len(read_records(tmp_path / "p")) == 12


FULL = """
from heta_lens.evaluation.run_database import RunDatabase

def commit(*_, **__):
    raise OSError("the disk is full")

def full(prediction):
    RunDatabase.commit = commit
    return prediction.embeddings.norm(dim=-1)
"""


@pytest.mark.thorough
def test_a_worker_that_cannot_go_on_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "full.py").write_text(FULL)
    found_by_workers(tmp_path, monkeypatch)
    run(tmp_path / "o", "full:full", workers=Workers(2, threads=1))
    assert {record.failed for record in read_records(tmp_path / "o")} == {
        "3 workers, one after the other, died of this method: the disk is full"
    }


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_an_error_of_a_loading_model_is_raised_here(
    engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken.py").write_text("def load():\n    raise ValueError('there is no such model')\n")
    found_by_workers(tmp_path, monkeypatch)
    model = importlib.import_module("broken").load
    with pytest.raises(ValueError, match="there is no such model"):
        run(tmp_path / "o", "recency", workers=Workers(2, engine, threads=1), model=model)


@pytest.mark.thorough
def test_workers_that_cannot_start_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ending.py").write_text("import os\ndef load():\n    os._exit(3)\n")
    found_by_workers(tmp_path, monkeypatch)
    with pytest.raises(RuntimeError, match="workers die before they are ready: its process ended with exit code 3"):
        run(tmp_path / "o", "recency", workers=Workers(2, threads=1), model=importlib.import_module("ending").load)
