"""Scores of words, sentences, spans and messages: the records, and the tokens that belong to a group."""

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple, SupportsIndex, TypeVar, overload

import numpy as np
from rich.cells import cell_len

from heta_lens._util.text import Span, cut, members, sentences

PRINTED_ROWS, PRINTED_CELLS = 40, 60  # rows of a list, and terminal cells of a text, that `repr` prints


class Scored(NamedTuple):
    """A stretch of text with its score, and the positions of the tokens that write the text."""

    text: str
    score: float
    positions: tuple[int, ...]


class ScoredMessage(NamedTuple):
    """A message with score, token positions and role ("template": the tokens of no message)."""

    text: str
    score: float
    positions: tuple[int, ...]
    role: str


Group = TypeVar("Group", Scored, ScoredMessage)


class ScoredList(list[Group]):
    """A list of scored stretches of text that prints as a small table; a slice of the list prints so too."""

    @overload
    def __getitem__(self, at: SupportsIndex) -> Group: ...
    @overload
    def __getitem__(self, at: slice) -> "ScoredList[Group]": ...
    def __getitem__(self, at: SupportsIndex | slice) -> "Group | ScoredList[Group]":
        return ScoredList(super().__getitem__(at)) if isinstance(at, slice) else super().__getitem__(at)

    def __repr__(self) -> str:
        rows = [("score", "positions", "text"), *map(_cells, self[:PRINTED_ROWS])]
        score_width, place_width = (max(cell_len(row[column]) for row in rows) for column in (0, 1))
        lines = [f"{score:>{score_width}}  {places:<{place_width}}  {text}" for score, places, text in rows]
        more = [f"… {len(self) - PRINTED_ROWS} more"] if len(self) > PRINTED_ROWS else []
        return "\n".join([*lines, *more])


def _cells(group: Scored | ScoredMessage) -> tuple[str, str, str]:
    ends = dict.fromkeys((group.positions[0], group.positions[-1])) if group.positions else ()
    role = f"{group.role}: " if isinstance(group, ScoredMessage) else ""
    return f"{group.score:.4g}", "–".join(map(str, ends)), role + cut(repr(group.text), PRINTED_CELLS)


def sentence_rows(text: str, spans: Sequence[Span], special: Sequence[bool], owners: Sequence[int]) -> list[list[int]]:
    """Return the rows of the tokens of every sentence, in the order of the text.

    Special tokens stand alone. ``owners`` are the messages of the tokens: no sentence goes beyond a message, and
    neighbouring tokens of no message (-1) stay together.
    """
    groups: list[list[int]] = []
    for owner, run in groupby(range(len(spans)), owners.__getitem__):
        rows = list(run)
        groups += [rows] if owner < 0 else _rows_by_sentence(text, spans, special, rows)
    return groups


def _rows_by_sentence(
    text: str, spans: Sequence[Span], special: Sequence[bool], rows: Sequence[int]
) -> list[list[int]]:
    start, stop = spans[rows[0]].start, spans[rows[-1]].stop
    ranges = [(first + start, last + start) for first, last in sentences(text[start:stop])] or [(start, stop)]
    alone = np.array([special[row] for row in rows])
    found = [[row] for row in rows if special[row]]
    for belongs in members(text, [spans[row] for row in rows], ranges, alone):
        found.append([rows[at] for at in belongs.nonzero()[0]])
    return sorted(found)
