"""Questions about a prompt: contradictions, checks before a model is loaded, and the run of a model."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.evaluating import demo
from heta_lens import METHODS
from heta_lens.cli.questions import (
    Question,
    QuestionFlags,
    Span,
    loaded_for,
    read_by,
)
from heta_lens.model import loading

TEXT = "Mia put the key in the drawer. Question: Where did Mia put the key? Answer: in the"


@pytest.mark.parametrize(
    ("written", "span"),
    [("3:7", Span(3, 7)), ("3:", Span(3)), (" 3 ", Span(3)), ("-2", Span(-2)), ("-4:-1", Span(-4, -1))],
)
def test_a_span(written: str, span: Span) -> None:
    assert Span.read("--span", written) == span


@pytest.mark.parametrize(
    ("asking", "target", "kind"),
    [
        ({}, None, "token"),
        ({"target": [" box"]}, " box", "token"),
        ({"target": ["id:12"]}, 12, "token"),
        ({"target": [" box", " box"]}, " box", "token"),
        ({"target": [" box", "id:12"]}, {" box", 12}, "set"),
        ({"target": [" box"], "against": [" bag"]}, (" box", " bag"), "contrast"),
        ({"target": [" box"], "against": [" bag", " jar"]}, (" box", {" bag", " jar"}), "contrast"),
        ({"target_function": "torch:logsumexp"}, torch.logsumexp, "function"),
    ],
)
def test_targets(asking: dict[str, Any], target: Any, kind: str) -> None:
    question = QuestionFlags(**asking).question()
    assert question == Question(target) and question.kind == kind


@pytest.mark.parametrize(
    ("asking", "message"),
    [
        ({"span": "3", "target": ["a"]}, "--target is about one token, and --span about several"),
        ({"through": "3:4"}, "--through goes with --span or --generate"),
        ({"span": "5", "through": "3"}, "--through .*has no end"),
        ({"against": ["a"]}, "--against goes with --target"),
        ({"target": ["a"], "target_function": "a:b"}, "--target and --target-function both say"),
        ({"target_function": "margin"}, "margin cannot be loaded"),
        ({"target_function": "nowhere_at_all:x"}, "nowhere_at_all:x cannot be loaded: ModuleNotFoundError"),
    ],
    ids=str,
)
def test_contradictions_are_refused(asking: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        QuestionFlags(**asking).question()


@pytest.mark.parametrize("target", [("a", "b"), {"a", "b"}, len], ids=["contrast", "set", "function"])
def test_a_method_that_does_not_explain_a_target_is_refused(target: Any) -> None:
    Question(target=target).check(METHODS["leave_one_out"](effect="log_prob"))
    with pytest.raises(ValueError, match="'reagent'"):
        Question(target=target).check(METHODS["reagent"]())
    with pytest.raises(ValueError, match=r"'leave_one_out' gives every target the same scores, .*'log_prob'"):
        Question(target=target).check(METHODS["leave_one_out"]())


# ---------------------------------------------------------------------------------------------- checks before loading


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The demo model without weights; the loader returns its arguments."""
    monkeypatch.setattr(loading, "load_model", lambda name, **options: (name, options))
    shutil.copytree(loading.DEMO, tmp_path / "model", ignore=shutil.ignore_patterns("*.safetensors"))
    return str(tmp_path / "model")


@pytest.mark.parametrize(
    ("text", "question", "message"),
    [
        (TEXT, Question(position=50), "--position 50 is outside of the text, which has at most 22 tokens"),
        (TEXT, Question(span=Span(3, 90)), "--span 90 is outside of the text"),
        (TEXT, Question(span=Span(-2), through=(1, 99)), "--through 99 is outside of the text"),
        (TEXT, Question(span=Span(40), generate=5), "--span 40 is outside of the text, which has at most 27 tokens"),
        (TEXT, Question(" the key"), "target=' the key' is not a single token of this model but 2"),
        (TEXT, Question((" key", {" drawer", " box box"})), "target=' box box' is not a single token"),
        ("a \udcff", Question(), "not valid UTF-8 at character 2"),
        ("the key " * 3000, Question(), r"the text is \d+ tokens long, and this model reads \d+ at most"),
    ],
    ids=["position", "span", "through", "long span", "two tokens", "two tokens in a set", "surrogate", "long text"],
)
def test_a_question_that_does_not_fit_is_refused(folder: str, text: str, question: Question, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        loaded_for(folder, text, question)


@pytest.mark.parametrize(
    "question",
    [
        Question(),
        Question(position=21),
        Question(position=-22),
        Question(span=Span(19, 22)),
        Question(span=Span(-3, 26), generate=4),
        Question((" drawer", {"box", 5})),
        Question(len),
    ],
    ids=["next", "last", "first", "span", "generated", "contrast of sets", "function"],
)
def test_a_question_that_may_fit_loads_the_model(folder: str, question: Question) -> None:
    assert demo().to_tokens(TEXT).shape[1] == 22
    assert loaded_for(folder, TEXT, question, dtype="float32") == (folder, {"dtype": "float32"})


# ----------------------------------------------------------------------------------------------------- prompt running


def test_nothing_generated_and_too_much_generated_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    most: Any = demo().cfg.n_ctx
    with pytest.raises(ValueError, match=f"--generate {most} makes {most + 22} tokens of the prompt's 22"):
        read_by(demo(), TEXT, replace(Question(), generate=most))
    monkeypatch.setattr("heta_lens.prediction.generation.greedy", lambda *_: torch.tensor([], dtype=torch.int64))
    with pytest.raises(ValueError, match="--generate 2: the model ends the text at once"):
        read_by(demo(), TEXT, Question(generate=2))
