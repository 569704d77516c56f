"""Text and tokens: where each token lies in the decoded text, which word it belongs to, which token spells a string.

Text is only ever decoded, a token at a time; it is never encoded again to find out what the context was.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

Decode = Callable[[Sequence[int]], str]
INCOMPLETE = "\N{REPLACEMENT CHARACTER}"
TAIL = 8  # context tokens that can still change how the next token is written


class Span(NamedTuple):
    """A stretch of characters, ``text[start:stop]``."""

    start: int
    stop: int


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

    def find(self, text: str, context: Sequence[int], size: int) -> int:
        """The token, of ``size`` tokens, that is written ``text`` after this context."""
        if self.tokenizer is None:
            raise ValueError(f"target={text!r} is text, but the model has no tokenizer: give a token id")
        return find_token(self.decode, self.encoder(), size, context, text)

    def spell(self, text: str, context: Sequence[int]) -> list[int]:
        """The tokens that write ``text`` after this context; if there are none, those that differ in blanks alone."""
        encode, tail = self.encoder(), context[-TAIL:]
        before = self.decode(tail)
        # A tokenizer that puts a blank before every text writes " ring" as "ring".
        ways = [ids for form in dict.fromkeys((text, text.lstrip())) if (ids := encode(form))]
        written = [self.decode([*tail, *ids]).removeprefix(before) for ids in ways]
        for same in (lambda one: one == text, lambda one: one.strip() == text.strip()):
            for ids, one in zip(ways, written, strict=True):
                if same(one):
                    return ids
        raise ValueError(f"{text!r} cannot be written by this model's tokenizer, which makes {written} of it")

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


def quoted(target: str | tuple[str, ...]) -> str:
    """A target's text in quotes; of a contrastive pair, one rather than the other."""
    return " rather than ".join(map(repr, target if isinstance(target, tuple) else (target,)))


def find_token(
    decode: Decode, encode: Callable[[str], Sequence[int]], size: int, context: Sequence[int], text: str
) -> int:
    """The token that appends exactly ``text`` to the context; failing that, ``text`` with its leading space toggled.

    Encoding only says where to look first; decoding decides.
    """
    if not text:
        raise ValueError("target='' is empty: give the text of one token, or its id")
    toggled = text[1:] if text.startswith(" ") else " " + text
    likely = [ids[0] for form in (text, toggled) if len(ids := encode(form)) == 1]
    second_best = None
    for token, piece in appended(decode, context[-TAIL:], [*likely, *range(size)]):
        if piece == text:
            return token
        if toggled and piece == toggled and second_best is None:
            second_best = token
    if second_best is None:
        written, spans = locate(decode, encode(text))
        pieces = [written[slice(*span)] for span in spans if span.start < span.stop]
        if written.strip() != text.strip():
            raise ValueError(f"target={text!r} cannot be written by this model's tokenizer, which makes {pieces} of it")
        raise ValueError(
            f"target={text!r} is not one token of this model but {len(pieces)}: {pieces}; "
            "explain the first of them, or give a token id"
        )
    return second_best


def appended(decode: Decode, context: Sequence[int], tokens: Iterable[int]) -> Iterator[tuple[int, str]]:
    """Each token with the characters it would add after the context."""
    before = decode(context)
    for token in tokens:
        after = decode([*context, token])
        yield token, after[len(before) :] if after.startswith(before) else decode([token])
