"""Spans of characters: which word each token belongs to, and which tokens write a passage."""

import re
from bisect import bisect_right
from collections.abc import Sequence
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


def visible(text: str, span: Span) -> Span:
    """The span without the white space at its ends (empty if that is all it holds)."""
    characters = text[span.start : span.stop]
    start = span.start + len(characters) - len(characters.lstrip())
    return Span(start, max(start, span.stop - len(characters) + len(characters.rstrip())))
