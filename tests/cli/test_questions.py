"""Questions about a prompt: contradictions, and the run of a model."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from helpers.evaluating import demo
from heta_lens import METHODS
from heta_lens.cli.questions import Question, QuestionFlags, Span, read_by

TEXT = "Mia put the key in the drawer. Question: Where did Mia put the key? Answer: in the"


@pytest.mark.parametrize(
    ("written", "span"),
    [("3:7", Span(3, 7)), ("3:", Span(3)), (" 3 ", Span(3)), ("-2", Span(-2)), ("-4:-1", Span(-4, -1))],
)
def test_a_span(written: str, span: Span) -> None:
    assert Span.read("--span", written) == span


@pytest.mark.parametrize(
    ("asking", "target"),
    [
        ({}, None),
        ({"target": [" box"]}, " box"),
        ({"target": ["id:12"]}, 12),
        ({"target": [" box", " box"]}, " box"),
        ({"target": [" box", "id:12"]}, {" box", 12}),
        ({"target": [" box"], "against": [" bag"]}, (" box", " bag")),
        ({"target": [" box"], "against": [" bag", " jar"]}, (" box", {" bag", " jar"})),
        ({"target_function": "torch:logsumexp"}, torch.logsumexp),
    ],
)
def test_targets(asking: dict[str, Any], target: Any) -> None:
    assert QuestionFlags(**asking).question() == Question(target)


@pytest.mark.parametrize(
    ("asking", "message"),
    [
        ({"span": "3", "target": ["a"]}, "--target is about one token, and --span about several"),
        ({"through": "3:4"}, "--through goes with --span or --generate"),
        ({"span": "5", "through": "3"}, "--through .*has no end"),
        ({"against": ["a"]}, "--against goes with --target"),
        ({"target": ["a"], "target_function": "a:b"}, "--target and --target-function both say"),
        ({"target_function": "margin"}, "margin cannot be loaded"),
        ({"target_function": "math:pi"}, "--target-function math:pi is 3.14.*, which is no function"),
        ({"target_function": "nowhere_at_all:x"}, "nowhere_at_all:x cannot be loaded: ModuleNotFoundError"),
    ],
    ids=str,
)
def test_contradictions_are_refused(asking: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        QuestionFlags(**asking).question()


@pytest.mark.parametrize("target", [("a", "b"), frozenset("ab"), len], ids=["contrast", "set", "function"])
def test_a_method_that_does_not_explain_a_target_is_refused(target: Any) -> None:
    Question(target=target).check(METHODS["leave_one_out"]())
    with pytest.raises(ValueError, match="'reagent'"):
        Question(target=target).check(METHODS["reagent"]())
    with pytest.raises(ValueError, match=r"'leave_one_out', effect='kl' gives every target the same scores"):
        Question(target=target).check(METHODS["leave_one_out"](effect="kl"))


# ----------------------------------------------------------------------------------------------------- prompt running


def test_nothing_generated_and_too_much_generated_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    most: Any = demo().cfg.n_ctx
    with pytest.raises(ValueError, match=f"the prompt and {most} more tokens are {most + 22} tokens long"):
        read_by(demo(), TEXT, replace(Question(), generate=most))
    monkeypatch.setattr("heta_lens.prediction.generation.greedy", lambda *_: torch.tensor([], dtype=torch.int64))
    with pytest.raises(ValueError, match="the model ends the text at once"):
        read_by(demo(), TEXT, Question(generate=2))
