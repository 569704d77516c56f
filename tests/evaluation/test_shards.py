"""Shards make the evaluation that one process would have made; wrong shards are refused."""

import shutil
import sqlite3
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from helpers.evaluating import demo, entries
from heta_lens._util.files import RUN
from heta_lens.data.suites import suite
from heta_lens.evaluation import Shard, evaluate, merge, write_report
from heta_lens.evaluation.run_database import read_records, reading
from heta_lens.evaluation.saved_scores import load_scores

METHODS = "recency", "leave_one_out", "random"


# ------------------------------------------------------------------------------------------------------------- numbers
@pytest.mark.parametrize("name", ["SLURM_ARRAY_TASK_ID", "RANK", "SLURM_PROCID"])
def test_a_scheduler_sets_the_number_of_a_shard(name: str) -> None:
    assert Shard.read("auto/3", {name: "1"}) == Shard(1, 3) == Shard.read("1/3", {})


@pytest.mark.parametrize(
    ("written", "environment", "message"),
    [
        ("3/3", {}, "shard 3/3 does not exist"),
        ("1 of 3", {}, "shard='1 of 3' is not of the form"),
        ("auto/4", {"RANK": "5"}, "shard 5/4 does not exist"),
        ("auto/4", {}, "none of SLURM_ARRAY_TASK_ID, RANK"),
    ],
)
def test_wrong_shards_are_refused(written: str, environment: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Shard.read(written, environment)


# ------------------------------------------------------------------------------------------------------------- merging
def run(
    folder: Path, shard: Shard | None = None, methods: tuple[str, ...] = METHODS, seed: int = 0, **options: Any
) -> None:
    prompts = suite("recall", limit=7, seed=seed)
    evaluate(demo(), prompts, entries(*methods), ["morf", "f1"], folder, progress=False, shard=shard, **options)


def records(folder: Path) -> list[dict[str, Any]]:
    return [{**asdict(record), "seconds": 0.0} for record in read_records(folder)]


def altered(folder: Path, statement: str) -> None:
    with closing(sqlite3.connect(folder / RUN)) as connection, connection:
        connection.execute(statement)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shards")
    for index in range(3):
        run(folder, Shard(index, 3))
    return folder


@pytest.fixture
def shards(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "all"))


@pytest.mark.thorough
def test_three_shards_are_one_run(shards: Path, tmp_path: Path) -> None:
    write_report(shards / "shard-1-of-3")
    assert "2 instances in shard 1/3" in (shards / "shard-1-of-3" / "report.md").read_text()
    run(tmp_path / "one")
    assert merge(shards) == 21
    assert records(shards) == records(tmp_path / "one")
    requests = []
    for folder in (shards, tmp_path / "one"):
        with reading(folder) as database:
            requests.append(database.run)
    assert requests[0] == requests[1]
    merged, whole = load_scores(shards), load_scores(tmp_path / "one")
    assert merged.names == whole.names
    for mine, other in zip(merged, whole, strict=True):
        assert mine.scores.tolist() == other.scores.tolist() and mine.tokens == other.tokens
    for folder in (shards, tmp_path / "one"):
        write_report(folder)
    assert (shards / "report.md").read_bytes() == (tmp_path / "one" / "report.md").read_bytes()

    before = read_records(shards)
    run(shards)  # nothing is left to do
    assert merge(shards) == 21 and read_records(shards) == before


def test_merging_again_keeps_what_was_repaired_and_added(shards: Path) -> None:
    for index in range(3):
        altered(shards / f"shard-{index}-of-3", "UPDATE metrics SET failed = 1, value = NULL WHERE metric = 'f1'")
    merge(shards)
    altered(shards, "UPDATE metrics SET failed = 0, value = 0.25 WHERE metric = 'f1'")
    run(shards, methods=(*METHODS, "attention_last"))
    before = read_records(shards)
    assert merge(shards) == 28 and read_records(shards) == before
    assert {record.values["f1"] for record in before if record.method != "attention_last"} == {0.25}


@pytest.mark.thorough
def test_missing_and_unfinished_shards_are_named(shards: Path) -> None:
    shutil.rmtree(shards / "shard-1-of-3")
    altered(shards / "shard-2-of-3", "UPDATE tasks SET state = 'pending' WHERE method = 'random'")
    with pytest.raises(ValueError, match=r"shard 1/3 is missing; shard 2/3 lacks 2 results: .*--partial"):
        merge(shards)
    assert not (shards / RUN).exists()
    with pytest.warns(UserWarning, match="shard 1/3 is missing; shard 2/3 lacks 2 results"):
        assert merge(shards, partial=True) == 13
    run(shards)  # the rest is evaluated in the folder
    assert len(read_records(shards)) == 21


def test_a_shard_whose_model_was_never_loaded_is_merged_too(shards: Path) -> None:
    for number in (0, 2):
        altered(shards / f"shard-{number}-of-3", "DELETE FROM meta WHERE name = 'fingerprint'")
    assert merge(shards) == 21
    with reading(shards) as merged, reading(shards / "shard-1-of-3") as shard:
        assert merged.run["fingerprint"] == shard.run["fingerprint"]


def test_a_merged_evaluation_has_the_versions_of_its_shards(shards: Path) -> None:
    for number in range(3):
        altered(
            shards / f"shard-{number}-of-3", """UPDATE meta SET value = '{"torch": "1.0"}' WHERE name = 'versions'"""
        )
    assert merge(shards) == merge(shards) == 21
    with reading(shards) as merged:
        assert merged.run["versions"] == {"torch": "1.0"}


@pytest.mark.thorough
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


def test_folders_that_cannot_be_merged_are_refused(shards: Path, tmp_path: Path) -> None:
    first = shards / "shard-0-of-3"
    with pytest.raises(ValueError, match="holds shards of an evaluation: heta-lens merge"):
        write_report(shards)
    with pytest.raises(ValueError, match="holds no shards: heta-lens evaluate … --shard 0/2 --out"):
        merge(tmp_path / "nothing")
    with pytest.raises(ValueError, match="shard-9-of-3 holds no evaluation"):
        merge(tmp_path / "merged", [first, shards / "shard-9-of-3"])
    with pytest.raises(ValueError, match="are both shard 0/3"):
        merge(tmp_path / "merged", [first, Path(shutil.copytree(first, tmp_path / "copy"))], partial=True)
    assert not (tmp_path / "merged").exists() and not (shards / "shard-9-of-3").exists()
    altered(first, "UPDATE meta SET value = json_remove(value, '$.shard') WHERE name = 'request'")
    with pytest.raises(ValueError, match=r"is shard 1/3, and .* shard 0/1"):  # a whole evaluation
        merge(shards)


@pytest.mark.thorough
@pytest.mark.slow
def test_methods_may_be_added_to_shards_and_to_the_merged_evaluation(shards: Path, tmp_path: Path) -> None:
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


def test_merging_files_again_keeps_what_is_known_of_prompts(shards: Path) -> None:
    files = [shards / f"shard-{index}-of-3" / RUN for index in range(3)]
    merge(shards, files)
    altered(files[0].parent, "UPDATE prompts SET tokens = NULL, correct = NULL, log_prob = NULL")
    merge(shards, files)
    with closing(sqlite3.connect(shards / RUN)) as connection:
        assert connection.execute("SELECT count(*) FROM prompts WHERE tokens IS NULL").fetchone() == (0,)
