"""Evaluations: what is evaluated, recorded and resumed."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import heta_lens
from helpers.evaluating import FEW, demo, evaluated, recency_of, run
from heta_lens._util.python import versions
from heta_lens.data.instance import Instance, write_jsonl
from heta_lens.data.suites import suite
from heta_lens.evaluation import Workers, evaluate, write_report
from heta_lens.evaluation.report.results import summary
from heta_lens.evaluation.run_folder import RECORDS, read_records, read_run
from heta_lens.methods.base import Scores
from heta_lens.metrics import METRICS, Metric, MetricCase
from heta_lens.prediction.prediction import Prediction

QUICK = ["leave_one_out", "input_x_gradient", "random"]

WORDS = ["evaluate", "recall", "--limit", "6"]


def test_other_prompts_in_one_folder_are_refused(tmp_path: Path) -> None:
    instances = suite("recall", limit=2, facts=2)
    evaluated(tmp_path, instances, "recency", metrics=["f1"])
    with pytest.raises(ValueError, match="holds an evaluation with other texts: give another folder"):
        evaluated(tmp_path, suite("recall", limit=2, facts=2, seed=1), "recency", metrics=["f1"])


def test_a_record_has_the_versions_it_was_made_with(tmp_path: Path) -> None:
    (record,) = evaluated(tmp_path, suite("recall", limit=1), "recency", metrics=["f1"]).values()
    assert record.versions == versions() and "versions" not in record.options


@pytest.mark.slow
def test_what_fails_is_recorded_and_stops_nothing(tmp_path: Path) -> None:
    (good,) = suite("recall", limit=1)
    unknown = Instance("odd", "Xyzzy plugh .", None)
    found = evaluated(tmp_path, [unknown, good], "leave_one_out", "kernel_shap samples=3", metrics=["morf"])
    assert "no token for 'Xyzzy'" in found["odd", "leave_one_out"].failed
    assert "samples=3 are too few" in found[good.id, "kernel_shap samples=3"].failed
    assert found[good.id, "leave_one_out"].values["morf"] > 0 and not found[good.id, "leave_one_out"].failed
    paths = write_report(tmp_path)
    assert "Xyzzy" in "".join(path.read_text() for path in paths if path.suffix == ".md")


def rather_than_the_second(prediction: Prediction) -> torch.Tensor:
    """A question that attention does not answer: why this token rather than the next likely one?"""
    first, second = prediction.log_probs.topk(2).indices.tolist()
    return heta_lens.METHODS["attention_last"]()(replace(prediction, target=(first, second))).scores


@pytest.mark.parametrize("metrics", [["f1", "morf"], []])
def test_a_refused_question_is_skipped_and_not_failed(tmp_path: Path, metrics: list[str]) -> None:
    instances = suite("recall", limit=2)
    methods: Any = ["recency", rather_than_the_second]
    evaluate(demo(), instances, methods, metrics, tmp_path, progress=False)
    records = {record.key: record for record in read_records(tmp_path)}
    for instance in instances:
        record = records[instance.id, "rather_than_the_second"]
        assert "'attention_last' gives every target the same scores" in record.skipped and not record.failed
        assert not records[instance.id, "recency"].skipped
    if metrics:
        results = summary(tmp_path)
        cell = results.cells["f1", "rather_than_the_second"]
        assert (sum(cell.skipped.values()), sum(cell.failed.values()), cell.estimate.n) == (2, 0, 0)
        assert [*results.costs.index] == ["recency"]


def test_a_refused_question_is_not_asked_again(tmp_path: Path) -> None:
    asked: list[int] = []

    def counting(prediction: Prediction) -> torch.Tensor:
        asked.append(1)
        return rather_than_the_second(prediction)

    for retry_failed in (False, False, True):
        evaluate(demo(), suite("recall", limit=2), counting, [], tmp_path, progress=False, retry_failed=retry_failed)
    assert len(asked) == 2


def test_scores_that_tell_nothing_are_doubtful(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heta_lens.METHODS["random"], "explain", lambda _, asked, work: Scores(torch.ones(len(asked))))  # noqa: ARG005
    (record,) = evaluated(tmp_path, suite("recall", limit=1), "random", metrics=["morf", "dsa"]).values()
    assert list(record.degenerate) == ["morf", "dsa"]


def length(prediction: Prediction) -> torch.Tensor:
    return prediction.embeddings.norm(dim=-1)


def test_methods_are_named_ready_or_functions_and_resume(tmp_path: Path) -> None:
    model, prompts = demo(), suite("recall", limit=2, facts=2)
    methods = ["random", heta_lens.METHODS["lime"](samples=9), length]
    for _ in range(2):
        evaluate(model, prompts, methods, "evidence_mass", str(tmp_path), progress=False)
    records = read_records(tmp_path)
    assert sorted(record.method for record in records) == sorted(["random", "lime samples=9", "length"] * 2)
    assert all(record.values["evidence_mass"] is not None for record in records)
    run = read_run(tmp_path)
    assert run["methods"]["lime samples=9"] == {"method": "lime", "options": {"samples": 9}}
    assert run["methods"]["length"]["method"].endswith("test_runner.length")
    evaluate(model, prompts, length, "evidence_mass", tmp_path / "alone", progress=False)
    assert {record.method for record in read_records(tmp_path / "alone")} == {"length"}


def test_a_function_that_has_changed_is_another_method(tmp_path: Path) -> None:
    model, prompts = demo(), suite("recall", limit=1, facts=2)
    evaluate(model, prompts, length, "f1", tmp_path, progress=False)

    def other(prediction: Prediction) -> torch.Tensor:
        return -prediction.embeddings.norm(dim=-1)

    other.__name__ = "length"
    with pytest.raises(ValueError, match="holds an evaluation with other methods: give another folder"):
        evaluate(model, prompts, other, "f1", tmp_path, progress=False)


@pytest.mark.slow
def test_workers_take_functions_of_modules_only(tmp_path: Path) -> None:
    prompts = suite("recall", limit=2, facts=2)
    evaluate("demo", prompts, recency_of, "f1", tmp_path / "a", progress=False, workers=Workers(2))
    assert [record.failed for record in read_records(tmp_path / "a")] == ["", ""]
    with pytest.raises(ValueError, match=r"workers cannot be given these methods .*: name them"):
        evaluate("demo", prompts, lambda _: None, "f1", tmp_path / "b", progress=False, workers=Workers(2))


def test_an_answer_that_is_not_known_is_what_the_model_says(tmp_path: Path) -> None:
    (known,) = suite("recall", limit=1)
    (record,) = evaluated(tmp_path, [replace(known, answer=None)], "random", metrics=["morf"]).values()
    assert record.correct
    wrong = next(choice for choice in known.choices if choice != known.answer)
    (record,) = evaluated(tmp_path / "b", [replace(known, answer=wrong)], "random", metrics=["morf"]).values()
    assert record.correct is False


def last_third(case: MetricCase) -> float:
    """How much of the score is on the last third of the context."""
    return float(case.scores[-(len(case.scores) // 3) :].sum() / case.scores.sum())


LAST_THIRD = Metric("Last third, share", last_third, "less", needs=("support",))


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_metrics_are_given_by_name_or_themselves(tmp_path: Path, workers: int) -> None:
    prompts = suite("recall", limit=1, facts=2)
    metrics = ["f1", LAST_THIRD, METRICS["pass_5"]]
    for _ in range(2):
        evaluate("demo", prompts, "recency", metrics, tmp_path, progress=False, workers=Workers(workers))
    (record,) = read_records(tmp_path)
    assert record.values.keys() == {"f1", "last_third_share", "pass_5"}
    assert 0.4 < record.values["last_third_share"] < 1 and record.values["f1"] is not None
    about = read_run(tmp_path)["metrics"]["last_third_share"]
    assert (about["better"], about["needs"], about["origin"]) == ("less", ["support"], __name__)
    assert "Last third, share" in "".join(path.read_text() for path in write_report(tmp_path) if path.suffix == ".md")


REFUSED: dict[str, Callable[[Path, list[Instance]], Any]] = {
    "metric='morph' is not in": lambda path, some: evaluated(path, some, "random", metrics=["morph"]),
    "title='F1' names the metric 'f1', which METRICS has": lambda path, some: evaluated(
        path, some, "random", metrics=[Metric("F1", last_third)]
    ),
    "metrics has 3: give names": lambda path, some: evaluated(path, some, "random", metrics=[3]),
    "there are no methods": lambda path, some: evaluated(path, some),
    "there are no instances": lambda path, _: evaluated(path, [], "random"),
    "methods random are there more than once": lambda path, some: evaluated(path, some, "random", "random"),
    "instances recall-test-0-00000 are there more than once": lambda path, some: evaluated(path, some * 2, "random"),
    "method='rando'": lambda path, some: evaluated(path, some, "rando"),
    "method=''": lambda path, some: evaluated(path, some, " "),
    "is no method and its options .No closing quotation.": lambda path, some: evaluated(path, some, "lime x='1"),
    "probes=0 must be at least 1": lambda path, some: evaluated(path, some, "heta probes=0"),
    "'probes' is not of the form NAME=VALUE": lambda path, some: evaluated(path, some, "heta probes"),
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_evaluated_is_refused_before_any_work(message: str, tmp_path: Path) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        REFUSED[message](tmp_path / "new", suite("recall", limit=1))
    assert not (tmp_path / "new").exists()


def test_a_folder_goes_on_with_its_own_evaluation_only(tmp_path: Path) -> None:
    some = suite("recall", limit=2)
    evaluated(tmp_path, some, "random", metrics=["morf"])
    before = (tmp_path / RECORDS).read_bytes()
    evaluated(tmp_path, some, "random", metrics=["morf"])
    assert (tmp_path / RECORDS).read_bytes() == before
    with pytest.raises(ValueError, match=r"other methods: .* \(methods: random; metrics: morf\), to which methods may"):
        evaluated(tmp_path, some, "recency", metrics=["morf"])
    with pytest.raises(ValueError, match="holds an evaluation with other instances, texts, metrics"):
        evaluated(tmp_path, some[:1], "random", metrics=["lerf"])
    assert (tmp_path / RECORDS).read_bytes() == before


@pytest.mark.slow
def test_a_method_may_be_added_to_an_evaluation(tmp_path: Path) -> None:
    some = suite("recall", limit=2)
    evaluated(tmp_path, some, "random", metrics=["morf"])
    before = (tmp_path / RECORDS).read_bytes()
    evaluated(tmp_path, some, "recency", "random", metrics=["morf"])
    assert (tmp_path / RECORDS).read_bytes().startswith(before)
    assert [record.method for record in read_records(tmp_path)] == ["random", "recency"] * 2
    assert summary(tmp_path).methods == ("recency", "random")
    with pytest.raises(ValueError, match="holds an evaluation with other methods"):  # less than it has
        evaluated(tmp_path, some, "random", metrics=["morf"])
    with pytest.raises(ValueError, match="holds an evaluation with other metrics"):
        evaluated(tmp_path, some, "recency", "random", "peering", metrics=["lerf"])


def tables(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.suffix in (".md", ".csv", ".svg")
            and not path.name.startswith("costs")}  # fmt: skip


@pytest.mark.slow
def test_progress_counts_what_was_there_and_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    instances = suite("recall", limit=2)
    evaluated(tmp_path, instances, "recency", metrics=["f1"])
    steps: list[int] = []
    kept: list[int] = []

    @contextmanager
    def progress(total: int, before: int, _: bool) -> Iterator[Callable[[int], None]]:
        assert total == 4
        kept.append(before)
        yield steps.append

    monkeypatch.setattr("heta_lens.evaluation.runner._progress", progress)
    evaluated(tmp_path, instances, "recency", "random", metrics=["f1"])
    assert (kept, steps) == ([2], [1, 1])  # the method that was there on both prompts, and the one that was added


@pytest.mark.thorough
@pytest.mark.filterwarnings("default:.*cut short:UserWarning")
def test_a_run_that_is_killed_goes_on_and_ends_with_the_same_tables(tmp_path: Path) -> None:
    words = [*WORDS, "-m", ",".join(QUICK), "--metrics", ",".join(FEW)]
    begun = subprocess.Popen(
        [sys.executable, "-c", "from heta_lens.cli import app; app()", *words, "--out", str(tmp_path / "parts")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    path = tmp_path / "parts" / RECORDS
    while not (path.exists() and path.read_bytes().count(b"\n") >= 4):
        assert begun.poll() is None
        time.sleep(0.02)
    begun.send_signal(signal.SIGKILL)
    begun.wait()
    left = path.read_bytes()
    assert 4 <= left.count(b"\n") < 18
    path.write_bytes(left + b'{"instance": "recall-test-0-000')  # as if it had been in the middle of a line
    kept = [json.loads(line) for line in left.splitlines() if line.endswith(b"}")]
    for folder in ("parts", "whole"):
        done = run(*words, "--out", str(tmp_path / folder))
        assert done.exit_code == 0 and ("it was cut short" in " ".join(done.output.split())) == (folder == "parts")
    found = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert found[: len(kept)] == kept and len(found) == 18 == len({(one["instance"], one["method"]) for one in found})
    assert tables(tmp_path / "parts") == tables(tmp_path / "whole") and len(tables(tmp_path / "whole")) >= 3


@pytest.mark.slow
def test_the_command_evaluates_a_file_of_ones_own(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "own.jsonl", suite("recall", limit=2))
    done = run(
        *("evaluate", "jsonl", "--path", str(tmp_path / "own.jsonl"), "--out", str(tmp_path / "out")),
        *("-m", "random", "--metrics", "morf,dsa"),
    )
    assert done.exit_code == 0, done.output
    assert "report.md" in done.stdout and (tmp_path / "out" / "report.html").exists()
    assert run("report", str(tmp_path / "out")).exit_code == 0


@pytest.mark.slow
def test_an_evaluation_in_which_all_fails_says_so_where_it_is_seen(tmp_path: Path) -> None:
    """The demo model has no token for these words."""
    own = [Instance(id=name, text="Zanzibar is in the", answer=None) for name in "ab"]
    own += [*suite("recall", limit=1)]
    write_jsonl(tmp_path / "some.jsonl", own)
    write_jsonl(tmp_path / "none.jsonl", own[:2])
    words = ("evaluate", "jsonl", "-m", "random", "--metrics", "morf")
    some = run(*words, "--path", str(tmp_path / "some.jsonl"), "--out", str(tmp_path / "some"))
    assert some.exit_code == 0 and "2 of 3 failed, most often (2) by: ValueError: this model has no" in some.stderr
    none = run(*words, "--path", str(tmp_path / "none.jsonl"), "--out", str(tmp_path / "none"))
    assert none.exit_code == 1 and "no metric has a value of any prompt" in none.stderr
    assert "none" in (tmp_path / "none" / "report.md").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("evaluate", "recal", "--out", "x"), "did you mean 'recall'"),
        (("evaluate", "recall", "--out", "x", "-m", "lim"), "did you mean 'lime'"),
        (("evaluate", "recall", "--out", "x", "--metrics", "aopc"), "metric='aopc' is not in"),
        (("evaluate", "recall", "--out", "x", "-m", "context_cite query=@questoin"), "did you mean '@question'?"),
        (("evaluate", "jsonl", "--out", "x"), "path"),
        (("evaluate", "recall", "--out", "x", "-o", "seed=1"), "-o seed=1 is not an option of a suite: use --seed"),
        (("evaluate", "recall", "--out", "x", "-o", "limit=1"), "use --limit"),
        (("evaluate", "recall", "--out", "x", "-o", "split=dev"), "use --split"),
        (("evaluate", "recall", "--out", "x", "-o", "path=a"), "use --path"),
        (("evaluate", "recall", "--out", "x", "-o", "name=a"), "-o name=a is not an option of a suite: the suite is"),
        (("evaluate", "longra", "--out", "x", "-o", "says=a"), "it is what the model of --model answers"),
        (("evaluate", "jsonl", "--out", "x", "--path", "x/records.jsonl"), "records.jsonl are the same file"),
        (("reproduce", "main", "--path", "longra=x/main.csv", "--out", "x"), "main.csv are the same file"),
        (("report", "/nowhere"), "/nowhere holds no evaluation"),
        (("reproduce", "compnents", "--quick"), "did you mean 'components'"),
        (("reproduce", "main"), "give model=, a name on the Hugging Face hub"),
    ],
)
def test_mistakes_get_one_sentence(
    words: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(*words)
    assert done.exit_code == 2 and message in done.stderr and "Traceback" not in done.output
    assert not (tmp_path / "x" / RECORDS).exists()
