"""One prompt of an evaluation: one forward serves all methods, and what fails stops nothing."""

from collections import Counter

import pytest

from helpers.evaluating import demo, entries
from heta_lens.data.instance import Instance
from heta_lens.data.suites import suite
from heta_lens.evaluation import prompt_evaluation
from heta_lens.evaluation.prompt_evaluation import PromptEvaluator, Task
from heta_lens.model.weights import fingerprint


def test_a_prompt_is_asked_once_for_all_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: Counter[str] = Counter()
    ask = prompt_evaluation.ask
    monkeypatch.setattr(prompt_evaluation, "ask", lambda *given: (calls.update([given[1].id]), ask(*given))[1])
    named = {entry.label: entry for entry in entries("recency", "random", "leave_one_out")}
    (prompt,) = suite("recall", limit=1)
    outcomes = [*PromptEvaluator(demo(), named).outcomes(Task(7, prompt, dict.fromkeys(named, ("f1",))))]
    assert calls == {prompt.id: 1}
    assert [outcome.record.method for outcome in outcomes] == [*named]
    for record, scores in outcomes:
        assert set(record.values) == {"f1"}
        assert record.log_prob == pytest.approx(float(ask(demo(), prompt).log_probs.max()))
        assert scores is not None and (scores.key, scores.number) == (record.key, 7)


def test_a_prompt_that_cannot_be_asked_fails_for_every_method() -> None:
    named = {entry.label: entry for entry in entries("recency", "random")}
    prompt = Instance("strange", "It is in the", " qwertyuiop")
    outcomes = [*PromptEvaluator(demo(), named).outcomes(Task(0, prompt, dict.fromkeys(named, ())))]
    assert [outcome.record.method for outcome in outcomes] == [*named]
    assert all(outcome.record.failed and outcome.scores is None for outcome in outcomes)


def test_an_evaluator_is_identified_by_its_model() -> None:
    identity = PromptEvaluator(demo(), {}).identity
    assert identity.fingerprint == fingerprint(demo()) and "torch" in identity.versions
