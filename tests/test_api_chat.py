"""Chats as the tokens of a cached prompt: what is explained, and whose each token is."""

from pathlib import Path
from typing import Any

import pytest
import torch

from helpers import chats
from helpers.asking import cache_of
from heta_lens import Attribution, ChatPrompt, Prediction, SpanAttribution, attribute, attribute_span, chat
from heta_lens.causal import validate

pytestmark = pytest.mark.both_lines
BUILDS = [pytest.param(build, id=kind) for kind, build in chats.MODELS.items()]
NAMES = list(chats.FAMILIES)


def chat_of(model: Any, name: str) -> ChatPrompt:
    return chat(model, [chats.SYSTEM] * chats.FAMILIES[name].system + chats.CHAT)


def answered(model: Any, name: str) -> tuple[ChatPrompt, ChatPrompt]:
    """A chat, and the same with what a model wrote."""
    made = chat_of(model, name)
    ids = chats.tokenizer(name).encode("On the 😀", add_special_tokens=False)
    return made, made.followed_by([*ids, chats.tokenizer(name).eos_token_id])


def contents(found: Attribution | SpanAttribution) -> list[str]:
    return [message.text for message in found.by_message() if message.role != "template"]


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("name", NAMES)
def test_an_attribution_of_a_chat_knows_its_messages(name: str, build: Any, tmp_path: Path) -> None:
    model = build(name)
    made = chat_of(model, name)
    cache = cache_of(model, made.tokens)
    found = attribute(cache, tokens=made, method="input_x_gradient")
    assert torch.equal(found.scores, attribute(cache, tokens=made.tokens, method="input_x_gradient").scores)
    assert contents(found) == [message.content for message in made.messages]
    assert [message.positions for message in found.by_message()][:-1] == [one.positions for one in made.messages]
    assert torch.equal(found.template, made.template)
    for grouped in (found.by_message(), found.by_role(), found.by_sentence()):
        assert sum(one.score for one in grouped) == pytest.approx(float(found.scores.sum()))
    found.save(tmp_path / "a.safetensors")
    assert Attribution.load(tmp_path / "a.safetensors").by_message() == found.by_message()
    assert not found.without(template=True).template.any()


@pytest.mark.parametrize("name", NAMES)
def test_a_token_within_a_chat_is_explained_by_the_messages_before_it(name: str) -> None:
    model = chats.bridge(name)
    made = chat_of(model, name)
    second = made.messages[1].positions[2] if name != "mistral" else made.messages[2].positions[2]
    found = attribute(cache_of(model, made.tokens), position=second, tokens=made, method="recency")
    assert len(found) == second
    for given, message in zip(made.messages, found.by_message()[:-1], strict=False):
        assert message.role == given.role and given.content.startswith(message.text)
        assert message.positions == tuple(position for position in given.positions if position < second)
    assert len(found.by_message()) < len(made.messages) + 1


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("name", NAMES)
def test_an_answer_is_explained_by_the_messages_and_by_itself(name: str, build: Any, tmp_path: Path) -> None:
    model = build(name)
    made, longer = answered(model, name)
    span = attribute_span(cache_of(model, longer.tokens), len(made), tokens=longer, method="input_x_gradient")
    assert contents(span)[: len(made.messages)] == [message.content for message in made.messages]
    assert sum(message.score for message in span.by_message()) == pytest.approx(float(span.total.sum()))
    last = span.steps[-1]
    assert last.by_message()[-2].role == "assistant" and last.by_message()[-2].text.strip() == "On the 😀"
    assert sum(role.score for role in last.by_role()) == pytest.approx(float(last.scores.sum()))
    span.save(tmp_path / "a.safetensors")
    loaded = SpanAttribution.load(tmp_path / "a.safetensors")
    assert loaded.by_message() == span.by_message() and loaded.steps[-1].by_role() == last.by_role()
    assert {*span.to_frame()["role"]} >= {"user", "assistant", "template"}
    assert span.by_sentence() and loaded.by_role() == span.by_role()


def test_a_chat_is_taken_wherever_tokens_are() -> None:
    model = chats.bridge()
    made = chat_of(model, "qwen2.5")
    cache = cache_of(model, made.tokens)
    prediction = Prediction.from_cache(cache, tokens=made)
    assert torch.equal(prediction.ids, made.tokens[0])
    effects = [
        validate(cache, attribute(cache, tokens=tokens, method="input_x_gradient"), tokens=tokens).effects
        for tokens in (made, made.tokens)
    ]
    assert torch.equal(*effects)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (
            slice(None, -2),
            r"tokens= is a chat of \d+ tokens, and the cached prompt has \d+: run chat.tokens whole",
        ),
        (
            slice(None),
            r"the embedding of token \d+ at position 5 is not the cached one: tokens=, if given, do not match",
        ),
    ],
    ids=["shorter", "other"],
)
def test_another_prompt_than_the_chat_is_refused(part: slice, message: str) -> None:
    model = chats.bridge()
    made = chat_of(model, "qwen2.5")
    ids = made.tokens[:, part].clone()
    ids[0, 5] = 300
    with pytest.raises(ValueError, match=message):
        attribute(cache_of(model, ids), tokens=made)
