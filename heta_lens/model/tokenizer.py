"""A model's tokenizer: which text a token writes and where it stands, and which token or tokens write a text.

A context is only ever decoded, token by token; it is never encoded again to find out what it was.
"""

import inspect
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from jaxtyping import Int
from torch import Tensor

from heta_lens._util.files import brief, check_utf8
from heta_lens._util.text import Span

# ------------------------------------------------------------------------------------------------------ token matching
# Which token writes a text after a context, where several might: in which order they come, and which is taken.


Decode: TypeAlias = Callable[[Sequence[int]], str]

TAIL = 8  # context tokens that can still change how the next token is written


class Match(NamedTuple):
    """A token that writes a text, exactly or with its leading space toggled; and whether it is a byte token."""

    token: int
    exact: bool
    byte: bool


class Spelled(NamedTuple):
    """The token chosen for a text, and the others that write the same."""

    token: int
    others: tuple[int, ...] = ()


def _never(token: int) -> bool:  # noqa: ARG001
    return False


def matches(
    decode: Decode,
    tokens: Iterable[int],
    log_probs: Sequence[float],
    context: Sequence[int],
    text: str,
    is_byte: Callable[[int], bool] = _never,
) -> list[Match]:
    """The tokens that append ``text`` to the context, or ``text`` with its leading space toggled; best first.

    Byte tokens come last: a model writes them only where it has no other token. Among the rest, those that write
    exactly the text come first, the most likely of these before the others.
    """
    toggled = text[1:] if text.startswith(" ") else " " + text
    wanted = {text, toggled} - {""}
    candidates = [
        Match(token, written == text, is_byte(token))
        for token, written in appended(decode, context[-TAIL:], tokens)
        if written in wanted
    ]
    return sorted(candidates, key=lambda match: (match.byte, not match.exact, -log_probs[match.token]))


def best_match(candidates: Sequence[Match]) -> Spelled:
    """The first of these matches; beside it those that write the text at least as exactly."""
    first, *rest = candidates
    return Spelled(first.token, tuple(match.token for match in rest if match.exact >= first.exact))


def appended(decode: Decode, context: Sequence[int], tokens: Iterable[int]) -> Iterator[tuple[int, str]]:
    """Each token with the characters it would add after the context."""
    before = decode(context)
    for token in tokens:
        after = decode([*context, token])
        yield token, after[len(before) :] if after.startswith(before) else decode([token])


StandIn: TypeAlias = Literal["pad", "space"]

INCOMPLETE = "\N{REPLACEMENT CHARACTER}"
BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")  # how SentencePiece names the tokens it falls back to, one per byte


class Spelling(NamedTuple):
    """Tokens, and the text that they write after a context."""

    ids: list[int]
    text: str


@dataclass(frozen=True)
class TokenizerWrapper:
    """A tokenizer as heta_lens uses it: ids in, text out. Without a tokenizer, tokens are written as their ids."""

    wrapped: Any

    def decode(self, ids: Sequence[int]) -> str:
        if self.wrapped is None:
            return "".join(f"<{token}>" for token in ids)
        return self.wrapped.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def write(self, token: int, context: Sequence[int] = ()) -> str:
        """A token as it is written after this context."""
        return next(text for _, text in appended(self.decode, context[-TAIL:], [token]))

    def name(self, token: int) -> str:
        """The tokenizer's own name for a token, which distinguishes tokens that are written the same."""
        convert = getattr(self.wrapped, "convert_ids_to_tokens", None)  # which a custom tokenizer may lack
        name = None if convert is None else convert(token)
        return name if isinstance(name, str) else self.decode([token])

    def is_byte(self, token: int) -> bool:
        return BYTE.fullmatch(self.name(token)) is not None

    def find(self, text: str, context: Sequence[int], log_probs: Sequence[float]) -> Spelled:
        """The token that writes ``text`` after this context, the most likely of several."""
        if self.wrapped is None:
            raise ValueError(f"target={text!r} is text, but the model has no tokenizer: give a token id")
        if not text:
            raise ValueError("target='' is empty: give the text of one token, or its id")
        candidates = self._matches(text, context, log_probs)
        return best_match(candidates) if candidates else refuse_text(self.decode, self.encoder(), text)

    def is_single(self, text: str) -> bool:
        """Whether it is encoded as one token, with or without its leading space; others may still be one."""
        encode = self.encoder()
        encoded = [encode(form) for form in (text, text.lstrip())]
        return any(len(ids) == 1 and self.decode(ids).strip() == text.strip() for ids in encoded)

    def spell(self, text: str, context: Sequence[int], log_probs: Sequence[float]) -> list[int]:
        """The tokens that write ``text`` after this context; if there are none, those that differ only in white space.

        A single token if one does, the same as `find` gives.
        """
        candidates = self._matches(text, context, log_probs) if text else []
        if candidates and candidates[0].exact and not candidates[0].byte:
            return [candidates[0].token]
        spellings = self._spellings(text, context)
        for spelling in spellings:
            if spelling.text == text and len(spelling.ids) > 1:
                return spelling.ids
        if candidates:
            return [candidates[0].token]
        for spelling in spellings:
            if spelling.text.strip() == text.strip():
                return spelling.ids
        written = [spelling.text for spelling in spellings]
        raise ValueError(f"{text!r} cannot be written by this model's tokenizer, which turns it into {written}")

    def _matches(self, text: str, context: Sequence[int], log_probs: Sequence[float]) -> list[Match]:
        length = len(self.wrapped) if hasattr(self.wrapped, "__len__") else 0
        tokens = _by_visible_text(self.wrapped, length, len(log_probs)).get(text.strip(), ())
        return matches(self.decode, tokens, log_probs, context, text, self.is_byte)

    def _spellings(self, text: str, context: Sequence[int]) -> list[Spelling]:
        """Ids that may write the text after this context, each with what it does write."""
        encode, tail = self.encoder(), list(context[-TAIL:])
        before = self.decode(tail)
        # A tokenizer that puts a blank before every text writes " ring" as "ring", and "?!" as a blank and "?!".
        encoded = [encode(form) for form in dict.fromkeys((text, text.lstrip()))]
        encoded += [ids[1:] for ids in encoded]
        return [Spelling(ids, self.decode([*tail, *ids]).removeprefix(before)) for ids in encoded if ids]

    def encoder(self) -> Callable[[str], list[int]]:
        """Text in, ids out: for text that is given to the model, never to find out what its context was."""
        tokenizer = deepcopy(self.wrapped)  # encoding resets its padding and truncation settings
        return partial(tokenizer.encode, add_special_tokens=False)

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
        """The token in place of words that have none; GPT-2's is its BOS too, and never needed."""
        token = getattr(self.wrapped, "unk_token_id", None)
        return None if token == self.bos else token

    @property
    def filler(self) -> int | None:
        """The token that carries the least meaning: padding, or else end of text, or else unknown."""
        names = ("pad_token_id", "eos_token_id", "unk_token_id")
        return next((token for name in names if (token := getattr(self.wrapped, name, None)) is not None), None)

    @property
    def blank(self) -> int | None:
        """The token that writes a blank, if there is one."""
        return next(iter(self.encoder()(" ")), None) if self.wrapped is not None else None

    def stand_in(self, name: StandIn) -> int | None:
        """The token that takes the place of others: the filler, or the first that writes a blank (else the filler)."""
        return self.filler if name == "pad" or self.blank is None else self.blank

    def special(self, ids: Iterable[int]) -> list[bool]:
        """Which ids are control tokens: BOS, EOS, padding, a chat template's markers; never what unknown words become.

        Markers count that were added without a name, such as Gemma's end of turn.
        """
        added = getattr(self.wrapped, "added_tokens_decoder", {})
        special = {*getattr(self.wrapped, "all_special_ids", ()), *(key for key, one in added.items() if one.special)}
        special -= {self.unknown} - {self.eos}
        return [token in special for token in ids]


def refuse_text(decode: Decode, encode: Callable[[str], Sequence[int]], text: str) -> Spelled:
    """Raise an error that names the tokens which write a text that no single token writes."""
    written, spans = locate(decode, encode(text))
    tokens = [written[slice(*span)] for span in spans if span.start < span.stop]
    if not tokens or written.strip() != text.strip():
        raise ValueError(f"target={text!r} cannot be written by this model's tokenizer, which turns it into {tokens}")
    raise ValueError(
        f"target={text!r} is not a single token of this model but {len(tokens)}: {tokens}; "
        "explain the first of them, give a token id, or explain all of them as a span"
    )


@lru_cache(maxsize=4)
def _by_visible_text(tokenizer: Any, length: int, size: int) -> Mapping[str, Sequence[int]]:  # noqa: ARG001
    """Every token by what it writes without the white space around it, which does not depend on the context.

    ``length``, the tokenizer's length (where it has one), changes when tokens are added to it.
    """
    tokens: dict[str, list[int]] = defaultdict(list)
    for token, text in appended(TokenizerWrapper(tokenizer).decode, [0], range(size)):
        tokens[text.strip()].append(token)
    return dict(tokens)


def locate(decode: Decode, ids: Sequence[int]) -> tuple[str, list[Span]]:
    """The decoded text and every token's span in it.

    Tokens that share one character (bytes of an emoji, say) all get that character's span.
    """
    text, spans = "", []
    anchor = done = 0  # decode from `anchor`, so that the cost stays linear; `done` tokens are in the text already
    for stop in range(1, len(ids) + 1):
        before, after = decode(ids[anchor:done]), decode(ids[anchor:stop])
        if after.endswith(INCOMPLETE) and stop < len(ids):
            continue
        added = after[len(before) :]
        spans += [Span(len(text), len(text) + len(added))] * (stop - done)
        text, anchor, done = text + added, done, stop
    return text, spans


# ----------------------------------------------------------------------------------------------------- prompt encoding
# A prompt's text as tokens, refused where the model has none for it or reads fewer; and the word it says next.


def encode(model: Any, text: str) -> Int[Tensor, "1 pos"]:
    """The tokens of a prompt; words that the tokenizer has no token for are refused by name."""
    check_text(text)
    ids = model.to_tokens(text, truncate=False)
    longest = model.cfg.n_ctx
    if ids.shape[1] > longest:
        raise ValueError(f"the text is {ids.shape[1]} tokens long, and this model reads {longest} at most")
    refuse_unknown(model, text)
    return ids


def check_text(text: str) -> None:
    """Refuse what no tokenizer reads."""
    if not text.strip():
        raise ValueError("the text is empty: give the prompt that the model is to continue")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"the text is not valid UTF-8 at character {error.start}") from None


def refuse_unknown(model: Any, text: str) -> None:
    """Refuse words that the tokenizer has no token for, by name."""
    if unknown := unknown_words(model.tokenizer, text):
        known = f"it knows {len(model.tokenizer)}, each a word after a blank, or a mark like '.'"
        named = ", ".join(map(repr, unknown))
        raise ValueError(f"this model has no token for {named}: {known}; --model chooses one with a larger vocabulary")


@torch.no_grad()
def next_word(model: Any, text: str) -> str:
    """The model's most likely token after a text."""
    return model.tokenizer.decode([int(model(encode(model, text))[0, -1].argmax())])


def unknown_words(tokenizer: Any, text: str) -> list[str]:
    """The parts of the text for which the tokenizer has only its unknown token."""
    unknown = TokenizerWrapper(tokenizer).unknown
    if unknown is None:
        return []
    encoded = tokenizer(text, return_offsets_mapping=True)
    pairs = zip(encoded["input_ids"], encoded["offset_mapping"], strict=True)
    parts = [text[slice(*span)].strip() for token, span in pairs if token == unknown]
    return [part for part in dict.fromkeys(parts) if part]


# ------------------------------------------------------------------------------------------------------- chat template
# A tokenizer's own chat template: messages in, text or tokens out; what it refuses is said in one sentence.


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
