"""One prompt of an evaluation: methods with options, values of metrics, and failures."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.evaluating import case_of, demo, entries, evaluated, scored
from heta_lens.data.instance import Instance
from heta_lens.data.suites import suite
from heta_lens.evaluation import figures, prompt_evaluation
from heta_lens.evaluation.prompt_evaluation import (
    PromptEvaluator,
    Task,
    ask,
    description,
    explainers,
    raised_at,
    ranges,
    record_of,
)
from heta_lens.evaluation.saved_scores import load_scores
from heta_lens.methods.base import Scores
from heta_lens.methods.controls import Recency
from heta_lens.metrics import METRICS
from heta_lens.prediction.prediction import Prediction


@pytest.mark.slow
def test_spans_stand_for_tokens_in_each_prompt(tmp_path: Path) -> None:
    assert ranges([2, 3, 5]) == ((2, 4), (5, 6))
    told = "context_cite samples=8 held_out=2 query=@question"
    found = evaluated(tmp_path, suite("recall", limit=2), told, metrics=["evidence_mass"])
    for instance in suite("recall", limit=2):
        record = found[instance.id, told]
        case = case_of(instance)
        query = load_scores(tmp_path)[instance.id, told].options["query"]
        assert [tuple(one) for one in query] == [*ranges(case.positions("question"))]
        assert not record.failed and record.tokens == len(case.prediction) and record.correct


def test_an_option_that_stands_for_spans_needs_them(tmp_path: Path) -> None:
    told, untold = suite("recall", limit=1)[0], replace(suite("recall", limit=2)[1], question=())
    found = evaluated(tmp_path, [told, untold], "context_cite query=@question", metrics=["morf"])
    assert not found[told.id, "context_cite query=@question"].failed
    record = found[untold.id, "context_cite query=@question"]
    assert not record.failed and record.skipped == "query=@question, and no question is known of this prompt"


def test_what_is_not_known_of_a_prompt_is_said() -> None:
    (known,) = suite("recall", limit=1)
    values, reasons = figures(
        case_of(Instance(known.id, known.text, known.answer)), ["dsa", "counterfactual_aopc", "morf"]
    )
    assert reasons == {
        "dsa": "no support, gold, distractor known of this prompt",
        "counterfactual_aopc": "no counterfactual known of this prompt",
    }
    assert values["dsa"] is None and isinstance(values["morf"], float)


def test_scores_that_do_not_distinguish_tokens_are_degenerate() -> None:
    (instance,) = suite("recall", limit=1, facts=2)
    case, metrics = case_of(instance), {name: METRICS[name] for name in ("soft_nc", "dsa", "morf")}
    degenerate = [
        record_of(scored(case, scores), "", metrics).degenerate
        for scores in (case.scores, -case.scores.abs() - 1e-9, torch.ones(len(case.scores)))
    ]
    assert degenerate == [(), ("soft_nc", "dsa"), ("soft_nc", "dsa", "morf")]


def test_a_prompt_is_asked_once_for_all_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: Counter[str] = Counter()
    monkeypatch.setattr(prompt_evaluation, "ask", lambda *given: (calls.update([given[1].id]), ask(*given))[1])
    named = {entry.label: entry for entry in entries("recency", "random", "leave_one_out")}
    (prompt,) = suite("recall", limit=1)
    task = Task(prompt, {label: {"f1": METRICS["f1"]} for label in named})
    outcomes = [*PromptEvaluator(demo(), named).outcomes(task)]
    assert calls == {prompt.id: 1}
    assert [outcome.record.method for outcome in outcomes] == [*named]
    for record, attribution in outcomes:
        assert set(record.values) == {"f1"}
        assert record.log_prob == pytest.approx(float(ask(demo(), prompt).log_probs.max()))
        assert attribution is not None and len(attribution) == record.tokens


@pytest.mark.parametrize("answer", [None, " drawer"])
def test_a_prediction_takes_a_cache_its_check_and_two_runs_for_the_prefix(
    answer: str | None, forwards: Callable[[Any], list[Any]]
) -> None:
    (prompt,), model = suite("recall", limit=1), demo()
    runs = forwards(model)
    prediction = ask(model, replace(prompt, answer=answer, choices=()))
    assert len(runs) == 4
    assert prediction.target_text == answer or prediction.target == int(prediction.log_probs.argmax())


def test_an_error_is_described_with_its_place_outside_of_libraries() -> None:
    with pytest.raises(TypeError) as caught:
        Path(3)  # type: ignore[arg-type]
    assert raised_at(caught.value).startswith("evaluation/test_prompt_evaluation.py:")
    assert description(caught.value).endswith(f"({raised_at(caught.value)})")
    assert description(ValueError("this\nand that")) == "ValueError: this"


def test_an_attribution_that_cannot_be_saved_fails_alone() -> None:
    class Strange(Recency):
        def explain(self, prediction: Prediction) -> Scores:
            return Scores(super().explain(prediction).scores, {"mine": object()})

    named = {entry.label: entry for entry in explainers([Strange(), "random"])}
    (prompt,) = suite("recall", limit=1, facts=2)
    first, second = PromptEvaluator(demo(), named).outcomes(Task(prompt, {label: {} for label in named}))
    assert "cannot be saved" in first.record.failed and not second.record.failed


def test_a_prompt_that_cannot_be_asked_fails_for_every_method() -> None:
    named = {entry.label: entry for entry in entries("recency", "random")}
    prompt = Instance("strange", "It is in the", " qwertyuiop")
    outcomes = [*PromptEvaluator(demo(), named).outcomes(Task(prompt, {label: {} for label in named}))]
    assert [outcome.record.method for outcome in outcomes] == [*named]
    assert all(outcome.record.failed and outcome.attribution is None for outcome in outcomes)
