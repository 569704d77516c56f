"""A model's tokenizer: the text and place of each token, the tokens that write a text, and the chat template.

A context is decoded token by token, and never encoded again.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from jaxtyping import Int
from torch import Tensor

from heta_lens._util.files import brief, check_utf8
from heta_lens._util.text import Span

Decode: TypeAlias = Callable[[Sequence[int]], str]
StandIn: TypeAlias = Literal["pad", "space"]
Message: TypeAlias = Mapping[str, Any]

TAIL = 8  # context tokens that can still change the text of the next token
INCOMPLETE = "\N{REPLACEMENT CHARACTER}"
ALWAYS_READ = {"chat_template", "add_generation_prompt", "continue_final_message", "sanitize_control_tokens"}
BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")  # name of a SentencePiece token for a single byte


class Match(NamedTuple):
    """A token for a text (exact, or with the leading space added or removed), and whether the token is a byte."""

    token: int
    exact: bool
    byte: bool


@dataclass(frozen=True)
class TokenizerWrapper:
    """A tokenizer for heta_lens: ids in, text out. Without a tokenizer, the text of a token is its id."""

    wrapped: Any

    def decode(self, ids: Sequence[int]) -> str:
        if self.wrapped is None:
            return "".join(f"<{token}>" for token in ids)
        return self.wrapped.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def write(self, token: int, context: Sequence[int] = ()) -> str:
        """Return the text of a token after this context."""
        [(_, text)] = appended(self.decode, context[-TAIL:], [token])
        return text

    def name(self, token: int) -> str:
        """Return the tokenizer's name for a token, which distinguishes tokens with the same text."""
        convert = getattr(self.wrapped, "convert_ids_to_tokens", None)  # a custom tokenizer may lack this method
        name = None if convert is None else convert(token)
        return name if isinstance(name, str) else self.decode([token])

    def find(self, text: str, context: Sequence[int], log_probs: Sequence[float]) -> int:
        """Return the most likely token that writes ``text`` after the context."""
        if self.wrapped is None:
            raise ValueError(f"target={text!r} is text, but the model has no tokenizer: give a token id")
        if not text:
            raise ValueError("target='' is empty: give the text of one token, or its id")
        if matches := self.matches(text, context, log_probs):
            return matches[0].token
        written, spans = locate(self.decode, self.encoder()(text))
        tokens = [written[slice(*span)] for span in spans if span.start < span.stop]
        if not tokens or written.strip() != text.strip():
            problem = f"cannot be written by this model's tokenizer, which turns it into {tokens}"
        else:
            problem = (
                f"is not a single token of this model but {len(tokens)}: {tokens}; explain the first of them, give a "
                "token id, or explain all of them as a span"
            )
        raise ValueError(f"target={text!r} {problem}")

    def spell(self, text: str, context: Sequence[int], log_probs: Sequence[float]) -> list[int]:
        """Return the tokens that write ``text`` after the context, if need be with different white space.

        A single token that writes the text is preferred, and is the token of `find`.
        """
        matches = self.matches(text, context, log_probs) if text else []
        if matches and matches[0].exact and not matches[0].byte:
            return [matches[0].token]
        spellings = self._spellings(text, context)
        for ids, written in spellings:
            if written == text and len(ids) > 1:
                return ids
        if matches:
            return [matches[0].token]
        for ids, written in spellings:
            if written.strip() == text.strip():
                return ids
        texts = [written for _, written in spellings]
        raise ValueError(f"{text!r} cannot be written by this model's tokenizer, which turns it into {texts}")

    def matches(self, text: str, context: Sequence[int], log_probs: Sequence[float]) -> list[Match]:
        """List the tokens for ``text`` after the context, also with the leading space added or removed.

        Byte tokens come last, because models write byte tokens only where no other token exists. Among the others,
        exact matches come first, and more likely tokens before less likely ones.
        """
        candidates = _by_visible_text(self.wrapped, len(log_probs)).get(text.strip(), ())
        wanted = {text, text[1:] if text.startswith(" ") else " " + text} - {""}
        matches = [
            Match(token, written == text, BYTE.fullmatch(self.name(token)) is not None)
            for token, written in appended(self.decode, context[-TAIL:], candidates)
            if written in wanted
        ]
        return sorted(matches, key=lambda match: (match.byte, not match.exact, -log_probs[match.token]))

    def _spellings(self, text: str, context: Sequence[int]) -> list[tuple[list[int], str]]:
        """List candidate ids for the text after a context, with the text actually written."""
        encode, tail = self.encoder(), list(context[-TAIL:])
        before = self.decode(tail)
        # A tokenizer that puts a blank before every text writes " ring" as "ring", and "?!" as a blank and "?!".
        encoded = [encode(form) for form in dict.fromkeys((text, text.lstrip()))]
        encoded += [ids[1:] for ids in encoded]
        return [(ids, self.decode([*tail, *ids]).removeprefix(before)) for ids in encoded if ids]

    def encoder(self) -> Callable[[str], list[int]]:
        """Return a function from text to ids, for new text only, never for a context."""
        return partial(_copy(self.wrapped, len(self.wrapped)).encode, add_special_tokens=False)

    @property
    def pad(self) -> int | None:
        return getattr(self.wrapped, "pad_token_id", None)

    @property
    def bos(self) -> int | None:
        return getattr(self.wrapped, "bos_token_id", None)

    @property
    def eos(self) -> int | None:
        return getattr(self.wrapped, "eos_token_id", None)

    @property
    def unknown(self) -> int | None:
        """The token for unknown words; GPT-2's unknown token is BOS, and never needed."""
        token = getattr(self.wrapped, "unk_token_id", None)
        return None if token == self.bos else token

    @property
    def filler(self) -> int | None:
        """The token with the least meaning: padding, or else end of text, or else unknown."""
        tokens = (self.pad, self.eos, getattr(self.wrapped, "unk_token_id", None))
        return next((token for token in tokens if token is not None), None)

    @property
    def blank(self) -> int | None:
        """The token written as one space; None without such a token."""
        return next(iter(self.encoder()(" ")), None) if self.wrapped is not None else None

    def stand_in(self, name: StandIn) -> int | None:
        """Return the token that replaces masked tokens: the filler, or for "space" a blank (else the filler)."""
        return self.filler if name == "pad" or self.blank is None else self.blank

    def special(self, ids: Iterable[int]) -> list[bool]:
        """Return a flag per id for control tokens: BOS, EOS, padding, and markers of the chat template.

        Markers without a name count, such as Gemma's end of turn. The token for unknown words does not count.
        """
        added = getattr(self.wrapped, "added_tokens_decoder", {})
        special = {*getattr(self.wrapped, "all_special_ids", ()), *(n for n, token in added.items() if token.special)}
        special -= {self.unknown} - {self.eos}
        return [token in special for token in ids]


def appended(decode: Decode, context: Sequence[int], tokens: Iterable[int]) -> Iterator[tuple[int, str]]:
    """Yield the tokens with the characters added by the token after the context."""
    before = decode(context)
    for token in tokens:
        after = decode([*context, token])
        yield token, after[len(before) :] if after.startswith(before) else decode([token])


@lru_cache(maxsize=4)
def _copy(tokenizer: Any, size: int) -> Any:  # noqa: ARG001 (the size notices tokens that a user adds)
    """Copy a tokenizer, because encoding resets padding and truncation settings; Gemma's takes two seconds."""
    return deepcopy(tokenizer)


@lru_cache(maxsize=4)
def _by_visible_text(tokenizer: Any, size: int) -> Mapping[str, Sequence[int]]:
    """Group the vocabulary by text without surrounding white space, which does not depend on the context."""
    tokens: dict[str, list[int]] = defaultdict(list)
    for token, text in appended(TokenizerWrapper(tokenizer).decode, [0], range(size)):
        tokens[text.strip()].append(token)
    return dict(tokens)


def locate(decode: Decode, ids: Sequence[int]) -> tuple[str, list[Span]]:
    """Return the decoded text and the span of every token in the text.

    Tokens that share one character (bytes of an emoji, say) get the span of the character.
    """
    text, spans = "", []
    anchor = done = 0  # decode from `anchor`, so that the time stays linear; the text has `done` tokens already
    for stop in range(1, len(ids) + 1):
        before, after = decode(ids[anchor:done]), decode(ids[anchor:stop])
        if after.endswith(INCOMPLETE) and stop < len(ids):
            continue
        added = after[len(before) :]
        spans += [Span(len(text), len(text) + len(added))] * (stop - done)
        text, anchor, done = text + added, done, stop
    return text, spans


# ---------------------------------------------------------------------------------------------------- prompts as text
def encode(model: Any, text: str) -> Int[Tensor, "1 pos"]:
    """Return the tokens of a prompt; refuse words without a token by name."""
    if not text.strip():
        raise ValueError("the text is empty: give the prompt that the model is to continue")
    check_utf8("the text", text)
    ids = model.to_tokens(text, truncate=False)
    check_length(model, ids.shape[1], "the text is")
    refuse_unknown(model, text)
    return ids


def check_length(model: Any, length: int, what: str) -> None:
    """Refuse more tokens than the model reads; ``what`` is long, with its verb."""
    longest = getattr(model.cfg, "n_ctx", None)
    if longest is not None and length > longest:
        raise ValueError(f"{what} {length} tokens long, and this model reads {longest} at most")


def refuse_unknown(model: Any, text: str) -> None:
    """Refuse words without a token of the tokenizer, by name."""
    unknown = TokenizerWrapper(model.tokenizer).unknown
    if unknown is None or not getattr(model.tokenizer, "is_fast", False):  # the others give no places
        return
    encoded = model.tokenizer(text, return_offsets_mapping=True)
    pairs = zip(encoded["input_ids"], encoded["offset_mapping"], strict=True)
    words = dict.fromkeys(text[slice(*span)].strip() for token, span in pairs if token == unknown)
    if named := ", ".join(repr(word) for word in words if word not in ("", model.tokenizer.unk_token)):
        known = f"it has {len(model.tokenizer)} tokens"
        raise ValueError(f"this model has no token for {named}: {known}; another model may have a larger vocabulary")


@torch.no_grad()
def next_word(model: Any, text: str) -> str:
    """Return the model's most likely token after a text."""
    return model.tokenizer.decode([int(model(encode(model, text))[0, -1].argmax())])


# ------------------------------------------------------------------------------------------------------ chat template
@dataclass(frozen=True)
class ChatTemplate:
    """A tokenizer with a chat template, and the options for rendering."""

    tokenizer: TokenizerWrapper
    options: Mapping[str, Any]

    def render(self, messages: Sequence[Message]) -> str:
        """Return the messages as text."""
        options = {**self.options}
        options.pop("sanitize_control_tokens", None)  # changes tokens, but not the text
        return self._applied(self.tokenizer.wrapped, messages, tokenize=False, **options)

    def encode(self, messages: Sequence[Message], text: str) -> tuple[list[int], list[Span]]:
        """Return the messages as tokens, with the spans of the tokens in the text of `render`."""
        tokenizer = deepcopy(self.tokenizer.wrapped)  # encoding resets padding and truncation settings
        ids = self._applied(tokenizer, messages, tokenize=True, return_dict=True, **self.options)["input_ids"]
        decoded, spans = locate(self.tokenizer.decode, ids)
        if decoded == text:
            return ids, spans
        if getattr(tokenizer, "is_fast", False):
            encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
            if encoded["input_ids"] == ids:
                return ids, [Span(*pair) for pair in encoded["offset_mapping"]]
        raise ValueError(
            "the tokens of this chat cannot be located in the text that the chat template writes: they decode to "
            f"another text, and the tokenizer ({type(tokenizer).__name__}) has no offsets for just these tokens"
        )

    def _applied(self, tokenizer: Any, messages: Sequence[Message], **options: Any) -> Any:
        try:
            return tokenizer.apply_chat_template([dict(message) for message in messages], **options)
        except ImportError:
            raise
        except Exception as error:  # templates come with models, and may raise anything
            reason = " ".join(str(error).split()) or type(error).__name__
            raise ValueError(f"this model's chat template refuses this chat: {reason[:300]}") from None


def chat_template(tokenizer: TokenizerWrapper, options: Mapping[str, Any]) -> ChatTemplate:
    """Return the chat template of a tokenizer; refuse a missing template and options without effect."""
    wrapped = tokenizer.wrapped
    if not hasattr(wrapped, "apply_chat_template") or not (
        getattr(wrapped, "chat_template", None) or options.get("chat_template")
    ):
        missing = "model has no tokenizer, and so" if wrapped is None else "model's tokenizer has"
        raise ValueError(
            f"this {missing} no chat template, as base models have none: use one tuned for chat, set "
            "model.tokenizer.chat_template, encode the text with model.to_tokens, or leave out chat=True of a suite"
        )
    source = wrapped.get_chat_template(options.get("chat_template"), options.get("tools"))
    for name in options.keys() - ALWAYS_READ:
        if not re.search(rf"\b{re.escape(name)}\b", source):
            raise ValueError(f"this model's chat template does not read {name}=, so it would have no effect")
    return ChatTemplate(tokenizer, options)


def checked_messages(messages: Any) -> list[Message]:
    """Return the messages; refuse messages that do not form a chat in text."""
    if not isinstance(messages, list | tuple) or not messages:
        raise TypeError(f"messages={brief(messages)} must be a list of dicts with role and content, at least one")
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise TypeError(f"messages[{number}] is {brief(message)}, and must be a dict with role and content")
        content = message.get("content")
        if not isinstance(content, str) and not (content is None and message.get("tool_calls")):
            raise TypeError(f"messages[{number}] has {brief(content)} as its content, and must have text")
        check_utf8(f"the content of messages[{number}]", content or "")
    return list(messages)
