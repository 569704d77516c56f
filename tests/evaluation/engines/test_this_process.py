"""The engine of one process: prompts in their order, outcomes as soon as they are finished."""

import pytest

from helpers.evaluating import demo, entries
from heta_lens import METHODS
from heta_lens.data.suites import suite
from heta_lens.evaluation.prompt_evaluation import PromptEvaluator, Task
from heta_lens.evaluation.workers import ThisProcess


def fail(*_: object) -> None:
    raise ArithmeticError("it fails")


def test_an_outcome_is_there_before_the_next_is_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(METHODS["lime"], "explain", fail)
    named = {entry.label: entry for entry in entries("recency", "random", "lime")}
    prompts = suite("recall", limit=2)
    work = ThisProcess(PromptEvaluator(demo(), named))
    done = work.outcomes([Task(number, prompt, dict.fromkeys(named, ())) for number, prompt in enumerate(prompts)])
    first = next(done)
    assert (first.record.instance, first.record.method) == (prompts[0].id, "recency")
    assert first.scores is not None and first.scores.number == 0
    others = [*done]
    assert [outcome.record.instance for outcome in others] == [prompts[0].id] * 2 + [prompts[1].id] * 3
    assert [outcome.record.method for outcome in others if outcome.scores is None] == ["lime"] * 2
