"""A tokenizer's own chat template: messages in, text or tokens out; what it refuses is said in one sentence."""

import inspect
import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from heta_lens._util.file_reading import brief, check_utf8
from heta_lens._util.text_spans import Span
from heta_lens.model.tokenizer import TokenizerWrapper, locate

Message: TypeAlias = Mapping[str, Any]

NOT_OF_TEMPLATES = {"conversation", "tokenize", "return_dict", "return_tensors", "return_assistant_tokens_mask"}
NOT_OF_TEMPLATES |= {"padding", "truncation", "max_length", "tokenizer_kwargs"}
ENCODING = {"sanitize_control_tokens"}  # options that change tokens, but not the text


@dataclass(frozen=True)
class ChatTemplate:
    """A tokenizer with a chat template, and the options that it is rendered with."""

    tokenizer: TokenizerWrapper
    options: Mapping[str, Any] = field(default_factory=dict)

    def render(self, messages: Sequence[Message], **more: Any) -> str:
        """The messages as text."""
        options = {name: value for name, value in self.options.items() if name not in ENCODING}
        return self._applied(self.tokenizer.wrapped, messages, tokenize=False, **{**options, **more})

    def encode(self, messages: Sequence[Message], text: str) -> tuple[list[int], list[Span]]:
        """The messages as tokens, and where each of these is in the text that `render` gives."""
        tokenizer = deepcopy(self.tokenizer.wrapped)  # encoding resets its padding and truncation settings
        ids = self._applied(tokenizer, messages, tokenize=True, return_dict=True, **self.options)["input_ids"]
        decoded, spans = locate(self.tokenizer.decode, ids)
        if decoded == text:
            return ids, spans
        spans = _offsets(tokenizer, text, ids)
        if spans is None:
            raise ValueError(
                "the tokens of this chat cannot be located in the text that the chat template writes: they decode to "
                f"another text, and the tokenizer ({type(tokenizer).__name__}) has no offsets for just these tokens"
            )
        return ids, spans

    def _applied(self, tokenizer: Any, messages: Sequence[Message], **options: Any) -> Any:
        try:
            return tokenizer.apply_chat_template([dict(message) for message in messages], **options)
        except ImportError:
            raise
        except Exception as error:  # templates come with models, and anything may happen in them
            reason = " ".join(str(error).split()) or type(error).__name__
            raise ValueError(f"this model's chat template refuses this chat: {reason[:300]}") from None


def chat_template(tokenizer: TokenizerWrapper, options: Mapping[str, Any]) -> ChatTemplate:
    """The chat template of a tokenizer; refused if there is none, or if it does not read one of the options."""
    wrapped = tokenizer.wrapped
    if wrapped is None:
        raise ValueError("this model has no tokenizer, and so no chat template: set model.tokenizer to one that has")
    apply = getattr(wrapped, "apply_chat_template", None)
    if apply is None or not (getattr(wrapped, "chat_template", None) or options.get("chat_template")):
        raise ValueError(
            "this model's tokenizer has no chat template, as base models have none: use one tuned for chat, set "
            "model.tokenizer.chat_template, or encode the text with model.to_tokens"
        )
    if wrong := sorted(NOT_OF_TEMPLATES & options.keys()):
        raise TypeError(f"{wrong[0]}= is not an option of a chat template: chat returns the tokens of one prompt")
    _check_read(wrapped, options, set(inspect.signature(apply).parameters) - {"tools", "documents"})
    return ChatTemplate(tokenizer, options)


def _check_read(wrapped: Any, options: Mapping[str, Any], known: set[str]) -> None:
    """Refuse an option that the template does not read."""
    try:
        source = wrapped.get_chat_template(options.get("chat_template"), options.get("tools"))
    except ValueError as error:
        raise ValueError(f"this model's tokenizer: {' '.join(str(error).split())}") from None
    for name in options:
        if name not in known and not re.search(rf"\b{re.escape(name)}\b", source):
            raise ValueError(f"this model's chat template does not read {name}=, so it would have no effect")


def _offsets(tokenizer: Any, text: str, ids: Sequence[int]) -> list[Span] | None:
    """Where the tokenizer itself says that each token is in the text; None if it does not say, or has other tokens."""
    if not getattr(tokenizer, "is_fast", False):
        return None
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    return [Span(*pair) for pair in encoded["offset_mapping"]] if encoded["input_ids"] == list(ids) else None


def checked_messages(messages: Any) -> list[Message]:
    """The messages, refused where they are not those of one chat in text."""
    if not isinstance(messages, list | tuple):
        raise TypeError(f"messages={brief(messages)} must be a list of dicts with role and content")
    if not messages:
        raise ValueError("messages=[] is empty: a chat has at least one message")
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise TypeError(f"messages[{number}] is {brief(message)}, and must be a dict with role and content")
        _check_message(f"messages[{number}]", message)
    return list(messages)


def _check_message(name: str, message: Message) -> None:
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str):
        raise TypeError(f"{name} has {brief(role)} as its role, and must have text, such as 'user'")
    if isinstance(content, list | tuple):
        raise TypeError(f"{name} has a list as its content, as multimodal messages do, and must have text")
    if not isinstance(calls := message.get("tool_calls"), list | tuple | None):
        raise TypeError(f"{name} has {brief(calls)} as its tool_calls, and must have a list of dicts")
    if not isinstance(content, str) and not (content is None and calls):
        raise TypeError(f"{name} has {brief(content)} as its content, and must have text")
    check_utf8(f"the content of {name}", content or "")
