"""Sources: stretches of a context that are taken away as one, sentences say, and the tokens they are made of."""

import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise
from operator import index
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Bool

from heta_lens.text import Span, visible

Splitter: TypeAlias = Callable[[str], Sequence[tuple[int, int]]]

# A run of marks is tried once, from its beginning: trying it again from each of them would be quadratic.
END = re.compile(r"(?<![.!?])[.!?]+[\"')\]”’»]*(?=\s|$)|\n+")


def check_splitter(name: str, value: Any) -> None:
    if not callable(value):
        raise TypeError(f"{name}={value!r} must be a function: text -> spans (start, stop) of its characters")


def sentences(text: str) -> list[tuple[int, int]]:
    """Spans that end after ``.``, ``!`` or ``?`` before white space (quotes and brackets may close), or with a line."""
    stops = [match.end() for match in END.finditer(text)]
    spans = pairwise([0, *stops, len(text)])
    return [(start, stop) for start, stop in spans if text[start:stop].strip()]


def split(splitter: Splitter, text: str) -> list[tuple[int, int]]:
    """What a splitter finds in a text, refused if these are no stretches of it, one after the other."""
    given, end = splitter(text), 0
    try:
        found = [(index(start), index(stop)) for start, stop in given]
    except (TypeError, ValueError):
        raise TypeError(f"splitter gave {given!r}, which are no pairs (start, stop) of characters") from None
    for start, stop in found:
        if not end <= start < stop <= len(text):
            raise ValueError(
                f"splitter gave ({start}, {stop}), which is not between {end} and the text's end, {len(text)}: spans "
                "(start, stop) of characters must follow one another"
            )
        end = stop
    return found


def members(
    text: str, spans: Sequence[Span], stretches: Sequence[tuple[int, int]], fixed: Bool[np.ndarray, "pos"]
) -> Bool[np.ndarray, "source pos"]:
    """Which tokens belong to which stretch; what lies between two goes with the second. Nobody owns what is ``fixed``.

    A token belongs where it first can be seen. Stretches without any token are left out.
    """
    stops = [stop for _, stop in stretches]
    places = [visible(text, span) for span in spans]
    owners = [
        bisect_right(stops, place.start if place.start < place.stop else span.start)
        for place, span in zip(places, spans, strict=True)
    ]
    last = np.minimum(owners, len(stretches) - 1)  # what follows the last stretch goes with it
    found = (np.arange(len(stretches))[:, None] == last) & ~fixed
    return found[found.any(1)]


def wording(text: str, spans: Sequence[Span], row: Bool[np.ndarray, "pos"]) -> str:
    """What a source says; tokens that share a character say it once."""
    own = dict.fromkeys(span for span, there in zip(spans, row, strict=True) if there)
    return "".join(text[slice(*span)] for span in own).strip()


def check_ranges(name: str, ranges: Any) -> None:
    """Refuse what are no pairs of whole numbers, the first below the second."""
    try:
        pairs = [(index(start), index(stop)) for start, stop in ranges]
    except (TypeError, ValueError):
        raise TypeError(f"{name}={ranges!r} must be pairs (start, stop) of positions, such as ((0, 5),)") from None
    for start, stop in pairs:
        if not 0 <= start < stop:
            raise ValueError(f"{name}={ranges!r} has the pair ({start}, {stop}), which must have 0 <= start < stop")
