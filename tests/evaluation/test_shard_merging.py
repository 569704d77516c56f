"""Shards make the evaluation that one process would have made; what is missing or strange is refused by name."""

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from helpers.evaluating import demo, entries
from heta_lens import METHODS as METHODS_BY_NAME
from heta_lens.data.suites import suite
from heta_lens.evaluation import evaluate, write_report
from heta_lens.evaluation.run_folder import RECORDS, RUN, Shard, locked, merge, read_records, read_run
from heta_lens.evaluation.saved_scores import load_scores

METHODS = "recency", "leave_one_out", "random"


def run(
    folder: Path, shard: Shard | None = None, methods: tuple[str, ...] = METHODS, seed: int = 0, **options: Any
) -> None:
    prompts = suite("recall", limit=7, seed=seed)
    evaluate(demo(), prompts, entries(*methods), ["morf", "f1"], folder, progress=False, shard=shard, **options)


def records(folder: Path) -> list[dict[str, Any]]:
    return [{**asdict(record), "seconds": 0.0} for record in read_records(folder)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shards")
    for index in range(3):
        run(folder, Shard(index, 3))
    return folder


@pytest.fixture
def shards(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "all"))


@pytest.mark.slow
def test_three_shards_are_one_run(shards: Path, tmp_path: Path) -> None:
    run(tmp_path / "one")
    assert merge(shards) == 21
    assert records(shards) == records(tmp_path / "one")
    assert read_run(shards) == read_run(tmp_path / "one")
    merged, whole = load_scores(shards), load_scores(tmp_path / "one")
    assert merged.names == whole.names
    for mine, other in zip(merged, whole, strict=True):
        assert mine.scores.tolist() == other.scores.tolist() and mine.tokens == other.tokens
    for folder in (shards, tmp_path / "one"):
        write_report(folder)
    assert (shards / "report.md").read_bytes() == (tmp_path / "one" / "report.md").read_bytes()

    before = (shards / RECORDS).read_bytes()
    run(shards)  # has nothing left to do
    assert merge(shards) == 21 and (shards / RECORDS).read_bytes() == before


@pytest.mark.slow
def test_a_missing_shard_and_one_that_is_not_finished_are_named(shards: Path) -> None:
    shutil.rmtree(shards / "shard-1-of-3")
    path = shards / "shard-2-of-3" / RECORDS
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-2]))
    with pytest.raises(ValueError, match=r"shard 1/3 is missing; shard 2/3 lacks 2 results: .*--partial"):
        merge(shards)
    assert not (shards / RUN).exists()
    with pytest.warns(UserWarning, match="merged what there is: shard 1/3 is missing; shard 2/3 lacks 2 results"):
        assert merge(shards, partial=True) == 13
    run(shards)  # does what is left, here
    assert len(read_records(shards)) == 21


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: run(folder, Shard(1, 3), facts={"split": "dev"}), "of another evaluation than .*: other split"),
        (lambda folder: run(folder, Shard(1, 3), seed=5), "of another evaluation than .*: other texts"),
        (lambda folder: run(folder, Shard(1, 2)), "shard-1-of-2 is shard 1/2, and .*shard-0-of-3 shard 0/3"),
    ],
)
@pytest.mark.slow
def test_shards_of_different_evaluations_are_refused_with_the_difference(
    change: Any, message: str, shards: Path, tmp_path: Path
) -> None:
    change(tmp_path / "other")
    (other,) = (tmp_path / "other").iterdir()
    with pytest.raises(ValueError, match=message):
        merge(tmp_path / "merged", [shards / "shard-0-of-3", other], partial=True)


@pytest.mark.slow
def test_what_are_no_shards_is_refused(shards: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no shards: heta-lens evaluate … --shard 0/2 --out"):
        merge(tmp_path / "nothing")
    first = shards / "shard-0-of-3"
    with pytest.raises(ValueError, match="are both shard 0/3"):
        merge(tmp_path / "merged", [first, Path(shutil.copytree(first, tmp_path / "copy"))], partial=True)
    run_of = json.loads((first / RUN).read_text())
    (first / RUN).write_text(json.dumps({name: value for name, value in run_of.items() if name != "shard"}))
    with pytest.raises(ValueError, match="holds a whole evaluation, and no shard of one"):
        merge(shards)


def test_a_shard_that_is_being_written_is_not_merged(shards: Path) -> None:
    with locked(shards / "shard-1-of-3"), pytest.raises(ValueError, match=r"another evaluation .* is writing into"):
        merge(shards)


@pytest.mark.slow
def test_methods_may_be_added_to_shards_and_to_what_was_merged(shards: Path, tmp_path: Path) -> None:
    assert merge(shards) == 21
    more = (*METHODS, "input_x_gradient")
    run(shards, Shard(0, 3), more)
    with pytest.raises(ValueError, match="shard 1/3 lacks 2 results; shard 2/3 lacks 2 results"):
        merge(shards)
    with pytest.warns(UserWarning, match="shard 1/3 lacks 2 results"):
        assert merge(shards, partial=True) == 24
    run(shards, methods=more)
    with pytest.warns(UserWarning, match="shard 1/3 lacks 2 results"):
        assert merge(shards, partial=True) == 28
    run(tmp_path / "one", methods=more)
    assert records(shards) == records(tmp_path / "one")


@pytest.mark.slow
def test_merging_again_brings_no_failure_back(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise OSError("for now")

    with monkeypatch.context() as broken:
        broken.setattr(METHODS_BY_NAME["input_x_gradient"], "explain", fail)
        for index in range(3):
            run(shards, Shard(index, 3), (*METHODS, "input_x_gradient"))
    assert merge(shards) == 28 and sum(bool(record.failed) for record in read_records(shards)) == 7
    run(shards, methods=(*METHODS, "input_x_gradient"), retry_failed=True)
    whole = records(shards)
    assert not any(record["failed"] for record in whole)
    assert merge(shards) == 28 and records(shards) == whole and len(load_scores(shards)) == 28


@pytest.mark.slow
def test_a_shard_without_prompts_is_one(tmp_path: Path) -> None:
    for index in range(9):  # of 7 prompts
        run(tmp_path, Shard(index, 9), ("recency",))
    assert merge(tmp_path) == 7


@pytest.mark.slow
def test_the_report_of_a_shard_is_of_its_own_prompts(shards: Path) -> None:
    write_report(shards / "shard-1-of-3")
    report = (shards / "shard-1-of-3" / "report.md").read_text()
    assert "2 instances in shard 1/3" in report and "not run yet" not in report


def test_names_that_are_mistyped_make_no_folder(shards: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="shard-9-of-3 holds no evaluation"):
        merge(tmp_path / "merged", [shards / "shard-0-of-3", shards / "shard-9-of-3"])
    with pytest.raises(ValueError, match="are both shard 0/3"):
        merge(tmp_path / "merged", [shards / "shard-0-of-3"] * 2)
    assert not (tmp_path / "merged").exists() and not (shards / "shard-9-of-3").exists()


@pytest.mark.slow
def test_a_folder_of_another_evaluation_is_not_overwritten(shards: Path) -> None:
    run(shards, seed=5)
    before = (shards / RECORDS).read_bytes()
    with pytest.raises(ValueError, match="holds another evaluation than its shards: other texts"):
        merge(shards)
    assert (shards / RECORDS).read_bytes() == before


def test_a_report_of_shards_says_that_they_are_not_merged(shards: Path) -> None:
    with pytest.raises(ValueError, match="holds shards of an evaluation: heta-lens merge"):
        write_report(shards)
