"""Chats: their tokens, and which message wrote each; messages are found in any template."""

import warnings
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
from heta_lens.prediction.chat import message_places, slots

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


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ("Hello", "messages='Hello' must be a list of dicts with role and content"),
        ({"role": "user", "content": "Hello"}, "must be a list of dicts with role and content"),
        ([], r"messages=\[\] must be a list of dicts with role and content, at least one"),
        (["Hello"], r"messages\[0\] is 'Hello', and must be a dict with role and content"),
        ([chats.CHAT], r"messages\[0\] is \[.*\], and must be a dict"),
        ([chats.CHAT[0], {"content": "Hello"}], r"messages\[1\] is .* and must be a dict with role and content"),
        ([{"role": "user", "content": 5}], r"messages\[0\] has 5 as its content, and must have text"),
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


Message = Mapping[str, Any]


def located(
    messages: Sequence[Message], name: str = "qwen2.5", source: str | None = None, **options: Any
) -> list[tuple[list[str], str]]:
    """Of each message: what its content is, in parts, and the whole stretch."""
    source = chats.template(source) if source in ("qwen3",) else source
    wrapped = chats.with_template(source, name).tokenizer if source else chats.tokenizer(name)
    template = chat_template(TokenizerWrapper(wrapped), {"add_generation_prompt": True, **options})
    text = template.render(messages)
    ids, spans = template.encode(messages, text)
    begins = spans[0].stop if ids[0] == wrapped.bos_token_id else 0
    places = message_places(messages, template.render, text, [span.start for span in spans], begins)
    return [([text[slice(*span)] for span in place.contents], text[slice(*place.whole)]) for place in places]


def wholes(*arguments: Any, **options: Any) -> list[str]:
    return [whole for _, whole in located(*arguments, **options)]


EXPECTED = {
    "qwen2.5": [
        "<|im_start|>user\nWhere is the cat?<|im_end|>\n",
        "<|im_start|>assistant\nOn the mat.<|im_end|>\n",
        "<|im_start|>user\nAnd the dog? 😀<|im_end|>\n",
    ],
    "llama3": [
        "<|start_header_id|>user<|end_header_id|>\n\nWhere is the cat?<|eot_id|>",
        "<|start_header_id|>assistant<|end_header_id|>\n\nOn the mat.<|eot_id|>",
        "<|start_header_id|>user<|end_header_id|>\n\nAnd the dog? 😀<|eot_id|>",
    ],
    "mistral": ["[INST] Where is the cat?[/INST]", " On the mat.</s>", "[INST] And the dog? 😀[/INST]"],
    "gemma2": [
        "<start_of_turn>user\nWhere is the cat?<end_of_turn>\n",
        "<start_of_turn>model\nOn the mat.<end_of_turn>\n",
        "<start_of_turn>user\nAnd the dog? 😀<end_of_turn>\n",
    ],
    "phi3": [
        "<|user|>\nWhere is the cat?<|end|>\n",
        "<|assistant|>\nOn the mat.<|end|>\n",
        "<|user|>\nAnd the dog? 😀<|end|>\n",
    ],
}


@pytest.mark.parametrize("name", chats.FAMILIES)
def test_every_message_has_its_header_and_end_marker(name: str) -> None:
    assert wholes(chats.CHAT, name) == EXPECTED[name]
    assert wholes(chats.CHAT[:1], name) == EXPECTED[name][:1]
    ended = wholes(chats.CHAT, name, add_generation_prompt=False)
    assert ended[:2] == EXPECTED[name][:2]
    assert ended[2] == EXPECTED[name][2] + "<|endoftext|>" * (name == "phi3")  # which is its end, where nothing follows


@pytest.mark.parametrize("name", [name for name, family in chats.FAMILIES.items() if family.system])
def test_a_system_message_is_whole_too(name: str) -> None:
    first, *others = wholes([chats.SYSTEM, *chats.CHAT], name)
    if name == "mistral":  # which has it in the last message of the user
        assert (first, others[2]) == ("[INST] Be brief.", "\n\nAnd the dog? 😀[/INST]")
    else:
        assert others == EXPECTED[name] and "Be brief." in first
        assert first.replace("system", "user").replace("Be brief.", "Where is the cat?") == EXPECTED[name][0]


def test_what_the_template_says_by_itself_is_no_messages() -> None:
    assert chats.QWEN not in "".join(wholes(chats.CHAT))
    assert (
        wholes(chats.TOOL_CHAT, tools=[chats.WEATHER])[0]
        == "<|im_start|>user\nHow is the weather in Paris?<|im_end|>\n"
    )


def test_messages_that_the_template_cannot_begin_with_keep_their_header() -> None:
    first = [{"role": "tool", "content": "22"}, *chats.CHAT[1:]]
    source = "{{ bos_token }}" + chats.template("qwen2.5")
    assert wholes(first, "llama3", source)[0].endswith(
        "<|im_start|>user\n<tool_response>\n22\n</tool_response><|im_end|>\n"
    )
    assert (
        wholes([chats.SYSTEM, *chats.CHAT], "mistral")[1] == EXPECTED["mistral"][0]
    )  # two of the system's are refused


def test_tool_calls_are_content() -> None:
    found = located(chats.TOOL_CHAT, tools=[chats.WEATHER])
    assert found[1][0] == ["get_weather", '{"city": "Paris"}']
    assert found[1][1].startswith("<|im_start|>assistant\n<tool_call>") and found[1][1].endswith(
        "</tool_call><|im_end|>\n"
    )
    assert found[2] == (["22 degrees"], "<|im_start|>user\n<tool_response>\n22 degrees\n</tool_response><|im_end|>\n")
    found = located(chats.TOOL_CHAT, "mistral", tools=[chats.WEATHER])
    assert found[1][0] == ["get_weather", '{"city": "Paris"}'] and found[1][1].startswith("[TOOL_CALLS] [")
    assert found[2][0] == ["22 degrees"] and found[3] == (["It is warm."], " It is warm.</s>")


def test_tool_calls_may_be_several_and_with_text_or_with_arguments_in_a_string() -> None:
    calls = [chats.CALL, {"name": "get_weather", "arguments": '{"city": "Rome"}'}]
    chat = [chats.TOOL_CHAT[0], {"role": "assistant", "content": "Both:", "tool_calls": calls}]
    two = ["get_weather", '{"city": "Paris"}', "get_weather", '{"city": "Rome"}']
    assert located(chat, source="qwen3")[1][0] == ["Both:", *two]


def test_two_answers_of_tools_in_one_turn_are_told_apart() -> None:
    answers = [{"role": "tool", "content": content} for content in ("22", "22")]
    found = located([chats.TOOL_CHAT[0], chats.TOOL_CHAT[1], *answers])
    assert found[2] == (["22"], "<|im_start|>user\n<tool_response>\n22\n</tool_response>")
    assert found[3] == (["22"], "\n<tool_response>\n22\n</tool_response><|im_end|>\n")


def test_a_tool_call_that_is_not_written_as_json_is_content_too() -> None:
    source = (
        "{% for message in messages %}<|im_start|>{{ message.content }}{% for call in message.tool_calls %}"
        "<{{ call.function.name }}>{% for name, value in call.function.arguments.items() %}{{ name }}: {{ value }}\n"
        "{% endfor %}{% endfor %}<|im_end|>{% endfor %}"
    )
    chat = [chats.TOOL_CHAT[0], {"role": "assistant", "content": "", "tool_calls": [chats.CALL]}, chats.CHAT[2]]
    assert located(chat, source=source)[1] == (
        ["get_weather", "city: Paris"],
        "<|im_start|><get_weather>city: Paris\n<|im_end|>",
    )


def test_reasoning_is_content_where_the_template_writes_it() -> None:
    answer = {"role": "assistant", "content": "so", "reasoning_content": "because"}
    found = located([chats.CHAT[0], answer], source="qwen3")
    assert found[1] == (["because", "so"], "<|im_start|>assistant\n<think>\nbecause\n</think>\n\nso<|im_end|>\n")
    assert located([chats.CHAT[0], answer, chats.CHAT[2]], source="qwen3")[1][0] == ["so"]


def test_reasoning_in_the_content_is_found_or_left_out_as_the_template_does() -> None:
    answer = {"role": "assistant", "content": "<think>\nbecause\n</think>\n\nso"}
    assert located([chats.CHAT[0], answer], source="qwen3")[1][0] == [answer["content"]]
    assert located([chats.CHAT[0], answer, chats.CHAT[2]], source="qwen3")[1][0] == ["so"]


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


def test_slots_are_what_messages_say() -> None:
    found = slots([*chats.TOOL_CHAT[:2], {"role": "assistant", "content": "a", "thinking": "b", "name": "c"}])
    assert found == {
        (0, ("content",)): "How is the weather in Paris?",
        (1, ("content",)): "",
        (1, ("tool_calls", 0, "function", "name")): "get_weather",
        (1, ("tool_calls", 0, "function", "arguments")): {"city": "Paris"},
        (2, ("content",)): "a",
        (2, ("thinking",)): "b",
    }
    assert slots([{"role": "assistant", "content": "a", "tool_calls": [5, {"function": "f"}]}]) == {
        (0, ("content",)): "a"
    }
