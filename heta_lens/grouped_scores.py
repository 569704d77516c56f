"""Scores of tokens put together: by word, by sentence, by span of the text, and by message and role of a chat."""

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from operator import index
from typing import Literal, NamedTuple, Protocol, SupportsIndex, TypeAlias, TypeVar, overload, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from rich.cells import cell_len
from torch import Tensor

from heta_lens._util import text as text_spans
from heta_lens._util.chat_messages import TEMPLATE, Messages
from heta_lens._util.text import Span, cut, members, sentences

Reduction: TypeAlias = Literal["sum", "mean", "max"]

MOST, WIDE = 40, 60  # rows, and cells of a text, that are printed
REDUCTIONS: dict[Reduction, Callable[[Tensor], Tensor]] = {"sum": torch.sum, "mean": torch.mean, "max": torch.amax}


class Scored(NamedTuple):
    """A stretch of text with its score, and the positions of the tokens that make it up."""

    text: str
    score: float
    positions: tuple[int, ...]


class ScoredMessage(NamedTuple):
    """A message with its score, the positions of its tokens, and its role ("template": all tokens of no message)."""

    text: str
    score: float
    positions: tuple[int, ...]
    role: str


Group = TypeVar("Group", Scored, ScoredMessage)


class ScoredList(list[Group]):
    """Scored stretches of text as a list, which prints as a small table; and so does a slice of it."""

    @overload
    def __getitem__(self, at: SupportsIndex) -> Group: ...
    @overload
    def __getitem__(self, at: slice) -> "ScoredList[Group]": ...
    def __getitem__(self, at: SupportsIndex | slice) -> "Group | ScoredList[Group]":
        return ScoredList(super().__getitem__(at)) if isinstance(at, slice) else super().__getitem__(at)

    def __repr__(self) -> str:
        rows = [["score", "positions", "text"], *([f"{own.score:.4g}", _places(own), _quoted(own)] for own in self)]
        scores, places = (max(cell_len(row[column]) for row in rows) for column in (0, 1))
        shown = [f"{score:>{scores}}  {place:<{places}}  {text}" for score, place, text in rows]
        more = [f"… {len(shown) - 1 - MOST} more"] if len(shown) - 1 > MOST else []
        return "\n".join([*shown[: MOST + 1], *more])


def _places(of: Scored | ScoredMessage) -> str:
    """The first position and the last."""
    return "–".join(str(of.positions[at]) for at in (0, -1)[: len(of.positions)])


def _quoted(of: Scored | ScoredMessage) -> str:
    role = f"{of.role}: " if isinstance(of, ScoredMessage) else ""
    return role + cut(repr(of.text), WIDE)


@runtime_checkable
class ScoredText(Protocol):
    """Tokens of a text, each with a score."""

    @property
    def text(self) -> str: ...
    @property
    def offsets(self) -> Int[Tensor, "pos 2"]: ...
    @property
    def positions(self) -> Int[Tensor, "pos"]: ...
    @property
    def special(self) -> Bool[Tensor, "pos"]: ...
    @property
    def scores(self) -> Float[Tensor, "pos"]: ...
    @property
    def messages(self) -> Messages | None: ...


class GroupedScores:
    """What reads scores by stretches of the text; a subclass says which scores."""

    @property
    def _scored_text(self) -> ScoredText:
        raise NotImplementedError

    def by_word(self, reduce: Reduction = "sum") -> ScoredList[Scored]:
        """Scores of whitespace-separated words. Special and blank tokens stand alone; every token counts once."""
        of = self._scored_text
        words = text_spans.words(of.text, _spans(of), of.special.tolist())
        return ScoredList(_scored(of, rows, reduce) for rows in words)

    def by_sentence(self, reduce: Reduction = "sum") -> ScoredList[Scored]:
        """Scores of sentences and lines. Special tokens stand alone; every token counts once.

        In a chat no sentence goes beyond its message, and what the template writes in between stands alone.
        """
        of = self._scored_text
        return ScoredList(_scored(of, rows, reduce) for rows in _sentence_rows(of))

    def by_spans(self, spans: Iterable[tuple[int, int]], reduce: Reduction = "sum") -> ScoredList[Scored]:
        """Scores of stretches ``attribution.text[start:stop]``.

        A token counts if any visible character of it lies inside. The text begins with what the model read first, a
        special token perhaps, so look for places in it and not in your own prompt: ``attribution.text.index(...)``.
        """
        of = self._scored_text
        wanted = _spans_in(of.text, spans)
        rows = [text_spans.tokens_in(of.text, _spans(of), span) for span in wanted]
        scored = [_scored(of, own, reduce) for own in rows]
        return ScoredList(
            score._replace(text=of.text[slice(*span)]) for score, span in zip(scored, wanted, strict=True)
        )

    def by_message(self, reduce: Reduction = "sum") -> ScoredList[ScoredMessage]:
        """Scores of a chat's messages, in order; last the template's own tokens, so that every token counts once."""
        of, messages = self._scored_text, _messages(self._scored_text)
        found = [
            ScoredMessage(messages.content(number, of.text), *_scored(of, messages.rows([number]), reduce)[1:], role)
            for number, role in enumerate(messages.roles)
        ]
        rest = _scored(of, messages.rows([-1]), reduce)
        return ScoredList(found + ([ScoredMessage("", *rest[1:], TEMPLATE)] if rest.positions else []))

    def by_role(self, reduce: Reduction = "sum") -> ScoredList[Scored]:
        """Scores of a chat's roles, which are the texts here; last the template's own tokens."""
        of, messages = self._scored_text, _messages(self._scored_text)
        numbers = {role: [at for at, one in enumerate(messages.roles) if one == role] for role in messages.roles}
        rows = [(role, messages.rows(own)) for role, own in numbers.items()]
        rows += [(TEMPLATE, rest)] if (rest := messages.rows([-1])) else []
        return ScoredList(_scored(of, own, reduce)._replace(text=role) for role, own in rows)


def _scored(of: ScoredText, rows: Sequence[int], reduce: Reduction) -> Scored:
    if reduce not in REDUCTIONS:
        raise ValueError(f"reduce={reduce!r} is not one of {', '.join(REDUCTIONS)}")
    if not rows:
        return Scored("", 0.0, ())
    start, stop = int(of.offsets[rows[0], 0]), int(of.offsets[rows[-1], 1])
    shown = of.text[start:stop]
    score = float(REDUCTIONS[reduce](of.scores[rows]))
    return Scored(shown.strip() or shown, score, tuple(of.positions[rows].tolist()))


def _messages(of: ScoredText) -> Messages:
    if of.messages is None:
        raise ValueError("this attribution knows no messages: give attribute tokens=heta_lens.chat(model, messages)")
    return of.messages


def _spans(of: ScoredText) -> list[Span]:
    return [Span(*offsets) for offsets in of.offsets.tolist()]


def _sentence_rows(of: ScoredText) -> list[list[int]]:
    """The rows of every sentence, in the order of the text."""
    count = len(of.scores)
    owners = [0] * count if of.messages is None else of.messages.owners.tolist()
    spans, special = _spans(of), of.special.tolist()
    groups: list[list[int]] = []
    for owner, run in groupby(range(count), owners.__getitem__):
        rows = [*run]
        groups += [rows] if owner < 0 else _sentences(of.text, spans, special, rows)
    return groups


def _sentences(text: str, spans: Sequence[Span], special: Sequence[bool], rows: Sequence[int]) -> list[list[int]]:
    """Some neighbouring rows by sentence; special tokens each alone."""
    start, own = spans[rows[0]].start, [spans[row] for row in rows]
    ranges = [(first + start, last + start) for first, last in sentences(text[start : own[-1].stop])]
    fixed = np.array([special[row] for row in rows])
    found = [[row] for row in rows if special[row]]
    for belongs in members(text, own, ranges or [(start, own[-1].stop)], fixed):
        found.append([rows[at] for at in belongs.nonzero()[0]])
    return sorted(found)


def _spans_in(text: str, spans: Iterable[tuple[int, int]]) -> list[Span]:
    """The spans as numbers, refused where they are not inside the text."""
    try:
        wanted = [Span(index(start), index(stop)) for start, stop in spans]
    except (TypeError, ValueError):
        raise TypeError(f"spans={spans!r} must be pairs (start, stop) of places in attribution.text") from None
    for start, stop in wanted:
        if not 0 <= start < stop <= len(text):
            raise ValueError(f"span ({start}, {stop}) is not inside the context's {len(text)} characters")
    return wanted
