"""A text made of named pieces, and where in it those of each name stand."""

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from heta_lens.data.instance import Instance
from heta_lens.text import Span, visible

WORD = re.compile(r"\w+(?:['’\-]\w+)*")
SENTENCE_END = re.compile(r"(?<=[.!?])[\"'”’)]*\s+(?=[\"'“‘(]?[A-Z])")
ABBREVIATED = re.compile(r"(?:\b(?:Mr|Mrs|Ms|Dr|St|Jr|Sr|Prof|Rev|Col|Capt|Gen|Lt|Sgt|vs|etc)|\b[A-Z])\.$")


class Piece(NamedTuple):
    text: str
    name: str = ""
    """Such as ``support``; empty for what stands between."""


def laid_out(pieces: Iterable[Piece]) -> tuple[str, dict[str, tuple[Span, ...]]]:
    """The text, and the spans of each name, without the white space at their ends."""
    text, found = "", {}
    for piece in pieces:
        start, text = len(text), text + piece.text
        span = visible(text, Span(start, len(text)))
        if piece.name and span.start < span.stop:
            found.setdefault(piece.name, []).append(span)
    return text, {name: tuple(spans) for name, spans in found.items()}


def composed(id: str, pieces: Iterable[Piece], answer: str | None, **known: Any) -> Instance:
    """An instance whose text is made of pieces, which are named as its spans are."""
    text, spans = laid_out(pieces)
    return Instance(id, text, answer, **{**spans, **known})


def words_within(text: str, spans: Iterable[Span]) -> list[Span]:
    """The words that stand in these spans; a word that only begins or ends there is none of them."""
    whole = [Span(*match.span()) for match in WORD.finditer(text)]
    inside = [(start, stop) for start, stop in spans]
    return [word for word in whole if any(start <= word.start and word.stop <= stop for start, stop in inside)]


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
        if not ABBREVIATED.search(text[start : end.start()]):
            sentences.append(text[start : end.end()].strip())
            start = end.end()
    return [*sentences, text[start:]] if text[start:] else sentences
