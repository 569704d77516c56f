"""Splits a context into spans that are removed as a whole, such as sentences, and maps them to tokens."""

import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise
from operator import index
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Bool

from heta_lens._util.text_spans import Span, visible

Splitter: TypeAlias = Callable[[str], Sequence[tuple[int, int]]]

# A run of marks is matched once, from its beginning: matching again from each of them would be quadratic.
END = re.compile(r"(?<![.!?])[.!?]+[\"')\]”’»]*(?=\s|$)|\n+")


def check_splitter(name: str, value: Any) -> None:
    if not callable(value):
        raise TypeError(f"{name}={value!r} must be a function: text -> spans (start, stop) of its characters")


def sentences(text: str, end: re.Pattern[str] = END) -> list[tuple[int, int]]:
    """Spans up to each ``end``: by default of a line, or ``.``, ``!`` or ``?`` (and quotes) before white space."""
    stops = [match.end() for match in end.finditer(text)]
    spans = pairwise([0, *stops, len(text)])
    return [(start, stop) for start, stop in spans if text[start:stop].strip()]


def is_finished(text: str) -> bool:
    """Whether a sentence or line ends where the text does."""
    return any(match.end() == len(text) for match in END.finditer(text))


def split(splitter: Splitter, text: str) -> list[tuple[int, int]]:
    """The spans that a splitter returns, refused if they are not spans of the text, one after the other."""
    returned, end = splitter(text), 0
    try:
        pairs = [(index(start), index(stop)) for start, stop in returned]
    except (TypeError, ValueError):
        raise TypeError(f"splitter returned {returned!r}, which are not pairs (start, stop) of characters") from None
    for start, stop in pairs:
        if not end <= start < stop <= len(text):
            raise ValueError(
                f"splitter returned ({start}, {stop}), which is not between {end} and the text's end, {len(text)}: "
                "spans (start, stop) of characters must follow one another"
            )
        end = stop
    return pairs


def members(
    text: str, spans: Sequence[Span], ranges: Sequence[tuple[int, int]], fixed: Bool[np.ndarray, "pos"]
) -> Bool[np.ndarray, "source pos"]:
    """Which tokens belong to which range; what lies between two goes with the second. ``fixed`` tokens go with none.

    A token belongs where its first visible character is. Ranges without any token are left out.
    """
    stops = [stop for _, stop in ranges]
    places = [visible(text, span) for span in spans]
    owners = [
        bisect_right(stops, place.start if place.start < place.stop else span.start)
        for place, span in zip(places, spans, strict=True)
    ]
    owners = np.minimum(owners, len(ranges) - 1)  # what follows the last range goes with it
    belongs = (np.arange(len(ranges))[:, None] == owners) & ~fixed
    return belongs[belongs.any(1)]


def wording(text: str, spans: Sequence[Span], row: Bool[np.ndarray, "pos"]) -> str:
    """The text of a row of tokens; a character that tokens share comes once."""
    distinct = dict.fromkeys(span for span, there in zip(spans, row, strict=True) if there)
    return "".join(text[slice(*span)] for span in distinct).strip()


def check_ranges(name: str, ranges: Any) -> None:
    """Refuse anything but pairs of whole numbers, the first below the second."""
    try:
        pairs = [(index(start), index(stop)) for start, stop in ranges]
    except (TypeError, ValueError):
        raise TypeError(f"{name}={ranges!r} must be pairs (start, stop) of positions, such as ((0, 5),)") from None
    for start, stop in pairs:
        if not 0 <= start < stop:
            raise ValueError(f"{name}={ranges!r} has the pair ({start}, {stop}), which must have 0 <= start < stop")


def check_range(name: str, span: Any) -> None:
    """Refuse anything but such a pair, or None."""
    try:
        pair = None if span is None else tuple(map(index, span))
    except TypeError:
        pair = ()
    if pair is not None and len(pair) != 2:
        raise TypeError(f"{name}={span!r} must be a pair (start, stop) of positions, such as (0, 5)")
    if pair and not 0 <= pair[0] < pair[1]:
        raise ValueError(f"{name}={span!r} must have 0 <= start < stop")
