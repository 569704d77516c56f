"""Workers give the results of one process; a worker's death costs one method of a prompt."""

import importlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from threadpoolctl import threadpool_info

import heta_lens
from helpers.evaluating import demo, entries
from heta_lens._util.python import versions
from heta_lens.data.instance import Instance
from heta_lens.data.suites import suite
from heta_lens.evaluation import Workers, evaluate
from heta_lens.evaluation.prompt_evaluation import Identity, Outcome, Task
from heta_lens.evaluation.run_folder import Record, read_records
from heta_lens.evaluation.saved_scores import load_scores
from heta_lens.evaluation.workers import (
    Died,
    Finished,
    News,
    Pool,
    RayActors,
    WorkerProcesses,
    WorkerSetup,
    limit_threads,
)
from heta_lens.model.loading import load_model

ME = Identity({"weights": "a", "config": "b", "tokenizer": "c"}, versions())
SETUP = WorkerSetup(partial(load_model, "demo"), {}, 1)


# ---------------------------------------------------------------------------------------------------------- scheduling
def tasks(*lengths: int) -> list[Task]:
    """Prompts of these numbers of characters, with the number as the name."""
    return [
        Task(number, Instance(str(length), "x" * length, " a"), {"m": ("f1",)}) for number, length in enumerate(lengths)
    ]


def all_done(task: Task) -> list[News]:
    return [*(Outcome(Record(task.instance.id, label)) for label in task.pending), Finished()]


@dataclass
class FakeCrew:
    """Workers are numbers. The worker at work for the longest time answers first, as ``answer`` says."""

    answer: Callable[[int, Task], list[News]] = lambda _, task: all_done(task)
    begin: Callable[[int], News] = lambda _: ME
    given: list[tuple[int, str]] = field(default_factory=list)
    at_work: dict[int, list[News]] = field(default_factory=dict)
    stopped: list[int] = field(default_factory=list)
    started: int = 0

    def start(self) -> int:
        self.started += 1
        self.at_work[self.started] = [self.begin(self.started)]
        return self.started

    def give(self, member: int, task: Task) -> None:
        assert not self.at_work.get(member), "it has one prompt already"
        self.given.append((member, task.instance.id))
        self.at_work[member] = self.answer(member, task)

    def news(self, members: Sequence[int]) -> list[tuple[int, News]]:
        first = next(iter(self.at_work))
        assert first in members
        news, *more = self.at_work.pop(first)
        if more:
            self.at_work[first] = more
        return [(first, news)]

    def stop(self, idle: Collection[int], busy: Collection[int]) -> None:
        self.stopped += [*idle, *busy]


def worked(crew: FakeCrew, todo: list[Task], count: int = 2, retries: int = 2) -> list[Record]:
    pool = Pool(crew, count, retries)
    pool.start()
    records = [outcome.record for outcome in pool.outcomes(todo)]
    pool.stop()
    assert 1 <= len(crew.stopped) <= count
    return records


def test_the_longest_prompts_come_first_and_no_worker_has_two() -> None:
    crew = FakeCrew()
    records = worked(crew, tasks(3, 9, 1, 5))
    assert [name for _, name in crew.given] == ["9", "5", "3", "1"]
    assert sorted(record.instance for record in records) == ["1", "3", "5", "9"]
    assert worked(FakeCrew(), [], count=1) == []
    pool = Pool(crew := FakeCrew(), 3, 2)
    pool.start()
    for written, _ in enumerate(pool.outcomes(tasks(*range(1, 40)))):  # results wait to be written
        assert len(crew.given) <= written + 1 + 3


@pytest.mark.parametrize(("retries", "deaths"), [(2, 1), (0, 1), (2, 3)])
def test_a_death_costs_one_method_of_a_prompt(retries: int, deaths: int) -> None:
    died: list[int] = []

    def answer(member: int, task: Task) -> list[News]:
        labels = [*task.pending]
        if task.instance.id == "9" and "n" in labels and len(died) < deaths:
            died.append(member)
            return [*all_done(task)[: labels.index("n")], Died("it fell")]
        return all_done(task)

    crew = FakeCrew(answer)
    todo = [task._replace(pending={"m": (), "n": (), "o": ()}) for task in tasks(3, 9, 1)]
    records = worked(crew, todo, retries=retries)
    assert sorted(record.key for record in records) == sorted((name, label) for name in "139" for label in "mno")
    workers = "3 workers, one after the other," if retries else "the worker"
    failed = {record.key: record.failed for record in records if record.failed}
    assert failed == ({("9", "n"): f"{workers} died of this method: it fell"} if deaths > retries else {})
    assert [name for _, name in crew.given].count("9") == deaths + 1
    assert crew.started == 2 + deaths


def test_failed_starts_end_the_run_only_without_a_ready_worker() -> None:
    with pytest.raises(RuntimeError, match="workers die before they are ready, the last: no memory"):
        worked(FakeCrew(begin=lambda _: Died("no memory")), tasks(1))
    with pytest.raises(ValueError, match="no such model"):
        worked(FakeCrew(begin=lambda _: ValueError("no such model")), tasks(1))
    crew = FakeCrew(begin=lambda member: ME if member == 3 else Died("no memory"))
    assert len(worked(crew, tasks(1, 2, 3), retries=5)) == 3
    crew = FakeCrew(begin=lambda member: ValueError("no room on this card") if member > 1 else ME)
    pool = Pool(crew, 2, 2)
    pool.start()
    assert len([*pool.outcomes(tasks(*range(1, 9)))]) == 8 and crew.started <= 2 + 2


def test_a_worker_with_another_model_or_other_versions_is_refused() -> None:
    other = ME._replace(fingerprint={**ME.fingerprint, "weights": "z"})
    with pytest.raises(ValueError, match=r"a worker has another model \(other weights\)"):
        worked(FakeCrew(begin=lambda member: ME if member == 1 else other), tasks(1, 2))
    old = ME._replace(versions={**ME.versions, "torch": "1.0"})
    with pytest.raises(ValueError, match=r"a worker has another installation \(other torch\)"):
        worked(FakeCrew(begin=lambda _: old), tasks(1))


# --------------------------------------------------------------------------------------------------------------- setup
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"engine": "slurm"}, "engine='slurm' is not one of 'local', 'ray'"),
        ({"count": 0}, "workers=0 must be at least 1"),
        ({"count": 2, "gpus": 0.5}, "gpus=0.5 is for engine='ray'"),
        ({"count": 2, "address": "auto"}, "address='auto' is for engine='ray'"),
        ({"threads": 0}, "threads=0 must be at least 1"),
        ({"retries": -1}, "retries=-1 must be at least 0"),
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
        limit_threads(1)
        assert torch.get_num_threads() == 1
        assert {library["num_threads"] for library in threadpool_info()} == {1}
    finally:
        torch.set_num_threads(1)


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
    command = [sys.executable, *words, *([program] if words == ["-c"] else [])]
    done = subprocess.run(command, input=program, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and message in done.stderr
    assert not (tmp_path / "o").exists()


@pytest.mark.thorough
@pytest.mark.slow
def test_idle_workers_end_by_themselves_and_stuck_workers_are_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    crew = WorkerProcesses(SETUP)
    idle, stopped = crew.start(), crew.start()
    for member in (idle, stopped):
        crew.news([member])
    os.kill(stopped.process.pid or 0, signal.SIGSTOP)  # it heeds nothing but SIGKILL
    crew.stop([stopped], [])
    monkeypatch.setattr("heta_lens.evaluation.workers.PATIENCE", 120.0)  # a busy machine takes long
    crew.stop([idle], [])
    assert idle.process.exitcode == 0 and stopped.process.exitcode == -signal.SIGKILL


def heed_interrupts() -> None:
    """Handle interrupts as a command in a terminal, whatever started the tests."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.mark.slow
@pytest.mark.parametrize("code", [pytest.param(signal.SIGKILL, marks=pytest.mark.thorough), signal.SIGINT])
def test_workers_end_with_the_command_and_finished_results_are_kept(code: signal.Signals, tmp_path: Path) -> None:
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


# ----------------------------------------------------------------------------------------------------------------- Ray
@pytest.mark.thorough
@pytest.mark.slow
def test_a_cluster_without_room_is_refused_and_ends_only_if_it_was_started_here() -> None:
    ray = pytest.importorskip("ray")
    with pytest.raises(ValueError, match="has room for 0 workers"):
        RayActors(SETUP, 1, 1.0, None)
    assert not ray.is_initialized()
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    try:
        with pytest.raises(ValueError, match=r"has room for 2 workers with 1 CPU each, and 3 are asked"):
            RayActors(SETUP, 3, 0.0, None)
        with pytest.raises(ValueError, match=r"has room for 0 workers with 1 CPU and 0.5 GPU each, and 2 are asked"):
            RayActors(SETUP, 2, 0.5, None)
        pool = Pool(RayActors(SETUP, 1, 0.0, None), 1, 0)
        pool.start()
        assert pool.identity.fingerprint
        pool.stop()
        assert ray.is_initialized()
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
    """The records and the scores without times."""
    return [
        [untimed(asdict(record)) for record in read_records(folder)],
        [untimed(row.flat()) for row in load_scores(folder).rows],
    ]


def untimed(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: untimed(item) for name, item in value.items() if name != "seconds"}
    return [*map(untimed, value)] if isinstance(value, list | tuple) else value


def found_by_workers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers import the modules of a folder."""
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", str(folder))


def run(folder: Path, *methods: str, workers: Workers, model: Any = "demo") -> None:
    prompts = suite("recall", limit=6)
    evaluate(model, prompts, entries(*methods), ["morf", "f1"], folder, workers=workers, progress=False)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_workers_have_the_results_of_one_process_bit_for_bit(engine: Any, tmp_path: Path) -> None:
    run(tmp_path / "one", *METHODS, workers=Workers(threads=1), model=demo())
    run(tmp_path / "two", *METHODS, workers=Workers(2, engine, threads=1))
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

    run(tmp_path / "p", "recency", "deadly_always:deadly", workers=Workers(2, engine, threads=1, retries=1))
    (failed,) = (record for record in read_records(tmp_path / "p") if record.failed)
    assert failed.key == (last.id, "deadly_always:deadly")
    assert failed.failed.startswith("2 workers, one after the other, died of this method: ")
    assert len(read_records(tmp_path / "p")) == 12


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
    assert not (tmp_path / "o").exists()
