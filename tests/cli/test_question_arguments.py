"""Which question is put to a prompt, and which contradict themselves."""

from typing import Any

import pytest

from heta_lens import METHODS
from heta_lens.cli.questions import Question, Span, question_of


@pytest.mark.parametrize(
    ("written", "span"),
    [
        ("3:7", Span(3, 7)),
        ("3:", Span(3)),
        ("3", Span(3)),
        ("-2", Span(-2)),
        ("-4:-1", Span(-4, -1)),
        (" 3:7 ", Span(3, 7)),
    ],
)
def test_a_span(written: str, span: Span) -> None:
    assert Span.read("--span", written) == span


@pytest.mark.parametrize("written", ["", ":", ":3", "a", "3:7:9", "3-7", "1.5"])
def test_what_is_no_span(written: str) -> None:
    with pytest.raises(ValueError, match=r"--span .*is no span of positions: write START:STOP"):
        Span.read("--span", written)


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
    ],
)
def test_targets(asking: dict[str, Any], target: Any, kind: str) -> None:
    question = question_of(asking)
    assert question.target == target and question.kind == kind and not question.of_span


def test_a_function_is_a_target() -> None:
    question = question_of({"target_function": "torch:logsumexp"})
    assert callable(question.target) and question.kind == "function"


def test_spans_and_positions() -> None:
    assert question_of({"position": 0}).position == 0
    question = question_of({"span": "-2", "through": "3:6"})
    assert (question.span, question.through, question.of_span) == (Span(-2), (3, 6), True)
    assert question_of({"generate": 3}).of_span


@pytest.mark.parametrize(
    ("asking", "message"),
    [
        ({"span": "3", "target": ["a"]}, "--target is about one token, and --span about several"),
        ({"span": "3", "position": 0}, "--position is about one token, and --span about several"),
        ({"generate": 3, "target_function": "a:b"}, "--target-function is about one token, and --generate about"),
        ({"through": "3:4"}, "--through goes with --span or --generate"),
        ({"span": "5", "through": "3"}, "--through 3 has no end"),
        ({"against": ["a"]}, "--against goes with --target"),
        ({"target": ["a"], "target_function": "a:b"}, "--target and --target-function both say"),
        ({"target_function": "margin"}, "--target-function margin is not of the form MODULE:NAME"),
        ({"target_function": "nowhere_at_all:x"}, "nowhere_at_all:x cannot be loaded: ModuleNotFoundError"),
        ({"target_function": "math:pi"}, "--target-function math:pi is no function of the logits"),
        ({"target_function": "fractions:Fraction"}, "is no function of the logits"),
    ],
    ids=str,
)
def test_contradictions_are_refused(asking: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        question_of(asking)


@pytest.mark.parametrize("target", [("a", "b"), {"a", "b"}, len], ids=["contrast", "set", "function"])
def test_a_method_that_does_not_explain_such_a_target_is_refused(target: Any) -> None:
    Question(target=target).check(METHODS["leave_one_out"](effect="log_prob"))
    with pytest.raises(ValueError, match=r"method='reagent' explains (one|a) token"):
        Question(target=target).check(METHODS["reagent"]())
    with pytest.raises(ValueError, match=r"method='leave_one_out' gives every target the same scores, .*'log_prob'"):
        Question(target=target).check(METHODS["leave_one_out"]())
