"""Tokens as a page shows them: white space visible, pieces of a character joined, right-to-left runs together."""

import unicodedata
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from heta_lens._util.printable_text import legible, visible
from heta_lens.attribution import Attribution

RIGHT_TO_LEFT, LEFT_TO_RIGHT = {"R", "AL"}, {"L"}  # Unicode's strong directions


class Cell(NamedTuple):
    """What stands for one token, or for several that write one character together."""

    rows: range
    """Which tokens of the attribution."""
    gap: bool
    """Whether tokens before it were left out."""
    before: str
    """White space before it, which has no colour."""
    text: str
    breaks: int
    """How many lines end after it."""


def cells(attribution: Attribution) -> list[Cell]:
    """The tokens of an attribution, in their order."""
    spans, positions = attribution.offsets.tolist(), attribution.positions.tolist()
    starts = [
        row
        for row, (start, stop) in enumerate(spans)
        if row == 0 or start >= spans[row - 1][1] or start == stop or positions[row] > positions[row - 1] + 1
    ]
    return [_cell(attribution, range(*ends), spans, positions) for ends in pairwise([*starts, len(spans)])]


def _cell(attribution: Attribution, rows: range, spans: Sequence[Sequence[int]], positions: Sequence[int]) -> Cell:
    first = rows[0]
    (start, _), stop = spans[first], max(spans[row][1] for row in rows)
    written = attribution.text[start:stop] or "".join(attribution.tokens[row] for row in rows)
    text = written.lstrip(" ") or written
    gap = first > 0 and positions[first] > positions[first - 1] + 1
    before = "" if first == 0 or gap else attribution.text[spans[first - 1][1] : start]
    space = before + written[: len(written) - len(text)]
    return Cell(rows, gap, legible(space, keep="\n"), visible(text) or "∅", text.count("\n"))


def runs(cells: Sequence[Cell]) -> Iterator[tuple[bool, list[Cell]]]:
    """Stretches of cells that are read from right to left, and the others."""
    for leftward, places in directed_runs([cell.text for cell in cells]):
        yield leftward, [*cells[places.start : places.stop]]


def directed_runs(texts: Sequence[str]) -> Iterator[tuple[bool, range]]:
    """Stretches of texts that are read from right to left, with what stands between such words, and the others."""
    directions = [_direction(text) for text in texts]
    at = 0
    while at < len(texts):
        stop = _end(directions, at)
        yield directions[at] == "R", range(at, stop)
        at = stop


def _end(directions: Sequence[str], at: int) -> int:
    """Where the run ends that begins here."""
    if directions[at] != "R":
        return next((place for place in range(at, len(directions)) if directions[place] == "R"), len(directions))
    others = (place for place in range(at, len(directions)) if directions[place] == "L")
    limit = next(others, len(directions))
    return 1 + max(place for place in range(at, limit) if directions[place] == "R")


def _direction(text: str) -> str:
    """R or L by the first letter that has a direction; empty where none has."""
    kinds = (unicodedata.bidirectional(character) for character in text)
    strong = next((kind for kind in kinds if kind in RIGHT_TO_LEFT | LEFT_TO_RIGHT), "")
    return "R" if strong in RIGHT_TO_LEFT else strong
