"""Whoever does the work, the results are the same, bit for bit; a worker's death costs one prompt's work."""

import importlib
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import pytest

from helpers.evaluating import demo, entries
from heta_lens.data.suites import suite
from heta_lens.evaluation import Workers, evaluate
from heta_lens.evaluation.run_folder import read_records
from heta_lens.evaluation.saved_scores import load_scores

ENGINES = ["local", "ray"]
RAY_RARELY = ["local", pytest.param("ray", marks=pytest.mark.thorough)]  # which starts a cluster, again and again
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


def results(folder: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Records and scores, but for the time they took."""
    records = [{**asdict(record), "seconds": 0.0} for record in read_records(folder)]
    return records, [untimed(row.flat()) for row in load_scores(folder).rows]


def untimed(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: untimed(item) for name, item in value.items() if name != "seconds"}
    return [*map(untimed, value)] if isinstance(value, list | tuple) else value


def found_by_workers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules in a folder, also by workers of Ray, which start from nothing."""
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", str(folder))


def run(folder: Path, *methods: str, workers: Workers, limit: int = 6, model: Any = "demo") -> None:
    prompts = suite("recall", limit=limit)
    evaluate(model, prompts, entries(*methods), ["morf", "f1"], folder, workers=workers, progress=False)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("one")
    run(folder, *METHODS, workers=Workers(threads=1), model=demo())
    return results(folder)


@pytest.mark.slow
@pytest.mark.parametrize("engine", RAY_RARELY)
def test_workers_have_the_results_of_one_process_bit_for_bit(engine: Any, expected: Any, tmp_path: Path) -> None:
    run(tmp_path, *METHODS, workers=Workers(2, engine, threads=1))
    assert not difference([*results(tmp_path)], [*expected])


@pytest.mark.thorough
@pytest.mark.parametrize("engine", ENGINES)
def test_a_killed_worker_costs_one_method_of_a_prompt_and_nothing_else(
    engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (one, *_), last = suite("recall", limit=6), suite("recall", limit=6)[-1]
    (tmp_path / "deadly_once.py").write_text(DEADLY.format(when=one.text, once=True))
    (tmp_path / "deadly_always.py").write_text(DEADLY.format(when=last.text, once=False))
    found_by_workers(tmp_path, monkeypatch)
    run(tmp_path / "o", "recency", "deadly_once:deadly", workers=Workers(2, engine, threads=1))
    assert (tmp_path / "died").exists()
    assert len(read_records(tmp_path / "o")) == 12
    assert not any(record.failed for record in read_records(tmp_path / "o"))

    run(tmp_path / "p", "recency", "deadly_always:deadly", workers=Workers(2, engine, threads=1, retries=1))
    (failed,) = (record for record in read_records(tmp_path / "p") if record.failed)
    assert failed.key == (last.id, "deadly_always:deadly")
    assert failed.failed.startswith("2 workers, one after the other, died of this method: ")
    assert len(read_records(tmp_path / "p")) == 12


@pytest.mark.slow
@pytest.mark.parametrize("engine", RAY_RARELY)
def test_what_is_wrong_with_a_model_is_raised_here(
    engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken.py").write_text("def load():\n    raise ValueError('there is no such model')\n")
    found_by_workers(tmp_path, monkeypatch)
    model = importlib.import_module("broken").load
    with pytest.raises(ValueError, match="there is no such model"):
        run(tmp_path / "o", "recency", workers=Workers(2, engine, threads=1), model=model)
    assert not (tmp_path / "o").exists()


@pytest.mark.thorough
@pytest.mark.slow
def test_no_process_outlives_its_block(tmp_path: Path) -> None:
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    run(tmp_path, "recency", workers=Workers(2, threads=1), limit=2)
    deadline = time.time() + 10
    while left := _alive(before):
        assert time.time() < deadline, left
        time.sleep(0.1)


def _alive(before: set[int]) -> list[psutil.Process]:
    """New processes; that which multiprocessing keeps to tidy up after others stays."""
    new = [child for child in psutil.Process().children(recursive=True) if child.pid not in before]
    return [child for child in new if "resource_tracker" not in " ".join(child.cmdline())]


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
def test_what_cannot_be_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Workers(**given)


def test_a_loaded_model_cannot_be_sent_to_workers(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="workers need a model each: give the name of a model"):
        run(tmp_path, "recency", workers=Workers(2), model=demo())


def test_the_cores_are_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.get_num_threads", lambda: 8)
    assert [Workers(count).threads_each for count in (1, 3, 8, 20)] == [8, 2, 1, 1]
    assert Workers(3, threads=4).threads_each == 4


def difference(one: Any, other: Any, place: str = "") -> list[str]:
    if isinstance(one, dict) and isinstance(other, dict):
        return [line for key in {**one, **other} for line in difference(one.get(key), other.get(key), f"{place}/{key}")]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [
            line for n, pair in enumerate(zip(one, other, strict=True)) for line in difference(*pair, f"{place}/{n}")
        ]
    return [] if one == other else [f"{place}: {one} {other}"]
