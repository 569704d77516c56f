"""Evaluations and explained data sets: requests, records, resuming, progress and refusals."""

import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

import heta_lens
from helpers import ROOT
from helpers.asking import missing
from helpers.evaluating import demo, evaluated, run
from heta_lens._util.files import RUN
from heta_lens._util.python import versions
from heta_lens.data.instance import Instance, read_jsonl, write_jsonl
from heta_lens.data.suites import suite
from heta_lens.evaluation import evaluate, runner
from heta_lens.evaluation.report.results import summary
from heta_lens.evaluation.run_database import read_records, reading
from heta_lens.metrics import Metric
from heta_lens.model.adapter import ModelAdapter
from heta_lens.prediction.prediction import Prediction


# ------------------------------------------------------------------------------------------------- methods and metrics
def length(prediction: Prediction) -> torch.Tensor:
    return prediction.embeddings.norm(dim=-1)


def test_methods_are_names_objects_or_functions_and_resume(tmp_path: Path) -> None:
    model, prompts = demo(), suite("recall", limit=2, facts=2)
    methods = ["random", heta_lens.METHODS["lime"](samples=9), length]
    for _ in range(2):
        evaluate(model, prompts, methods, "evidence_mass", str(tmp_path), progress=False)
    records = read_records(tmp_path)
    assert sorted(record.method for record in records) == sorted(["random", "lime samples=9", "length"] * 2)
    assert all(record.values["evidence_mass"] is not None for record in records)
    with reading(tmp_path) as database:
        recipes = database.run["methods"]
        assert database.run["versions"] == versions()
    assert recipes["lime samples=9"] == {"method": "lime", "options": {"samples": 9}}
    assert recipes["length"]["method"].endswith("test_runner.length")

    def other(prediction: Prediction) -> torch.Tensor:
        return -prediction.embeddings.norm(dim=-1)

    other.__name__ = "length"  # the source is another
    with pytest.raises(ValueError, match="holds an evaluation with other methods: give another folder"):
        evaluate(model, prompts, [*methods[:2], other], "evidence_mass", tmp_path, progress=False)


def test_an_edited_method_or_metric_needs_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))

    def run_edited(method: str, metric: float) -> None:
        text = f"from heta_lens.metrics import Metric\ndef own(prediction):\n    return prediction.embeddings{method}\n"
        text += f"def evaluate(case):\n    return {metric}\nEVEN = Metric('Even', evaluate)\n"
        (tmp_path / "edited.py").write_text(text)
        monkeypatch.delitem(sys.modules, "edited", raising=False)
        evaluate(demo(), suite("recall", limit=1), ["edited:own"], "edited:EVEN", "~/run", progress=False)

    run_edited(".norm(dim=1)", 0.25)
    run_edited(".norm(dim=1)", 0.25)
    assert [record.values for record in read_records(tmp_path / "run")] == [{"edited:EVEN": 0.25}]
    for edit, what in (((".sum(1)", 0.25), "methods"), ((".norm(dim=1)", 0.125), "metrics")):
        with pytest.raises(ValueError, match=f"holds an evaluation with other {what}: give another folder"):
            run_edited(*edit)


def test_an_unknown_answer_is_the_models_own_prediction(tmp_path: Path) -> None:
    (known,) = suite("recall", limit=1)
    wrong = next(choice for choice in known.choices if choice != known.answer)
    for answer, correct in ((None, True), (wrong, False)):
        instances = [replace(known, answer=answer)]
        (record,) = evaluated(tmp_path / str(correct), instances, "random", metrics=["morf"]).values()
        assert record.correct is correct


# ------------------------------------------------------------------------------------------------ failures and refusals
@pytest.mark.parametrize("metrics", [["f1", "morf"], []])
def test_a_refused_question_is_skipped_and_not_asked_again(tmp_path: Path, metrics: list[str]) -> None:
    asked: list[int] = []

    def contrast(prediction: Prediction) -> torch.Tensor:
        """Ask attention for a contrast, which attention cannot explain."""
        asked.append(1)
        first, second = prediction.log_probs.topk(2).indices.tolist()
        return heta_lens.METHODS["attention_last"]()(replace(prediction, target=(first, second))).scores

    for retry_failed in (False, False, True):
        options: Any = {"progress": False, "retry_failed": retry_failed}
        evaluate(demo(), suite("recall", limit=2), ["recency", contrast], metrics, tmp_path, **options)
    assert len(asked) == 2
    for record in read_records(tmp_path):
        refused = "'attention_last' gives every target the same scores" in record.skipped
        assert refused == (record.method == "contrast") and not record.failed
    if metrics:
        results = summary(tmp_path)
        cell = results.cells["f1", "contrast"]
        assert (sum(cell.skipped.values()), sum(cell.failed.values()), cell.estimate.n) == (2, 0, 0)
        assert [*results.costs.index] == ["recency"]


REFUSED: dict[str, Callable[[Path, list[Instance]], Any]] = {
    "metric='morph'": lambda path, some: evaluated(path, some, "random", metrics=["morph"]),
    "title='F1'": lambda path, some: evaluated(path, some, "random", metrics=[Metric("F1", len)]),
    "there are no methods": lambda path, some: evaluated(path, some),
    "there are no instances": lambda path, _: evaluated(path, [], "random"),
    "methods random are there more than once": lambda path, some: evaluated(path, some, "random", "random"),
    "instances recall-test-0-00000 are there more than once": lambda path, some: evaluated(path, some * 2, "random"),
    "method='rando'": lambda path, some: evaluated(path, some, "rando"),
    "probes=0": lambda path, some: evaluated(path, some, "heta probes=0"),
    "'probes' is not of the form NAME=VALUE": lambda path, some: evaluated(path, some, "heta probes"),
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("message", REFUSED)
def test_wrong_requests_are_refused_before_any_work(message: str, tmp_path: Path) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        REFUSED[message](tmp_path / "new", suite("recall", limit=1))
    assert not (tmp_path / "new").exists()


# ------------------------------------------------------------------------------------------------------------- resuming
def test_a_finished_evaluation_says_so_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "EVERY", inf)  # a slow machine would get lines in between
    for before in (["0 of 2 done"], []):
        evaluate(demo(), suite("recall", limit=2, facts=2), "random", ["morf"], tmp_path)
        assert capsys.readouterr().err.splitlines() == [*before, "2 of 2 done, about 0:00:00 left"]


# -------------------------------------------------------------------------------------------------------------- command
@pytest.mark.slow
def test_the_command_evaluates_a_file_and_reports_failures(tmp_path: Path) -> None:
    """The demo model has no token for some words."""
    some = [Instance(id=name, text="Zanzibar is in the", answer=None) for name in "ab"]
    for name, instances in {
        "all": suite("recall", limit=2),
        "some": [*some, *suite("recall", limit=1)],
        "none": some,
    }.items():
        write_jsonl(tmp_path / f"{name}.jsonl", instances)
    words = ("evaluate", "jsonl", "-m", "random", "--metrics")
    done, partly, failed = (
        run(*words, metrics, "--path", str(tmp_path / f"{name}.jsonl"), "--out", str(tmp_path / name))
        for name, metrics in {"all": "morf,dsa", "some": "morf,dsa", "none": "morf"}.items()
    )
    assert done.exit_code == 0 and "report.md" in done.stdout and (tmp_path / "all" / "report.html").exists()
    assert run("report", str(tmp_path / "all")).exit_code == 0
    assert partly.exit_code == 0 and "2 of 3 failed, most often (2) by: ValueError: this model has no" in partly.stderr
    assert failed.exit_code == 1 and "no metric has a value of any prompt" in failed.stderr
    assert "none" in (tmp_path / "none" / "report.md").read_text()


def test_metrics_without_evidence_are_refused_before_the_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line of the page has the evidence; without its support, as with nothing but gold, there is none."""
    page = (ROOT / "docs" / "evaluation.md").read_text(encoding="utf-8")
    (line,) = re.findall(r'^    (\{"id": .*)$', page, re.MULTILINE)
    (known,) = [Instance(**json.loads(line))]
    assert known.words("gold") == ["box"] and known.words("support") == ["The key is in the box."]
    path, words = tmp_path / "mine.jsonl", ("evaluate", "jsonl", "-m", "recency", "--out", str(tmp_path / "x"))
    write_jsonl(path, [known])
    evaluated = run(*words, "--path", str(path), "--metrics", "reciprocal_rank,f1")
    assert evaluated.exit_code == 0 and "none" not in evaluated.stdout
    write_jsonl(path, [replace(known, support=()), Instance("b", "The box.", None, distractor=[(0, 3)])])
    with monkeypatch.context() as unloaded:
        unloaded.setattr("heta_lens.model.loading.load_model", lambda *_, **__: pytest.fail("the model was loaded"))
        refused = run(*words, "--path", str(path), "--metrics", "f1,reciprocal_rank")
    assert refused.exit_code == 2
    assert not missing(["reciprocal_rank", "'a' has no support", "[[start, stop]]"], refused.stderr)
    with pytest.raises(ValueError, match="'a' has no support, distractor"):
        evaluate("demo", [*read_jsonl(path)], "recency", ["morf", "dsa"], tmp_path / "y")
    assert not (tmp_path / "y").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("evaluate", "recal", "--out", "x"), "did you mean 'recall'"),
        (("evaluate", "recall", "--out", "x", "--metrics", "aopc"), "metric='aopc'"),
        (("evaluate", "recall", "--out", "x", "-m", "context_cite query=@questoin"), "did you mean '@question'?"),
        (("reproduce", "compnents", "--quick"), "did you mean 'components'"),
        (("reproduce", "main"), "give model=, a name on the hub"),
    ],
)
def test_mistakes_get_one_sentence(
    words: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(*words)
    assert done.exit_code == 2 and message in done.stderr and "Traceback" not in done.output
    assert not (tmp_path / "x" / RUN).exists()


# ------------------------------------------------------------------------------------------------------------ data sets
def attributed(out: Path, count: int = 2, methods: Any = ("leave_one_out", "input_x_gradient"), **options: Any) -> Any:
    instances = suite("recall", limit=count)
    return heta_lens.attribute_dataset(demo(), instances, methods, out=out, progress=False, **options)


def test_a_table_of_prompts_is_a_data_set(tmp_path: Path) -> None:
    table = pd.DataFrame({"id": ["a", "b"], "question": [prompt.text for prompt in suite("recall", limit=2)]})
    found = heta_lens.attribute_dataset(
        demo(), table, "recency", fields={"text": "question"}, out=tmp_path, progress=False
    )
    assert found.prompts == ("a", "b")


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
def test_scores_are_the_scores_of_attribute_from_one_cache_per_prompt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    caches, cache_of = [], ModelAdapter.cache
    monkeypatch.setattr(ModelAdapter, "cache", lambda *given: caches.append(1) or cache_of(*given))
    scores = attributed(tmp_path)
    assert len(caches) == 2 and len(scores) == 4
    first, second = suite("recall", limit=2)
    tokens = heta_lens.model.tokenizer.encode(demo(), first.text)
    _, cache = demo().run_with_cache(tokens)
    expected = heta_lens.attribute(cache, first.answer, tokens=tokens, method="leave_one_out")
    assert torch.equal(scores[first.id, "leave_one_out"].scores, expected.scores)
    assert scores[first.id, "leave_one_out"].target == expected.target
    assert scores.prompts == (first.id, second.id) and scores.methods == ("leave_one_out", "input_x_gradient")
