"""Spans of characters: which word each token belongs to, and which tokens write a passage."""

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple


class Span(NamedTuple):
    """A range of characters, ``text[start:stop]``."""

    start: int
    stop: int


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


def tokens_of(passage: str, text: str, spans: Sequence[Span]) -> list[int]:
    """The tokens that write a passage, which must occur in the text exactly once."""
    if not passage.strip() or text.count(passage) != 1:
        raise ValueError(f"{passage!r} occurs {text.count(passage)} times in the context: it must occur once")
    start = text.index(passage)
    return tokens_in(text, spans, Span(start, start + len(passage)))


def owners(text: str, spans: Sequence[Span], passages: Sequence[Sequence[Span]]) -> list[int]:
    """The passage that each token writes, by its index; -1 for those that write none.

    A passage is one or several spans, and none overlap. A token belongs to the first one that it shows a visible
    character of, or that it lies in, as white space may.
    """
    parts = sorted((part, index) for index, own in enumerate(passages) for part in own if part.start < part.stop)
    stops = [part.stop for part, _ in parts]
    return [_owner(text, span, islice(parts, bisect_right(stops, span.start), None)) for span in spans]


def _owner(text: str, span: Span, parts: Iterable[tuple[Span, int]]) -> int:
    """The first of these parts that a token belongs to."""
    for part, index in parts:
        if part.start >= span.stop:
            break
        within = part.start <= span.start and span.stop <= part.stop
        if within or text[max(part.start, span.start) : min(part.stop, span.stop)].strip():
            return index
    return -1


def joined(spans: Iterable[Span]) -> tuple[Span, ...]:
    """The spans in their order, those that touch or overlap as one, and none that is empty."""
    found: list[Span] = []
    for span in spans:
        if found and span.start <= found[-1].stop:
            found[-1] = Span(found[-1].start, max(found[-1].stop, span.stop))
        elif span.start < span.stop:
            found.append(span)
    return tuple(found)


def visible(text: str, span: Span) -> Span:
    """The span without the white space at its ends (empty if that is all it holds)."""
    characters = text[span.start : span.stop]
    start = span.start + len(characters) - len(characters.lstrip())
    return Span(start, max(start, span.stop - len(characters) + len(characters.rstrip())))
