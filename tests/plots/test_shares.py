"""Which message of a chat mattered."""

from dataclasses import replace

import pytest
import torch

from helpers import chats
from helpers.asking import cache_of
from helpers.attributions import of_chat
from heta_lens import attribute_span, chat
from heta_lens.plots.scales import message_shares


def test_every_message_has_its_share_and_its_tokens() -> None:
    shares = message_shares(of_chat())
    assert [(one.role, one.text, one.score, one.percent) for one in shares] == [
        ("user", "The cat", 3.5, "27.5%"),
        ("assistant", "sat", 2.0, "15.7%"),
        ("user", "", 0.0, "0.0%"),
        ("template", "", 7.25, "56.9%"),
    ]
    assert sum(one.share for one in shares) == pytest.approx(1)
    assert [one.template for one in shares] == [False, False, False, True]


def test_what_speaks_against_the_target_counts() -> None:
    shares = message_shares(of_chat([0.0, 1.0, -3.0, 0.0, 4.0, 0.0], signed=True))
    assert [(one.score, one.share) for one in shares[:2]] == [(-2.0, 0.5), (4.0, 0.5)]


def test_scores_of_nothing_but_zeros_have_no_shares() -> None:
    shares = message_shares(of_chat([0.0] * 6))
    assert {one.share for one in shares} == {0.0}


def test_only_what_is_left_is_shown() -> None:
    shares = message_shares(of_chat().without([1], template=True))
    assert [(one.role, one.score) for one in shares] == [("user", 3.0), ("assistant", 2.0), ("user", 0.0)]


def test_a_span_is_shown_by_all_of_its_targets() -> None:
    made = chat(chats.bridge(), chats.CHAT)
    longer = made.followed_by(chats.tokenizer("qwen2.5").encode("On the cat", add_special_tokens=False))
    span = attribute_span(cache_of(chats.bridge(), longer.tokens), len(made), tokens=longer, method="recency")
    shares = message_shares(span)
    assert [one.score for one in shares] == [one.score for one in span.by_message()]


def test_a_span_that_was_followed_through_a_reasoning_is_shown_by_what_came_of_it() -> None:
    made = chat(chats.bridge(), chats.CHAT)
    longer = made.followed_by(chats.tokenizer("qwen2.5").encode("On the cat", add_special_tokens=False))
    answer, cache = len(longer) - 1, cache_of(chats.bridge(), longer.tokens)
    span = attribute_span(cache, answer, through=(len(made), answer), tokens=longer, method="recency")
    shares = message_shares(span)
    assert [one.score for one in shares] == [one.score for one in span.by_message()]
    assert sum(one.share for one in shares) == pytest.approx(1)
    assert not span.summed.scores[len(made) :].any(), "the reasoning has passed on all that it had"


def test_bfloat16_scores_are_shown() -> None:
    half = replace(of_chat(), scores=of_chat().scores.to(torch.bfloat16))
    assert [one.score for one in message_shares(half)][:2] == [3.5, 2.0]
