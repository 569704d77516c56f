"""Where a chat template put each message: contents, headers and end markers."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from helpers import chats
from heta_lens.model.tokenizer import TokenizerWrapper, chat_template
from heta_lens.prediction.chat import message_places, replaced, slots

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


# ---------------------------------------------------------------------------------------- headers and end markers
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


def test_a_header_that_is_in_no_token_of_its_own_ends_with_a_token() -> None:
    source = "{% for message in messages %}{{ message.role }}:{{ message.content }};;{% endfor %}"
    assert wholes(chats.CHAT[:2], source=source) == ["user:Where is the cat?;;", "assistant:On the mat.;;"]


def test_messages_that_the_template_cannot_begin_with_keep_their_header() -> None:
    first = [{"role": "tool", "content": "22"}, *chats.CHAT[1:]]
    source = "{{ bos_token }}" + chats.template("qwen2.5")
    assert wholes(first, "llama3", source)[0].endswith(
        "<|im_start|>user\n<tool_response>\n22\n</tool_response><|im_end|>\n"
    )
    assert (
        wholes([chats.SYSTEM, *chats.CHAT], "mistral")[1] == EXPECTED["mistral"][0]
    )  # two of the system's are refused


# --------------------------------------------------------------------------------------------------------- contents
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


def test_empty_messages_have_a_place_without_content() -> None:
    chat = [{"role": "user", "content": ""}, {"role": "assistant", "content": ""}, {"role": "user", "content": "x"}]
    assert located(chat)[:2] == [([], "<|im_start|>user\n<|im_end|>\n"), ([], "<|im_start|>assistant\n<|im_end|>\n")]
    left_out = "{% for message in messages if message.content %}<|im_start|>{{ message.content }}{% endfor %}"
    assert located(chat, source=left_out) == [([], ""), ([], ""), (["x"], "<|im_start|>x")]


def test_equal_messages_may_change_what_the_template_writes() -> None:
    same = [chats.CHAT[0], chats.CHAT[1], chats.CHAT[0]]  # Mistral's puts the tools before each that equals the last
    found = located(same, "mistral", tools=[chats.WEATHER])
    assert [contents for contents, _ in found] == [[message["content"]] for message in same]


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


# ------------------------------------------------------------------------------------------------------------ slots
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


def test_replacing_leaves_the_messages_as_they_are() -> None:
    name = (1, ("tool_calls", 0, "function", "name"))
    changed = replaced(chats.TOOL_CHAT, {name: "other"})
    assert slots(changed) == {**slots(chats.TOOL_CHAT), name: "other"}
    assert chats.CALL["function"]["name"] == "get_weather"
