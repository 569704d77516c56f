"""A result in the terminal, by words and the like, and as JSON."""

from functools import cache
from typing import Any

import pytest

import heta_lens
from helpers import zoo
from helpers.asking import cache_of, explain
from helpers.attributions import of_chat
from heta_lens.cli.views import Files, check_by, document_of, group_table, groups_of


@cache
def token() -> heta_lens.Attribution:
    model = zoo.bridge("gpt2")
    return explain(model, zoo.prompt(model, 6), 7, method="input_x_gradient")


@cache
def span() -> heta_lens.SpanAttribution:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, 6)
    return heta_lens.attribute_span(cache_of(model, ids), 4, tokens=ids, method="input_x_gradient")


@pytest.mark.parametrize("explained", [token, span])
@pytest.mark.parametrize("by", ["word", "sentence"])
def test_groups_have_all_of_the_score_the_highest_first(explained: Any, by: str) -> None:
    groups = groups_of(explained(), by)
    scores = [group.score for group in groups]
    assert scores == sorted(scores, reverse=True)
    assert sum(scores) == pytest.approx(float(explained().summed.scores.sum()))


def test_groups_of_nothing_but_special_tokens_are_not_listed_unless_they_are_wanted() -> None:
    made = of_chat()
    assert [str(row[2]) for row in group_table(made, "message", 8).rows] == [
        "user: The cat", "assistant: sat", "user: ",
    ]  # fmt: skip
    shown = [str(row[2]) for row in group_table(made, "message", 8, special=True).rows]
    assert shown[0] == "template: " and len(shown) == 4
    assert str(group_table(token(), "word", 8).rows[0][2]) != "<bos>"
    assert "<bos>" in {str(row[2]) for row in group_table(token(), "word", 8, special=True).rows}


def test_groups_of_no_chat_are_refused() -> None:
    with pytest.raises(ValueError, match="--by role is for a chat, and this prompt is a text"):
        groups_of(token(), "role")
    with pytest.raises(ValueError, match="--by letter is not one of token, word, sentence, message, role"):
        check_by("letter")
    check_by("role", None)


def test_a_document_has_rows_and_of_a_span_their_total() -> None:
    one, many = document_of(token(), Files()), document_of(span(), Files(), "word")
    assert one["attribution"]["score"] == pytest.approx(token().scores.tolist()) and "groups" not in one
    assert [len(row["token"]) for row in many["steps"]] == [4, 5]
    assert many["total"]["score"] == span().total.tolist() and len(many["total"]["token"]) == 4
    assert many["total"]["special"] == [True, False, False, False]
    assert {*many["groups"][0]} == {"text", "score", "positions"}
