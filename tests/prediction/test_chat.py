"""Chats: their tokens, and which message wrote each; messages are found in any template."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from tokenizers import AddedToken
from tokenizers.normalizers import NFKC, Lowercase, StripAccents

from helpers import chats, zoo
from heta_lens import ChatPrompt, chat
from heta_lens._util.text import Span
from heta_lens.model.tokenizer import TokenizerWrapper, chat_template, locate
from heta_lens.prediction.chat import message_contents

BUILDS = [pytest.param(build, id=kind) for kind, build in chats.MODELS.items()]
NAMES = list(chats.FAMILIES)


def applied(name: str, messages: Sequence[Any], **options: Any) -> list[int]:
    return chats.tokenizer(name).apply_chat_template(messages, tokenize=True, **options)["input_ids"]


def chat_of(name: str, system: bool = True) -> list[Any]:
    return [chats.SYSTEM] * (system and chats.FAMILIES[name].system) + chats.CHAT


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("name", NAMES)
def test_the_tokens_are_those_of_the_tokenizers_own_template(name: str, build: Any) -> None:
    model = build(name)
    for messages in (chat_of(name), chat_of(name, system=False)):
        for generation in (True, False):
            made = chat(model, messages, add_generation_prompt=generation)
            assert made.tokens[0].tolist() == applied(name, messages, add_generation_prompt=generation)
            assert made.tokens.shape == (1, len(made)) and made.tokens.device == model.embed.W_E.device
    assert model(made.tokens).shape[1] == len(made)


def check(name: str, messages: Sequence[Any], made: ChatPrompt) -> None:
    """Against the transcription of the templates, character by character and token by token."""
    assert made.tokens[0].tolist() == applied(name, messages, add_generation_prompt=True)
    pieces = chats.pieces(name, messages)
    assert made.text == "".join(text for text, _ in pieces)
    letters = [owner for text, owner in pieces for _ in text]
    for number, message in enumerate(made.messages):
        assert message.content == "".join(text for text, owner in pieces if owner == number)
        assert [owner for span in message.characters for owner in letters[slice(*span)]] == [number] * len(
            message.content
        )
    assert list(made.owners) == [expected_owner(made.text, span, letters) for span in made.offsets]


def expected_owner(text: str, span: Span, letters: Sequence[int]) -> int:
    """The message that a token shows the first character of; of white space, the one that it all belongs to."""
    own = letters[slice(*span)]
    visible = [owner for owner, letter in zip(own, text[slice(*span)], strict=True) if owner >= 0 and letter.strip()]
    if visible:
        return visible[0]
    return own[0] if len({*own}) == 1 else -1


@pytest.mark.parametrize("seeds", [range(60), pytest.param(range(60, 2060), marks=pytest.mark.nightly)], ids=str)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore:.*is not read by the model")
def test_random_conversations_are_found_character_by_character(name: str, seeds: range) -> None:
    for seed in seeds:
        messages = chats.conversation(name, seed)
        check(name, messages, chat(chats.bridge(name), messages))


@pytest.mark.parametrize(
    ("normalizer", "read"),
    [(NFKC(), "éA fine 😀"), (Lowercase(), "e\u0301a ﬁne 😀"), (StripAccents(), "eA ﬁne 😀")],
    ids=str,
)
def test_messages_are_found_where_the_tokenizer_changes_them(normalizer: Any, read: str) -> None:
    made = chats.byte_level()
    made.normalizer = normalizer
    made.add_special_tokens([AddedToken(token, normalized=False) for token in chats.FAMILIES["qwen2.5"].added])
    model = chats.with_template(None)
    model.tokenizer = zoo.on_disk(made, chats.FAMILIES["qwen2.5"].special, chats.template("qwen2.5"))
    found = chat(model, [{"role": "user", "content": "e\u0301A ﬁne 😀"}, *chats.CHAT[1:]])
    text, spans = locate(found.tokenizer.decode, found.tokens[0].tolist())
    assert found.messages[0].content == "e\u0301A ﬁne 😀" and found.of_context(text, spans).content(0, text) == read
    assert found.tokenizer.decode(found.tokens[0, list(found.messages[0].positions)].tolist()) == read


@pytest.mark.parametrize("name", NAMES)
def test_what_the_model_wrote_belongs_to_the_assistant(name: str) -> None:
    model = chats.bridge(name)
    made, encode = chat(model, chat_of(name)), chats.tokenizer(name).encode
    end = chats.tokenizer(name).eos_token_id
    ids = [*encode("On the cat 😀.", add_special_tokens=False), end]
    longer = made.followed_by(torch.tensor([ids]))
    assert longer.tokens[0].tolist() == [*made.tokens[0].tolist(), *ids]
    answer = longer.messages[-1]
    assert longer.messages[:-1] == made.messages and answer.role == "assistant"
    assert answer.content.strip() == "On the cat 😀."
    assert answer.positions == tuple(range(len(made), len(longer) - 1))
    assert longer.template[-1]
    assert longer.text.startswith(made.text) and len(longer.offsets) == len(longer)


def test_the_ids_of_several_chats_are_refused() -> None:
    with pytest.raises(ValueError, match=r"not of shape \(2, 3\)"):
        chat(chats.bridge(), chats.CHAT).followed_by(torch.ones(2, 3, dtype=torch.int64))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ("Hello", "messages='Hello' must be a list of dicts with role and content"),
        ({"role": "user", "content": "Hello"}, "must be a list of dicts with role and content"),
        ([], r"messages=\[\] must be a list of dicts with role and content, at least one"),
        ([chats.CHAT[0], {"content": "Hello"}], r"messages\[1\] is .* and must be a dict with role and content"),
        ([{"role": "user"}], r"messages\[0\] has None as its content, and must have text"),
        ([{"role": "user", "content": [{"type": "image"}]}], r"messages\[0\] has .* as its content, and must"),
        ([{"role": "user", "content": "\ud83d"}], r"the content of messages\[0\] is not valid UTF-8 at character 0"),
    ],
    ids=str,
)
def test_what_is_no_chat_is_refused_in_a_sentence(messages: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        chat(chats.bridge(), messages)


@pytest.mark.slow
def test_models_that_read_no_chats_are_refused() -> None:
    with pytest.raises(ValueError, match="this model's tokenizer has no chat template"):
        chat(zoo.bridge("gpt2"), chats.CHAT)
    with pytest.raises(TypeError, match="is not a TransformerLens model"):
        chat(chats.tokenizer("qwen2.5"), chats.CHAT)
    with pytest.raises(ValueError, match=r"the chat is \d+ tokens long, and this model reads 8192 at most"):
        chat(chats.bridge(), [{"role": "user", "content": "cat " * 9000}])
    without = chats.with_template(None)
    without.tokenizer = None
    with pytest.raises(ValueError, match="this model has no tokenizer"):
        chat(without, chats.CHAT)


Message = Mapping[str, Any]


def located(
    messages: Sequence[Message], name: str = "qwen2.5", source: str | None = None, **options: Any
) -> list[list[str]]:
    """Of each message: what its content is, in parts."""
    source = chats.template(source) if source == "qwen3" else source
    wrapped = chats.with_template(source, name).tokenizer if source else chats.tokenizer(name)
    template = chat_template(TokenizerWrapper(wrapped), {"add_generation_prompt": True, **options})
    text = template.render(messages)
    contents = message_contents(messages, template.render, text)
    return [[text[slice(*span)] for span in characters] for characters in contents]


def test_tool_calls_are_content() -> None:
    found = located(chats.TOOL_CHAT, tools=[chats.WEATHER])
    assert found[1:3] == [["get_weather", '{"city": "Paris"}'], ["22 degrees"]]
    found = located(chats.TOOL_CHAT, "mistral", tools=[chats.WEATHER])
    assert found[1:4] == [["get_weather", '{"city": "Paris"}'], ["22 degrees"], ["It is warm."]]


def test_reasoning_is_found_where_the_template_writes_it() -> None:
    question, answer = chats.CHAT[0], {"role": "assistant", "content": "<think>\nHere.\n</think>\n\nOn the mat."}
    assert located([question, answer], source="qwen3")[1] == [answer["content"]]
    assert located([question, answer, question], source="qwen3")[1] == ["On the mat."]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "{% for message in messages %}{{ message.content | upper }}{% endfor %}",
            r"messages\[0\] \(user\): its content",
        ),
        (
            "{% for message in messages[::-1] %}{{ (message.content or '') | length }}{% endfor %}",
            r"messages\[0\] \(user\)",
        ),
        (
            "{% set city = messages[1].tool_calls[0].function.arguments.keys() | first %}"
            "{{ city }}: {{ messages[0].content }} {{ city }}.",
            r"messages\[0\] \(user\) and messages\[1\] \(assistant\) cannot be told apart",
        ),
    ],
    ids=["altered", "counted", "around another"],
)
def test_messages_that_cannot_be_located_are_refused(source: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        located(chats.TOOL_CHAT[:2], source=source)
