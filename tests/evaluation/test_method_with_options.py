"""Methods with their options, as they are written, and as they are for a prompt."""

from dataclasses import replace
from pathlib import Path

import pytest

from helpers.evaluating import case_of, evaluated
from heta_lens.data.suites import suite
from heta_lens.evaluation import Entry
from heta_lens.evaluation.prompt_evaluation import ranges
from heta_lens.methods.registry import PRESETS


@pytest.mark.slow
def test_spans_stand_for_tokens_in_each_prompt(tmp_path: Path) -> None:
    assert ranges([2, 3, 5]) == ((2, 4), (5, 6))
    told = "context_cite samples=8 held_out=2 query=@question"
    found = evaluated(tmp_path, suite("recall", limit=2), told, metrics=["evidence_mass"])
    for instance in suite("recall", limit=2):
        record = found[instance.id, told]
        case = case_of(instance)
        assert [tuple(one) for one in record.options["query"]] == [*ranges(case.positions("question"))]
        assert not record.failed and record.tokens == len(case.prediction) and record.correct


def test_a_method_is_read_with_options_in_brackets_and_quotes() -> None:
    assert dict(Entry.read("context_cite query='((0, 5), (7, 9))'").options) == {"query": ((0, 5), (7, 9))}
    assert dict(Entry.read("heta  balance=sum").options) == {"balance": "sum"}


def test_a_preset_stands_for_its_method_and_options() -> None:
    entry = Entry.read("careful mask=mean batch=2")
    assert (entry.label, entry.method) == ("careful mask=mean batch=2", "heta")
    assert entry.options == {**PRESETS["careful"].options, "mask": "mean", "batch": 2}
    assert Entry.read("careful").options == PRESETS["careful"].options


def test_an_option_that_stands_for_spans_needs_them(tmp_path: Path) -> None:
    told, untold = suite("recall", limit=1)[0], replace(suite("recall", limit=2)[1], question=())
    found = evaluated(tmp_path, [told, untold], "context_cite query=@question", metrics=["morf"])
    assert not found[told.id, "context_cite query=@question"].failed
    record = found[untold.id, "context_cite query=@question"]
    assert not record.failed and record.skipped == "query=@question, and no question is known of this prompt"
