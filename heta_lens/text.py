"""Text and tokens: where each token lies in the decoded text, which word it belongs to, which token spells a string.

Text is only ever decoded, a token at a time; it is never encoded again to find out what the context was.
"""

import re
import unicodedata
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, fields
from functools import lru_cache, partial
from typing import Any, NamedTuple

Decode = Callable[[Sequence[int]], str]
INCOMPLETE = "\N{REPLACEMENT CHARACTER}"
TAIL = 8  # context tokens that can still change how the next token is written
BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")  # how SentencePiece names the tokens it falls back to, one per byte


class Span(NamedTuple):
    """A stretch of characters, ``text[start:stop]``."""

    start: int
    stop: int


class Match(NamedTuple):
    """A token that writes a text, exactly or with its leading space toggled; and whether it is a byte token."""

    token: int
    exact: bool
    byte: bool


class Spelled(NamedTuple):
    """The token that was taken for a text, and the others that write the same."""

    token: int
    others: tuple[int, ...] = ()


@dataclass(frozen=True)
class Speller:
    """A tokenizer as heta_lens uses it: ids in, text out. Without one, tokens are written as their ids."""

    tokenizer: Any

    def decode(self, ids: Sequence[int]) -> str:
        if self.tokenizer is None:
            return "".join(f"<{token}>" for token in ids)
        return self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def write(self, token: int, context: Sequence[int] = ()) -> str:
        """A token as it is written after this context."""
        return next(piece for _, piece in appended(self.decode, context[-TAIL:], [token]))

    def name(self, token: int) -> str:
        """The tokenizer's own name for a token, which tells tokens apart that are written the same."""
        named = getattr(self.tokenizer, "convert_ids_to_tokens", None)  # which a tokenizer of one's own may lack
        known = None if named is None else named(token)
        return known if isinstance(known, str) else self.decode([token])

    def is_byte(self, token: int) -> bool:
        return BYTE.fullmatch(self.name(token)) is not None

    def find(self, text: str, context: Sequence[int], log_probs: Sequence[float]) -> Spelled:
        """The token that writes ``text`` after this context, the most likely of several."""
        if self.tokenizer is None:
            raise ValueError(f"target={text!r} is text, but the model has no tokenizer: give a token id")
        if not text:
            raise ValueError("target='' is empty: give the text of one token, or its id")
        found = self._matches(text, context, log_probs)
        return chosen(found) if found else refuse_text(self.decode, self.encoder(), text)

    def spell(self, text: str, context: Sequence[int], log_probs: Sequence[float]) -> list[int]:
        """The tokens that write ``text`` after this context; if there are none, those that differ in blanks alone.

        One token if one does, the same as `find` takes.
        """
        found = self._matches(text, context, log_probs) if text else []
        if found and found[0].exact and not found[0].byte:
            return [found[0].token]
        ways = self._ways(text, context)
        for ids, written in ways:
            if written == text and len(ids) > 1:
                return ids
        if found:
            return [found[0].token]
        for ids, written in ways:
            if written.strip() == text.strip():
                return ids
        tried = [written for _, written in ways]
        raise ValueError(f"{text!r} cannot be written by this model's tokenizer, which makes {tried} of it")

    def _matches(self, text: str, context: Sequence[int], log_probs: Sequence[float]) -> list[Match]:
        known = len(self.tokenizer) if hasattr(self.tokenizer, "__len__") else 0
        tokens = _by_visible_text(self.tokenizer, known, len(log_probs)).get(text.strip(), ())
        return matches(self.decode, tokens, log_probs, context, text, self.is_byte)

    def _ways(self, text: str, context: Sequence[int]) -> list[tuple[list[int], str]]:
        """Ids that may write the text after this context, and what each of them does write."""
        encode, tail = self.encoder(), list(context[-TAIL:])
        before = self.decode(tail)
        # A tokenizer that puts a blank before every text writes " ring" as "ring", and "?!" as a blank and "?!".
        ways = [encode(form) for form in dict.fromkeys((text, text.lstrip()))]
        ways += [ids[1:] for ids in ways]
        return [(ids, self.decode([*tail, *ids]).removeprefix(before)) for ids in ways if ids]

    def encoder(self) -> Callable[[str], list[int]]:
        """Text in, ids out: for text that is put to the model, never to find out what its context was."""
        tokenizer = deepcopy(self.tokenizer)  # encoding resets the padding and truncation set on it
        return partial(tokenizer.encode, add_special_tokens=False)

    @property
    def pad(self) -> int | None:
        return getattr(self.tokenizer, "pad_token_id", None)

    @property
    def bos(self) -> int | None:
        return getattr(self.tokenizer, "bos_token_id", None)

    @property
    def eos(self) -> int | None:
        return getattr(self.tokenizer, "eos_token_id", None)

    @property
    def filler(self) -> int | None:
        """The token that says the least: for padding, or for the end, or for what is unknown."""
        names = ("pad_token_id", "eos_token_id", "unk_token_id")
        return next((token for name in names if (token := getattr(self.tokenizer, name, None)) is not None), None)

    def special(self, ids: Iterable[int]) -> list[bool]:
        special = set(getattr(self.tokenizer, "all_special_ids", ()))
        return [token in special for token in ids]


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
        piece = after[len(before) :]
        spans += [Span(len(text), len(text) + len(piece))] * (stop - done)
        text, anchor, done = text + piece, done, stop
    return text, spans


def words(text: str, spans: Sequence[Span], special: Sequence[bool]) -> list[list[int]]:
    """Token indices grouped into whitespace-separated words; special and blank tokens stand alone.

    A token that spans several words counts to the first, so every token is in exactly one group.
    """
    starts = [match.start() for match in re.finditer(r"\S+", text)]
    groups: list[list[int]] = []
    last = None
    for index, span in enumerate(spans):
        shown = visible(text, span)
        word = None if special[index] or shown.start == shown.stop else bisect_right(starts, shown.start)
        if word is not None and word == last:
            groups[-1].append(index)
        else:
            groups.append([index])
        last = word
    return groups


def tokens_in(text: str, spans: Sequence[Span], wanted: Span) -> list[int]:
    """Indices of the tokens with at least one visible character inside ``wanted``."""
    shared = [text[max(span.start, wanted.start) : min(span.stop, wanted.stop)] for span in spans]
    return [index for index, characters in enumerate(shared) if characters.strip()]


def visible(text: str, span: Span) -> Span:
    """The span without the white space at its ends (empty if that is all it holds)."""
    piece = text[span.start : span.stop]
    start = span.start + len(piece) - len(piece.lstrip())
    return Span(start, max(start, span.stop - len(piece) + len(piece.rstrip())))


JOINERS = "\N{ZERO WIDTH JOINER}\N{ZERO WIDTH NON-JOINER}"  # parts of emoji, and of words in several scripts


def legible(text: str, keep: str = "") -> str:
    """The text with all characters visible that would steer a terminal or reorder what is read: ␛ for an escape.

    Those are control characters (C0 and C1), what overrides the direction of writing, and what stands for no character;
    but for those to ``keep``, such as line ends.
    """
    return "".join(one if _harmless(one) or one in keep else _symbol(one) for one in text)


def _harmless(one: str) -> bool:
    return one.isprintable() or one in JOINERS or unicodedata.category(one) == "Zs"


def _symbol(one: str) -> str:
    if one < " ":
        return chr(0x2400 + ord(one))
    return "\N{SYMBOL FOR DELETE}" if one == "\x7f" else one.encode("unicode_escape").decode()


BRIEF = 60  # characters of a field in a short repr


def brief(record: Any) -> str:
    """For the ``__repr__`` of a dataclass that holds tensors or models: these by kind and size, the rest cut short."""
    told = (f"{field.name}={_in_brief(getattr(record, field.name))}" for field in fields(record) if field.repr)
    return f"{type(record).__name__}({', '.join(told)})"


def _in_brief(value: Any) -> str:
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if not isinstance(value, bool | int | float | str | tuple | type(None)):
        return f"<{type(value).__name__}>"
    if isinstance(value, tuple):
        return f"({', '.join(map(_in_brief, value))})" if len(value) <= 2 else f"<{len(value)} of them>"
    told = repr(value)
    return told if len(told) <= BRIEF else told[:BRIEF] + "…"


def quoted(target: str | tuple[str, ...]) -> str:
    """A target's text in quotes; of a contrastive pair, one rather than the other."""
    return " rather than ".join(map(repr, target if isinstance(target, tuple) else (target,)))


def matches(
    decode: Decode,
    tokens: Iterable[int],
    log_probs: Sequence[float],
    context: Sequence[int],
    text: str,
    is_byte: Callable[[int], bool] = lambda token: False,  # noqa: ARG005
) -> list[Match]:
    """The tokens that append ``text`` to the context, or ``text`` with its leading space toggled; best first.

    Byte tokens come last: a model writes them only where it has no other token. Then those that write exactly the
    text come first, and of these the most likely.
    """
    toggled = text[1:] if text.startswith(" ") else " " + text
    wanted = {text, toggled} - {""}
    found = [
        Match(token, piece == text, is_byte(token))
        for token, piece in appended(decode, context[-TAIL:], tokens)
        if piece in wanted
    ]
    return sorted(found, key=lambda match: (match.byte, not match.exact, -log_probs[match.token]))


def chosen(found: Sequence[Match]) -> Spelled:
    """The first of these matches; beside it those that write the text at least as exactly."""
    first, *rest = found
    return Spelled(first.token, tuple(match.token for match in rest if match.exact >= first.exact))


def refuse_text(decode: Decode, encode: Callable[[str], Sequence[int]], text: str) -> Spelled:
    """Say which tokens write the text that no single token writes."""
    written, spans = locate(decode, encode(text))
    pieces = [written[slice(*span)] for span in spans if span.start < span.stop]
    if written.strip() != text.strip():
        raise ValueError(f"target={text!r} cannot be written by this model's tokenizer, which makes {pieces} of it")
    raise ValueError(
        f"target={text!r} is not one token of this model but {len(pieces)}: {pieces}; "
        "explain the first of them, or give a token id"
    )


@lru_cache(maxsize=4)
def _by_visible_text(tokenizer: Any, known: int, size: int) -> Mapping[str, Sequence[int]]:  # noqa: ARG001
    """Every token by what it writes without the white space around it, which does not depend on the context.

    ``known``, the tokenizer's length (where it has one), changes when tokens are added to it.
    """
    tokens: dict[str, list[int]] = defaultdict(list)
    for token, piece in appended(Speller(tokenizer).decode, [0], range(size)):
        tokens[piece.strip()].append(token)
    return dict(tokens)


def appended(decode: Decode, context: Sequence[int], tokens: Iterable[int]) -> Iterator[tuple[int, str]]:
    """Each token with the characters it would add after the context."""
    before = decode(context)
    for token in tokens:
        after = decode([*context, token])
        yield token, after[len(before) :] if after.startswith(before) else decode([token])
