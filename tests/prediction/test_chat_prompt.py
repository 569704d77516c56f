"""Chats as prompts: tokens that are the tokenizer's own, and the message that each of them belongs to."""

import warnings
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tokenizers import AddedToken
from tokenizers.normalizers import NFKC, Lowercase, StripAccents

from helpers import chats, zoo
from heta_lens import ChatPrompt, chat
from heta_lens._util.text import Span
from heta_lens.model.tokenizer import locate

BUILDS = [pytest.param(build, id=kind) for kind, build in chats.MODELS.items()]
NAMES = list(chats.FAMILIES)


def applied(name: str, messages: Sequence[Any], **options: Any) -> list[int]:
    return chats.tokenizer(name).apply_chat_template(messages, tokenize=True, **options)["input_ids"]


def chat_of(name: str, system: bool = True) -> list[Any]:
    return [chats.SYSTEM] * (system and chats.FAMILIES[name].system) + chats.CHAT


# ------------------------------------------------------------------------------------------------------------ tokens
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


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("name", ["llama3", "mistral", "gemma2"])
def test_there_is_one_bos_if_the_template_writes_one(name: str, build: Any) -> None:
    ids = chat(build(name), chats.CHAT).tokens[0].tolist()
    assert ids.index(chats.tokenizer(name).bos_token_id) == 0 and ids.count(ids[0]) == 1


@pytest.mark.parametrize("name", [name for name, family in chats.FAMILIES.items() if family.tools])
def test_tools_are_passed_on(name: str) -> None:
    made = chat(chats.bridge(name), chats.TOOL_CHAT, tools=[chats.WEATHER])
    expected = applied(name, chats.TOOL_CHAT, tools=[chats.WEATHER], add_generation_prompt=True)
    assert made.tokens[0].tolist() == expected
    assert [message.content for message in made.messages] == [
        *("How is the weather in Paris?", 'get_weather\n{"city": "Paris"}', "22 degrees", "It is warm.", "Thanks")
    ]
    assert "The weather in a city." in made.text


def test_the_messages_are_left_as_they_are() -> None:
    messages = [{**message} for message in chats.CHAT]
    chat(chats.bridge(), messages)
    assert messages == chats.CHAT


# ---------------------------------------------------------------------------------------------------- what is whose
@pytest.mark.parametrize("name", NAMES)
def test_every_message_is_found_with_its_tokens(name: str) -> None:
    made = chat(chats.bridge(name), chat_of(name))
    decode = chats.tokenizer(name).decode
    for message, given in zip(made.messages, chat_of(name), strict=True):
        assert (message.role, message.content) == (given["role"], given["content"])
        assert [made.text[slice(*span)] for span in message.characters] == [given["content"]]
        assert decode(made.tokens[0, list(message.positions)]).strip() == given["content"]
        assert {*message.positions} < {*message.whole_positions}
        assert message.whole.start <= message.characters[0].start and message.characters[-1].stop <= message.whole.stop


def test_every_token_has_a_role_or_is_of_the_template_alone() -> None:
    made = chat(chats.bridge("llama3"), [chats.SYSTEM, *chats.CHAT])
    assert made.roles[0] is None and made.roles[-1] is None  # BOS, and the generation prompt
    assert made.roles[1] == "system" and made.owners[1] == -1
    assert made.template.tolist() == [owner < 0 for owner in made.owners]
    for position, (owner, role) in enumerate(zip(made.owners, made.roles, strict=True)):
        assert owner < 0 or (role == made.messages[owner].role and position in made.messages[owner].positions)
    prompt = [position for position, role in enumerate(made.roles) if role is None][1:]
    decoded = chats.tokenizer("llama3").decode(made.tokens[0, prompt])
    assert decoded == "<|start_header_id|>assistant<|end_header_id|>\n\n"


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


@pytest.mark.parametrize("name", NAMES)
def test_random_conversations_are_found_character_by_character(name: str) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*is not read by the model", UserWarning)
        for seed in range(60):
            messages = chats.conversation(name, seed)
            check(name, messages, chat(chats.bridge(name), messages))


@pytest.mark.nightly
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore:.*is not read by the model")
def test_thousands_of_random_conversations_are_found(name: str) -> None:
    for seed in range(60, 2060):
        messages = chats.conversation(name, seed)
        check(name, messages, chat(chats.bridge(name), messages))


def test_the_offsets_are_those_of_the_librarys_own_decoding() -> None:
    made = chat(chats.bridge("llama3"), chats.CHAT)
    decoded = locate(chats.tokenizer("llama3").decode, made.tokens[0].tolist())
    assert (made.text, made.offsets) == (decoded[0], tuple(decoded[1]))


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


def test_a_token_of_header_and_content_is_content_if_that_shows() -> None:
    model = chats.with_template("{% for message in messages %}{{ message.role }} ca{{ message.content }}{% endfor %}")
    made = chat(model, [{"role": "user", "content": "t sat"}])
    assert made.text == "user cat sat"
    assert made.text[slice(*made.offsets[made.messages[0].positions[0]])] == " cat"
    made = chat(model, [{"role": "user", "content": " sat"}])
    assert min(made.messages[0].positions) >= 2


def test_it_prints_how_many_tokens_each_message_has() -> None:
    made = chat(chats.bridge(), chats.CHAT[:1], add_generation_prompt=False)
    content, template = len(made.messages[0].positions), int(made.template.sum())
    assert repr(made) == f"ChatPrompt of {len(made)} tokens: user {content}, template {template}"


# ---------------------------------------------------------------------------------------------------- going on
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
    assert longer.template[-1] and longer.roles[-1] == "assistant"
    header = [position for position in answer.whole_positions if position < len(made)]
    assert header == [position for position, role in enumerate(made.roles) if role is None and position > 0]
    assert longer.text.startswith(made.text) and len(longer.offsets) == len(longer)


@pytest.mark.parametrize("name", NAMES)
def test_tokens_may_follow_one_by_one(name: str) -> None:
    """Although an emoji is not there before its last byte."""
    made = chat(chats.bridge(name), chat_of(name))
    ids = chats.tokenizer(name).encode("a 😀b", add_special_tokens=False)
    whole = made.followed_by(ids)
    for token in ids:
        made = made.followed_by([token])
    assert (made.text, made.offsets, made.messages) == (whole.text, whole.offsets, whole.messages)
    assert made.messages[-1].content.strip() == "a 😀b"


def test_special_tokens_within_an_answer_are_the_templates() -> None:
    made, tokenizer = chat(chats.bridge("mistral"), chats.CHAT), chats.tokenizer("mistral")
    longer = made.followed_by(tokenizer.encode("[TOOL_CALLS]the cat</s>", add_special_tokens=False))
    assert longer.messages[-1].content.strip() == "the cat"
    assert longer.template[len(made) :].tolist() == [True, *[False] * (len(longer) - len(made) - 2), True]


def test_half_an_emoji_before_an_end_marker_takes_it_into_no_content() -> None:
    tokenizer = chats.tokenizer("qwen2.5")
    made, (byte, *_) = chat(chats.bridge(), chats.CHAT), tokenizer.encode("😀", add_special_tokens=False)
    longer = made.followed_by([byte, tokenizer.eos_token_id, byte])
    assert longer.template[len(made) :].tolist() == [False, True, False]


def test_what_is_no_token_cannot_follow() -> None:
    with pytest.raises(ValueError, match="ids= has -3, which is no token"):
        chat(chats.bridge(), [{"role": "user", "content": "Hi"}]).followed_by([5, -3])


def test_nothing_may_follow() -> None:
    made = chat(chats.bridge(), chats.CHAT)
    assert made.followed_by([]) is made
    assert made.followed_by(made.tokens[:, len(made) :]) is made


def test_the_last_message_may_be_continued() -> None:
    messages = [chats.CHAT[0], {"role": "assistant", "content": "On the"}]
    model = chats.bridge("llama3")
    made = chat(model, messages, add_generation_prompt=False, continue_final_message=True)
    assert made.tokens[0].tolist() == applied("llama3", messages, continue_final_message=True)
    assert made.text.endswith("\n\nOn the") and made.messages[-1].content == "On the"
    longer = made.followed_by(chats.tokenizer("llama3").encode(" mat<|eot_id|>", add_special_tokens=False))
    assert len(longer.messages) == 2 and longer.messages[-1].content == "On the mat"
    assert longer.messages[-1].positions == tuple(range(made.messages[-1].positions[0], len(longer) - 1))
    assert longer.messages[0] == made.messages[0]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ("on the mat", "ids='on the mat' must be the ids of the tokens that follow"),
        ([0.5], "got torch.float32 of shape"),
        ([True], "got torch.bool of shape"),
        (torch.ones(2, 3, dtype=torch.int64), r"got torch.int64 of shape \(2, 3\)"),
        (torch.tensor(5), r"got torch.int64 of shape \(\)"),
    ],
    ids=str,
)
def test_what_does_not_follow_is_refused(ids: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        chat(chats.bridge(), chats.CHAT).followed_by(ids)


def test_the_chat_itself_does_not_follow() -> None:
    made = chat(chats.bridge(), chats.CHAT)
    generated = torch.cat([made.tokens, made.tokens[:, :2]], dim=1)
    with pytest.raises(ValueError, match=rf"begins with the chat's own {len(made)} tokens: .* ids\[:, {len(made)}:\]"):
        made.followed_by(generated)
    assert len(made.followed_by(generated[:, len(made) :])) == len(generated[0])


# ------------------------------------------------------------------------------------------------------ of a context
@pytest.mark.parametrize("name", NAMES)
def test_the_beginning_of_a_chat_has_the_messages_that_it_begins(name: str) -> None:
    made = chat(chats.bridge(name), chat_of(name))
    decode = made.tokenizer.decode
    for length in range(1, len(made) + 1):
        text, spans = locate(decode, made.tokens[0, :length].tolist())
        messages = made.of_context(text, spans)
        assert messages.owners.tolist() == list(made.owners[:length])
        begun = [number for number, role in enumerate(made.messages) if min(role.whole_positions) < length]
        assert len(messages.roles) == max(begun, default=-1) + 1
        for number in range(len(messages.roles)):
            content, whole = messages.content(number, text), made.messages[number].content
            assert whole.startswith(content.strip("\N{REPLACEMENT CHARACTER}"))
            assert bool(content) == bool({*made.messages[number].positions} & {*range(length)})
    assert [messages.content(number, text) for number in range(len(made.messages))] == [
        message.content for message in made.messages
    ]


# --------------------------------------------------------------------------------------------------------- refusals
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ("Hello", "messages='Hello' must be a list of dicts with role and content"),
        ({"role": "user", "content": "Hello"}, "must be a list of dicts with role and content"),
        ([], r"messages=\[\] is empty: a chat has at least one message"),
        (["Hello"], r"messages\[0\] is 'Hello', and must be a dict with role and content"),
        ([chats.CHAT], r"messages\[0\] is \[.*\], and must be a dict"),
        ([chats.CHAT[0], {"content": "Hello"}], r"messages\[1\] has None as its role, and must have text"),
        ([{"role": "user", "content": 5}], r"messages\[0\] has 5 as its content, and must have text"),
        ([{"role": "user", "tool_calls": 5}], r"messages\[0\] has 5 as its tool_calls, and must have a list of dicts"),
        ([{"role": "user"}], r"messages\[0\] has None as its content, and must have text"),
        ([{"role": "user", "content": [{"type": "image"}]}], r"messages\[0\] has a list as its content, as multimodal"),
        ([{"role": "user", "content": "\ud83d"}], r"the content of messages\[0\] is not valid UTF-8 at character 0"),
    ],
    ids=str,
)
def test_what_is_no_chat_is_refused_in_a_sentence(messages: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        chat(chats.bridge(), messages)


def test_a_chat_that_goes_on_and_begins_anew_is_refused() -> None:
    with pytest.raises(ValueError, match=r"continue_final_message= .* give add_generation_prompt=False too"):
        chat(chats.bridge(), chats.CHAT, continue_final_message=True)


@pytest.mark.slow
def test_models_that_read_no_chats_are_refused() -> None:
    with pytest.raises(ValueError, match="this model's tokenizer has no chat template"):
        chat(zoo.bridge("gpt2"), chats.CHAT)
    with pytest.raises(TypeError, match="is not a TransformerLens model"):
        chat(chats.tokenizer("qwen2.5"), chats.CHAT)
    with pytest.raises(ValueError, match=r"the chat is \d+ tokens long, and this model reads 8192 at most"):
        chat(chats.bridge(), [{"role": "user", "content": "cat " * 9000}])
    with pytest.raises(ValueError, match="chat template writes nothing at all for these messages"):
        chat(chats.with_template("{{ '' }}"), chats.CHAT)
    without = chats.with_template(None)
    without.tokenizer = None
    with pytest.raises(ValueError, match="this model has no tokenizer"):
        chat(without, chats.CHAT)


def test_a_message_that_the_template_leaves_out_is_warned_of() -> None:
    messages = [chats.CHAT[0], {"role": "critic", "content": "Hm."}]
    with pytest.warns(UserWarning, match=r"messages\[1\] \(critic\) is not read by the model: its chat template"):
        made = chat(chats.bridge("phi3"), messages)
    assert made.messages[1].positions == () and "Hm." not in made.text
    with pytest.warns(UserWarning, match=r"messages\[1\] \(assistant\) is not read by the model"):
        chat(chats.bridge("llama3"), [chats.CHAT[0], {"role": "assistant", "content": "", "tool_calls": [chats.CALL]}])
