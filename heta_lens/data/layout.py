"""A text made of named pieces, and where in it those of each name stand."""

import re
from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate
from typing import Any, NamedTuple

from heta_lens.data.instance import Instance
from heta_lens.text import Span, visible

WORD = re.compile(r"\w+(?:['’\-]\w+)*")
SENTENCE_END = re.compile(r"(?<=[.!?])[\"'”’)]*\s+(?=[\"'“‘(]?[A-Z])")
TITLES = "Mr Mrs Ms Dr St Jr Sr Prof Rev Col Capt Gen Lt Sgt vs etc".split()  # noqa: SIM905
ABBREVIATED = re.compile(rf"\b(?:{'|'.join(TITLES)}|[A-Z])\.$")
ABBREVIATION = max(map(len, TITLES)) + 1  # characters of the longest, with its full stop


class Piece(NamedTuple):
    text: str
    name: str = ""
    """Such as ``support``; empty for what stands between."""


def laid_out(pieces: Iterable[Piece]) -> tuple[str, dict[str, tuple[Span, ...]]]:
    """The text, and the spans of each name, without the white space at their ends."""
    pieces, at, found = list(pieces), 0, {}
    for piece in pieces:
        span = visible(piece.text, Span(0, len(piece.text)))
        if piece.name and span.start < span.stop:
            found.setdefault(piece.name, []).append(Span(at + span.start, at + span.stop))
        at += len(piece.text)
    return "".join(piece.text for piece in pieces), {name: tuple(spans) for name, spans in found.items()}


def composed(id: str, pieces: Iterable[Piece], answer: str | None, **known: Any) -> Instance:
    """An instance whose text is made of pieces, which are named as its spans are."""
    text, spans = laid_out(pieces)
    return Instance(id, text, answer, **{**spans, **known})


def words_within(text: str, spans: Iterable[Span]) -> list[Span]:
    """The words that stand in these spans; a word that only begins or ends there is none of them."""
    whole = [Span(*match.span()) for match in WORD.finditer(text)]
    inside = sorted(spans)
    starts, reached = [start for start, _ in inside], [0, *accumulate((stop for _, stop in inside), max)]
    return [word for word in whole if word.stop <= reached[bisect_right(starts, word.start)]]


def occurrences(phrase: str, text: str, span: Span | None = None) -> list[Span]:
    """Where a phrase stands in the text (or in this span of it) as whole words, in capitals or not."""
    start, stop = span or (0, len(text))
    wanted = re.compile(rf"(?<!\w){re.escape(phrase)}(?!\w)", re.IGNORECASE)
    return [Span(*match.span()) for match in wanted.finditer(text, start, stop)]


def one_line(text: str) -> str:
    """The text with single blanks for all its white space."""
    return " ".join(text.split())


def split_sentences(text: str) -> list[str]:
    """At full stops, question and exclamation marks before a capital, but not after an initial or a title."""
    sentences: list[str] = []
    start = 0
    for end in SENTENCE_END.finditer(text):
        # Only what may be an abbreviation is searched: the whole sentence again at every full stop would be quadratic.
        if not ABBREVIATED.search(text, max(start, end.start() - ABBREVIATION), end.start()):
            sentences.append(text[start : end.end()].strip())
            start = end.end()
    return [*sentences, text[start:]] if text[start:] else sentences
