"""A tokenizer's chat template: text, tokens and offsets, and what is refused."""

from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import pytest

from helpers import chats, zoo
from heta_lens.model.tokenizer import TokenizerWrapper, chat_template

USER = [{"role": "user", "content": "The cat 😀"}]


def template(name: str = "qwen2.5", source: str | None = None, **options: Any) -> Any:
    tokenizer = deepcopy(chats.tokenizer(name))
    tokenizer.chat_template = source or tokenizer.chat_template
    return chat_template(TokenizerWrapper(tokenizer), {"add_generation_prompt": True, **options})


@pytest.mark.parametrize("name", chats.FAMILIES)
def test_text_and_tokens_are_the_tokenizers_own(name: str) -> None:
    made = template(name)
    text = made.render(USER)
    assert text == chats.tokenizer(name).apply_chat_template(USER, tokenize=False, add_generation_prompt=True)
    ids, spans = made.encode(USER, text)
    assert ids == chats.tokenizer(name)(text, add_special_tokens=False)["input_ids"]
    place = text.index("😀")
    writing = [token for token, span in zip(ids, spans, strict=True) if span == (place, place + 1)]
    assert chats.tokenizer(name).decode(writing).strip() == "😀" and len(writing) == 4
    assert "".join(text[slice(*span)] for span in dict.fromkeys(spans)) == text


def test_text_that_decodes_to_another_one_is_located_by_the_tokenizers_offsets() -> None:
    made = template("phi3")
    text = made.render(USER)
    ids, spans = made.encode(USER, text)
    assert made.tokenizer.decode(ids) != text  # there is a blank after every special token
    assert text[slice(*spans[0])] == "<|user|>"
    assert [text[slice(*span)] for span in spans].count("<|end|>") == 1


def test_without_offsets_such_text_is_refused() -> None:
    made = template("phi3")
    slow = SimpleNamespace(
        apply_chat_template=made.tokenizer.wrapped.apply_chat_template, decode=made.tokenizer.wrapped.decode
    )
    with pytest.raises(
        ValueError, match=r"cannot be located in the text .* tokenizer \(SimpleNamespace\) has no offset"
    ):
        type(made)(TokenizerWrapper(slow), made.options).encode(USER, made.render(USER))


def test_control_tokens_in_messages_can_be_read_as_text() -> None:
    made, chat = template(sanitize_control_tokens=True), [{"role": "user", "content": "<|im_end|> a"}]
    text = made.render(chat)
    ids, spans = made.encode(chat, text)
    end = made.tokenizer.wrapped.convert_tokens_to_ids("<|im_end|>")
    assert ids.count(end) == 2 and template().encode(chat, text)[0].count(end) == 3
    assert "".join(text[slice(*span)] for span in spans) == text


def test_the_tokenizer_is_left_as_it_was() -> None:
    made = template()
    tokenizer = made.tokenizer.wrapped
    tokenizer.backend_tokenizer.enable_padding(length=7)
    before = tokenizer.backend_tokenizer.padding
    made.encode(USER, made.render(USER))
    assert tokenizer.backend_tokenizer.padding == before


# --------------------------------------------------------------------------------------------------------- refusals
def test_a_model_without_a_chat_template_is_refused() -> None:
    with pytest.raises(ValueError, match="this model's tokenizer has no chat template"):
        chat_template(TokenizerWrapper(zoo.tokenizer()), {})
    with pytest.raises(ValueError, match="this model has no tokenizer, and so no chat template"):
        chat_template(TokenizerWrapper(None), {})
    with pytest.raises(ValueError, match="has no chat template"):
        chat_template(TokenizerWrapper(SimpleNamespace(decode=str)), {})


def test_a_chat_template_may_be_given() -> None:
    made = chat_template(TokenizerWrapper(zoo.tokenizer()), {"chat_template": "{{ messages[0].content }}"})
    assert made.render(USER) == "The cat 😀"


@pytest.mark.parametrize("option", ["tokenize", "return_dict", "return_tensors", "padding", "max_length"])
def test_options_that_are_not_of_a_template_are_refused(option: str) -> None:
    with pytest.raises(TypeError, match=f"{option}= is not an option of a chat template"):
        template(**{option: True})


@pytest.mark.parametrize(
    ("name", "option"), [("llama3", {"tools": [chats.WEATHER]}), ("qwen2.5", {"enable_thinking": False})], ids=str
)
def test_options_that_the_template_does_not_read_are_refused(name: str, option: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"does not read {next(iter(option))}=, so it would have no effect"):
        template(name, **option)
    assert template(source=chats.template("qwen3"), enable_thinking=False).render(USER).endswith("</think>\n\n")


@pytest.mark.parametrize(
    ("name", "messages", "reason"),
    [
        ("gemma2", [chats.SYSTEM, *USER], "System role not supported"),
        ("gemma2", [*USER, *USER], "Conversation roles must alternate user/assistant/user/assistant/..."),
        ("mistral", [{"role": "critic", "content": "no"}], "After the optional system message"),
        ("qwen2.5", [{"role": "user"}], "'dict object' has no attribute 'content'"),
        ("qwen2.5", [{"role": "user", "content": 5}], "can only concatenate str"),
    ],
    ids=["system", "alternate", "role", "no content", "no text"],
)
def test_what_the_template_refuses_is_said_in_a_line(name: str, messages: list[Any], reason: str) -> None:
    with pytest.raises(ValueError, match=rf"this model's chat template refuses this chat: .*{reason}") as raised:
        template(name).render(messages)
    assert "\n" not in str(raised.value)


def test_several_templates_without_a_default_are_refused() -> None:
    tokenizer = deepcopy(chats.tokenizer("qwen2.5"))
    tokenizer.chat_template = {"one": "{{ messages }}", "two": "{{ messages }}"}
    with pytest.raises(ValueError, match="this model's tokenizer: This model has multiple chat templates"):
        chat_template(TokenizerWrapper(tokenizer), {})
    assert chat_template(TokenizerWrapper(tokenizer), {"chat_template": "two"}).render(USER).startswith("[{")
