"""Scores by sentence, by message and by role."""

from dataclasses import replace
from itertools import chain
from random import Random
from typing import Any

import pytest
import torch

from helpers import chats
from helpers.asking import cache_of
from helpers.attributions import SCORES, attribution, of_chat
from heta_lens import Attribution, attribute, chat
from heta_lens._util.chat_messages import Messages
from heta_lens.grouped_scores import GroupedScores

REDUCED = pytest.mark.parametrize(
    ("reduce", "user", "template"), [("sum", 3.5, 7.25), ("mean", 1.75, 7.25 / 3), ("max", 3.0, 6.0)]
)


# -------------------------------------------------------------------------------------------------------- by message
@REDUCED
def test_every_message_has_its_score_and_its_role(reduce: Any, user: float, template: float) -> None:
    assert of_chat().by_message(reduce) == [
        ("The cat", user, (1, 2), "user"),
        ("sat", 2.0, (4,), "assistant"),
        ("", 0.0, (), "user"),
        ("", pytest.approx(template), (0, 3, 5), "template"),
    ]


@REDUCED
def test_every_role_has_its_score(reduce: Any, user: float, template: float) -> None:
    assert of_chat().by_role(reduce) == [
        ("user", user, (1, 2)),
        ("assistant", 2.0, (4,)),
        ("template", pytest.approx(template), (0, 3, 5)),
    ]


def test_a_role_has_all_of_its_messages() -> None:
    three = Messages(("user", "tool", "user"), torch.zeros(0, 3, dtype=torch.int64), torch.tensor([0, 1, 2, 2, 0, 1]))
    found = of_chat(messages=three)
    assert found.by_role() == [("user", 12 - 0.5 - 0.25 + 0.75, (0, 2, 3, 4)), ("tool", 0.75, (1, 5))]
    assert [message.role for message in found.by_message()] == ["user", "tool", "user"]  # and no template


def test_nothing_is_lost_however_messages_are_read() -> None:
    numbers = Random(0)
    for _ in range(100):
        owners = torch.tensor(numbers.choices(range(-1, 3), k=6))
        made = of_chat([numbers.gauss(0, 1) for _ in range(6)], signed=True)
        assert made.messages is not None
        made = replace(made, messages=replace(made.messages, owners=owners))
        for found in (made.by_message(), made.by_role(), made.by_sentence(), made.by_word()):
            assert sum(one.score for one in found) == pytest.approx(float(made.scores.sum()))
            assert sorted(chain(*(one.positions for one in found))) == [*range(6)]


@pytest.mark.parametrize("read", [Attribution.by_message, Attribution.by_role])
def test_what_is_no_chat_has_no_messages(read: Any) -> None:
    with pytest.raises(ValueError, match=r"knows no messages: give attribute tokens=heta_lens.chat\(model, messages\)"):
        read(attribution())


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("read", [Attribution.by_message, Attribution.by_role, Attribution.by_sentence])
def test_an_unknown_reduction_is_refused(read: Any) -> None:
    with pytest.raises(ValueError, match=r"reduce='median' is not one of sum, mean, max"):
        read(of_chat(), "median")


# ------------------------------------------------------------------------------------------------------- by sentence
def sentences(made: Attribution) -> list[tuple[str, tuple[int, ...]]]:
    return [(one.text, one.positions) for one in made.by_sentence()]


def test_sentences_have_the_tokens_that_begin_in_them() -> None:
    made = attribution(["<bos>", "A", " b.", "\nC", " d!", " E"], SCORES)
    assert sentences(made) == [("<bos>", (0,)), ("A b.", (1, 2)), ("C d!", (3, 4)), ("E", (5,))]
    assert [one.score for one in made.by_sentence()] == [6.0, 3.5, 3.0, 0.25]
    assert [one.score for one in made.by_sentence("max")] == [6.0, 3.0, 2.0, 0.25]


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (["<bos>", " ", "\n", " ", "", " "], [(0,), (1, 2, 3, 4, 5)]),
        (["<bos>", "a", " b", " c", " d", " e"], [(0,), (1, 2, 3, 4, 5)]),
        (["<bos>", "a. b", ". c", ".", " d", "."], [(0,), (1,), (2,), (3,), (4, 5)]),
    ],
    ids=["blank", "one", "across"],
)
def test_every_token_is_in_one_sentence(tokens: list[str], expected: list[Any]) -> None:
    assert [positions for _, positions in sentences(attribution(tokens, SCORES))] == expected


def test_special_tokens_within_a_sentence_stand_alone() -> None:
    special = torch.tensor([True, False, True, False, False, True])
    made = attribution(["<bos>", "A", "<x>", " b", ". C", "<eos>"], SCORES, special=special)
    assert [positions for _, positions in sentences(made)] == [(0,), (1, 3, 4), (2,), (5,)]


def test_no_sentence_goes_beyond_its_message() -> None:
    assert sentences(of_chat()) == [*(("<s>", (0,)), ("The cat", (1, 2)), ("</s>", (3,)), ("sat", (4,)), ("\n", (5,)))]
    left = of_chat().without(template=True)
    assert sentences(left) == [("The cat", (1, 2)), ("sat", (4,))]


def test_sentences_of_a_real_chat_are_those_of_its_messages() -> None:
    messages = [chats.SYSTEM, {"role": "user", "content": "The cat sat. The dog ran!\nWhere?"}]
    made = chat(chats.bridge(), messages)
    found = attribute(cache_of(chats.bridge(), made.tokens), tokens=made, method="recency")
    assert [one.text for one in found.by_sentence()][1:-1] == [
        *("Be brief.", "<|im_end|>\n<|im_start|>user", "The cat sat.", "The dog ran!", "Where?")
    ]


def test_the_scores_are_those_that_a_class_says() -> None:
    with pytest.raises(NotImplementedError):
        GroupedScores().by_word()
