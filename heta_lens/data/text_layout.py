"""Texts made of named pieces, with the spans of each name; and their words and sentences."""

import re
from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate
from typing import Any, NamedTuple

from heta_lens._util.sentence_spans import sentences
from heta_lens._util.text_spans import Span, visible
from heta_lens.data.instance import Instance

WORD = re.compile(r"\w+(?:['’\-]\w+)*")
ABBREVIATIONS = "Mr Mrs Ms Dr St Jr Sr Prof Rev Col Capt Gen Lt Sgt vs etc [A-Z]".split()  # noqa: SIM905
NOT_ABBREVIATED = "".join(rf"(?<!\b{abbreviation}\.)" for abbreviation in ABBREVIATIONS)
PROSE_END = re.compile(rf"(?<=[.!?]){NOT_ABBREVIATED}[\"'”’)]*\s+(?=[\"'“‘(]?[A-Z])")


class Piece(NamedTuple):
    text: str
    name: str = ""
    """Such as ``support``; empty for what stands between."""


def laid_out(pieces: Iterable[Piece]) -> tuple[str, dict[str, tuple[Span, ...]]]:
    """The text, and the spans of each name, without the white space at their ends."""
    pieces, start, spans = list(pieces), 0, {}
    for piece in pieces:
        span = visible(piece.text, Span(0, len(piece.text)))
        if piece.name and span.start < span.stop:
            spans.setdefault(piece.name, []).append(Span(start + span.start, start + span.stop))
        start += len(piece.text)
    return "".join(piece.text for piece in pieces), {name: tuple(of_name) for name, of_name in spans.items()}


def composed(id: str, pieces: Iterable[Piece], answer: str | None, **known: Any) -> Instance:
    """An instance whose text is made of pieces, with the names of its spans."""
    text, spans = laid_out(pieces)
    return Instance(id, text, answer, **{**spans, **known})


def words_within(text: str, spans: Iterable[Span]) -> list[Span]:
    """The words that lie whole in these spans."""
    whole = [Span(*match.span()) for match in WORD.finditer(text)]
    inside = sorted(spans)
    starts, reached = [start for start, _ in inside], [0, *accumulate((stop for _, stop in inside), max)]
    return [word for word in whole if word.stop <= reached[bisect_right(starts, word.start)]]


def occurrences(phrase: str, text: str, span: Span | None = None) -> list[Span]:
    """The spans of a phrase in the text (or in this span of it) as whole words, whatever their case."""
    start, stop = span or (0, len(text))
    wanted = re.compile(rf"(?<!\w){re.escape(phrase)}(?!\w)", re.IGNORECASE)
    return [Span(*match.span()) for match in wanted.finditer(text, start, stop)]


def one_line(text: str) -> str:
    """The text with single blanks for all its white space."""
    return " ".join(text.split())


def split_sentences(text: str) -> list[str]:
    """Split at full stops, question and exclamation marks before a capital, but not after an initial or a title."""
    return [text[start:stop].strip() for start, stop in sentences(text, PROSE_END)]
