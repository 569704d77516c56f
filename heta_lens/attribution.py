"""Attribution: a score for every context token, the answer to "why did the model predict this token?"."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import groupby
from os import PathLike
from typing import Any, ClassVar, NamedTuple, TypeVar, cast

import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from rich.cells import cell_len
from torch import Tensor

from heta_lens._util import storage
from heta_lens._util import text as text_spans
from heta_lens._util.html_view import View
from heta_lens._util.numerics import powered_ends, student_t
from heta_lens._util.options import check_at_least
from heta_lens._util.python import provided
from heta_lens._util.target_kinds import FUNCTION, Activation, Target, function_name, saved_target
from heta_lens._util.text import Span, cut
from heta_lens.diagnostics import Diagnostics

VERSION = 2  # of files
ROWS = ("ids", "positions", "offsets", "special", "scores", "parts")  # fields with a row per token
ROW_DIAGNOSTICS = {"balanced", "cross_talk", "completeness_gaps", "drop", "envelope", "effects"}  # per token
TEMPLATE = "template"  # the role of tokens that belong to no message
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


class Contract(NamedTuple):
    """The claim of an attribution, one element per line."""

    explained: str
    eligible: str
    process: str
    fixed: str
    score: str

    def __repr__(self) -> str:
        return "\n".join(f"{name:<10} {text}" for name, text in self._asdict().items())


Group = TypeVar("Group", Scored, ScoredMessage)
Saved = TypeVar("Saved", bound="Result")


class ScoredList(list[Group]):
    """A list of scored stretches of text that prints as a small table."""

    def __repr__(self) -> str:
        rows = [("score", "positions", "text"), *map(_cells, self[:PRINTED_ROWS])]
        score_width, place_width = (max(cell_len(row[column]) for row in rows) for column in (0, 1))
        lines = [f"{score:>{score_width}}  {places:<{place_width}}  {text}" for score, places, text in rows]
        more = [f"… {len(self) - PRINTED_ROWS} more"] if len(self) > PRINTED_ROWS else []
        return "\n".join([*lines, *more])


def ends(positions: Sequence[int]) -> str:
    """Return the first position and the last."""
    return "–".join(map(str, dict.fromkeys((*positions[:1], *positions[-1:]))))


def _cells(group: Scored | ScoredMessage) -> tuple[str, str, str]:
    role = f"{group.role}: " if isinstance(group, ScoredMessage) else ""
    return f"{group.score:.4g}", ends(group.positions), role + cut(repr(group.text), PRINTED_CELLS)


@dataclass(frozen=True, eq=False)
class Messages:
    """The messages of a context that is a chat, in order.

    ``owners`` has for each token the index of the message whose content the token writes, and -1 for the template's
    tokens. ``places`` are the spans ``(message, start, stop)`` of the contents in the text; a message may have none.
    """

    roles: tuple[str, ...]
    places: Int[Tensor, "span 3"]
    owners: Int[Tensor, "pos"]

    @property
    def template(self) -> Bool[Tensor, "pos"]:
        """A mask of the tokens that the chat template wrote."""
        return self.owners < 0

    @property
    def names(self) -> list[str]:
        """The roles of the tokens, with `TEMPLATE` for the template's tokens."""
        return [TEMPLATE if owner < 0 else self.roles[owner] for owner in self.owners.tolist()]

    def content(self, number: int, text: str) -> str:
        """Return the content of a message in the context's text, with each tool call on a line."""
        return "\n".join(text[start:stop] for owner, start, stop in self.places.tolist() if owner == number)


class Result(ABC):
    """Reading, printing, showing and saving of scores, as attributions of a token and of a span have in common."""

    kind: ClassVar[str]  # of its files

    @property
    @abstractmethod
    def summed(self) -> "Attribution":
        """The attribution whose scores are read: a token's own, or a span's with all targets together."""

    @property
    @abstractmethod
    def stored(self) -> dict[str, Any]:
        """The fields that a file holds; a function as the target is stored by name."""

    @classmethod
    @abstractmethod
    def of_fields(cls, stored: Mapping[str, Any]) -> Any:
        """Return the result with `stored` fields; raise for fields of another type or shape."""

    def save(self, path: str | PathLike[str]) -> None:
        """Write a safetensors file: tensors as tensors, everything else in the JSON header."""
        storage.save(path, self.kind, VERSION, self.stored)

    @classmethod
    def load(cls: type[Saved], path: str | PathLike[str]) -> Saved:
        """Return the result in a file of `save`; raise for foreign and damaged files."""
        return storage.load(path, cls.kind, VERSION, cls.of_fields)

    def to_bytes(self) -> bytes:
        """Return the content of the file that `save` writes."""
        return storage.to_bytes(self.kind, VERSION, self.stored)

    @classmethod
    def of_bytes(cls: type[Saved], raw: bytes, place: str) -> Saved:
        return storage.of_bytes(raw, place, cls.kind, VERSION, cls.of_fields)

    def top(self, k: int = 10, *, special: bool = False) -> ScoredList[Scored]:
        """Return the k tokens with the highest scores, highest first; equal scores keep the order of the text.

        Signed scores put first the tokens that speak most for the target, and last the tokens that speak against the
        target. ``special=True`` includes the ``hidden`` tokens. A span has the sums of the tokens before the span.
        Tokens that a search left together count as one, with their sum.
        """
        check_at_least("k", k, 0, whole=True)
        summed, together = self.summed, dict[int, list[int]]()
        unit, scores = summed.positions.clone(), summed.scores.tolist()
        for start, stop, _ in summed.diagnostics.masked_together or ():
            unit[(unit >= start) & (unit < stop)] = start
        for row in (~summed.hidden | special).nonzero()[:, 0].tolist():
            together.setdefault(int(unit[row]), []).append(row)
        highest = sorted(together.values(), key=lambda rows: -sum(scores[row] for row in rows))[:k]
        return ScoredList(_scored(summed, rows, single=summed.tokens[rows[0]]) for rows in highest)

    def by_word(self) -> ScoredList[Scored]:
        """Return the scores of whitespace-separated words; special and blank tokens stand alone.

        Every token belongs to exactly one word.
        """
        summed = self.summed
        words = text_spans.words(summed.text, summed.spans, summed.special.tolist())
        return ScoredList(_scored(summed, rows) for rows in words)

    def by_sentence(self) -> ScoredList[Scored]:
        """Return the scores of sentences and lines; special tokens stand alone.

        Every token belongs to exactly one sentence. In a chat no sentence goes beyond a message, and the text of the
        template between two messages stands alone.
        """
        summed = self.summed
        owners = [0] * len(summed) if summed.messages is None else summed.messages.owners.tolist()
        groups: list[list[int]] = []
        for owner, run in groupby(range(len(summed)), owners.__getitem__):
            rows = [*run]
            groups += [rows] if owner < 0 else _sentences(summed, rows)
        return ScoredList(_scored(summed, rows) for rows in groups)

    def by_spans(self, spans: Iterable[tuple[int, int]]) -> ScoredList[Scored]:
        """Return the scores of stretches ``attribution.text[start:stop]``.

        A token counts if at least one visible character of the token lies inside. The text begins with the first token
        that the model read, perhaps a special one, so look for places in ``attribution.text`` and not in your prompt:
        ``attribution.text.index(...)``.
        """
        summed = self.summed
        found = []
        for start, stop in spans:
            if not 0 <= start < stop <= len(summed.text):
                raise ValueError(f"span ({start}, {stop}) is not inside the context's {len(summed.text)} characters")
            rows = text_spans.tokens_in(summed.text, summed.spans, Span(start, stop))
            found.append(_scored(summed, rows)._replace(text=summed.text[start:stop]))
        return ScoredList(found)

    def by_message(self) -> ScoredList[ScoredMessage]:
        """Return the scores of a chat's messages in order, and last the score of the template's tokens."""
        summed, messages = self.summed, self._messages
        found = []
        for number, role in [*enumerate(messages.roles), (-1, TEMPLATE)]:
            _, score, positions = _scored(summed, (messages.owners == number).nonzero()[:, 0].tolist())
            found.append(ScoredMessage(messages.content(number, summed.text), score, positions, role))
        return ScoredList(found if found[-1].positions else found[:-1])

    def by_role(self) -> ScoredList[Scored]:
        """Return the scores of a chat's roles, with the role as the text, and last the score of the template."""
        names, roles = self._messages.names, dict.fromkeys([*self._messages.roles, TEMPLATE])
        rows = {role: [row for row, name in enumerate(names) if name == role] for role in roles}
        kept = [(role, own) for role, own in rows.items() if own or role != TEMPLATE]
        return ScoredList(_scored(self.summed, own)._replace(text=role) for role, own in kept)

    @property
    def _messages(self) -> Messages:
        if self.summed.messages is None:
            raise ValueError(
                "this attribution knows no messages: give attribute tokens=heta_lens.chat(model, messages)"
            )
        return self.summed.messages

    def plot(self, *, special: bool = False) -> View:
        """Return the tokens in colour with a table: a notebook shows the view, elsewhere call ``.open()`` or ``.save``.

        ``.save("page.html")`` keeps the page. ``special=True`` shows special tokens and a chat template's from the
        start.
        """
        return provided("plots").page(self, special=special)

    @property
    def title(self) -> str:
        """The method and the explained target as a question, on a single line."""
        return provided("plots").title(self)

    @property
    def notes(self) -> list[str]:
        """Lines on how to read the scores: the target's probability, the share of special tokens, the meaning of signs.

        A span that was followed through a reasoning has lines on the ways of the score through the reasoning.
        """
        return provided("plots").notes(self)

    def contract(self) -> Contract:
        """Return what the scores claim: of which prediction, tokens and model, what is held fixed, what a score is."""
        return provided("contract").contract(self)

    def __repr__(self) -> str:
        return provided("plots").summary(self)


@dataclass(frozen=True, eq=False, repr=False)
class Attribution(Result):
    """One score per context token, with everything needed to read, check and repeat the scores.

    ``positions`` are places in the context: 0, 1, 2 … unless tokens were removed for display. ``offsets`` are
    character spans in ``text``, the decoded context. ``parts`` are the factors of the score, for methods with factors.
    ``interactions``, if asked for, say how strongly each pair of tokens acts together. ``target`` is an id, a frozenset
    of ids, a pair of these for a contrast, or a function of the logits; a file holds only the name of a function.
    ``messages`` are the messages of a chat, with the message that each token belongs to.
    """

    kind: ClassVar[str] = "heta_lens.attribution"

    ids: Int[Tensor, "pos"]
    tokens: tuple[str, ...]
    positions: Int[Tensor, "pos"]
    offsets: Int[Tensor, "pos 2"]
    special: Bool[Tensor, "pos"]
    text: str
    target: Target
    target_text: str | tuple[str, ...]
    method: str
    scores: Float[Tensor, "pos"]
    parts: Mapping[str, Float[Tensor, "pos"]] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    diagnostics: Diagnostics = field(default_factory=Diagnostics)
    signed: bool = False
    interactions: Float[Tensor, "pos pos"] | None = None
    messages: Messages | None = None

    def __post_init__(self) -> None:
        for name, values in {"the score": self.scores, **self.parts, "interactions": self.interactions}.items():
            if isinstance(values, Tensor) and not values.isfinite().all():
                place = (~values.isfinite()).nonzero()[0].tolist()
                where = f"position {int(self.positions[place[0]])}, token {self.tokens[place[0]]!r}"
                raise ValueError(f"{name} is {float(values[tuple(place)])} at {where}: scores must be finite numbers")

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def spans(self) -> list[Span]:
        """The characters of each token in ``text``: `offsets` as spans."""
        return [Span(*offsets) for offsets in self.offsets.tolist()]

    @property
    def template(self) -> Bool[Tensor, "pos"]:
        """A mask of the tokens that a chat template wrote: BOS, headers, end markers; empty without a chat."""
        return torch.zeros_like(self.special) if self.messages is None else self.messages.template

    @property
    def hidden(self) -> Bool[Tensor, "pos"]:
        """A mask of the tokens that lists and views leave out: special tokens and a chat template's.

        The mask is empty if every token would be left out.
        """
        hidden = self.special | self.template
        return hidden & ~hidden.all()

    @property
    def measured(self) -> Bool[Tensor, "pos"]:
        """A mask of the tokens whose effect was measured alone.

        With a budget of ``forwards``, other tokens have an equal share of their span's effect, and tokens of a chat
        template 0. All tokens of a method without such a budget are marked.
        """
        together = self.diagnostics.masked_together
        alone = torch.full_like(self.special, True) if together is None else ~self.template
        for start, stop, _ in together or ():
            alone &= (self.positions < start) | (self.positions >= stop)
        return alone

    @property
    def summed(self) -> "Attribution":
        """The attribution itself; a span sums the scores of all targets here."""
        return self

    def without_special(self) -> "Attribution":
        """Return the attribution without special tokens, as `without` removes tokens."""
        return self.without(self.positions[self.special].tolist())

    def without(self, positions: Iterable[int] = (), *, template: bool = False) -> "Attribution":
        """Return the attribution without the tokens at ``positions``, for display: the other scores do not change.

        ``template=True`` removes every token that a chat template wrote. Lists and views hide special tokens anyway.
        """
        wanted = torch.as_tensor([*positions], device=self.positions.device)
        if unknown := wanted[~torch.isin(wanted, self.positions)].tolist():
            raise ValueError(f"positions={unknown} are not in this attribution")
        if template:
            _ = self._messages  # refuses an attribution without a chat
        removed = torch.isin(self.positions, wanted) | (self.template & template)
        if removed.all():
            raise ValueError("nothing would be left: every token is special, of the template or listed in positions")
        return _kept(self, ~removed)

    @property
    def standard_errors(self) -> Mapping[str, Float[Tensor, "pos"] | Float[Tensor, "pos pos"] | None]:
        """Standard errors of the scores, each part and the interactions; None for deterministic values.

        A single probe gives no standard error either.
        """
        return self.diagnostics.standard_errors or {}

    def interval(self, confidence: float = 0.95) -> tuple[Float[Tensor, "pos"], Float[Tensor, "pos"]]:
        """Return the lower and upper ends of each score's confidence interval (Student's t over the probes).

        For geometric scores the function floors the ends of the curvature's interval at 0 and transforms the ends. The
        intervals of some tokens contain the expected score less often than ``confidence`` says (benchmarks/PROBES.md).
        """
        if not 0 < confidence < 1:
            raise ValueError(f"confidence={confidence} must be between 0 and 1")
        error, probes = self.standard_errors.get("scores"), self.diagnostics.probes
        if error is None or probes is None:
            raise ValueError("these scores have no standard error: nothing in them is random, or one probe was used")
        reach = student_t(probes, confidence)
        if self.options.get("combine") == "geometric" and "curvature" in self.parts:
            power = self.options["beta"] / (self.options["beta"] + self.options["gamma"])
            mean, spread = self.parts["curvature"], cast(Tensor, self.standard_errors["curvature"])
            return powered_ends(self.scores, mean, reach * spread, power)
        return self.scores - reach * error, self.scores + reach * error

    def to_frame(self) -> pd.DataFrame:
        """Return a row per token: position, score, parts with standard errors, and text span.

        Columns keep their names in every variant: with ``variant="gs"``, ``curvature`` holds the squared gradient.
        """
        columns: dict[str, Any] = {
            "position": self.positions.tolist(),
            "token": self.tokens,
            "score": self.scores.tolist(),
            **{name: part.tolist() for name, part in self.parts.items()},
        }
        for name, error in self.standard_errors.items():
            if error is not None and name != "interactions":
                columns["score_se" if name == "scores" else f"{name}_se"] = error.tolist()
        if self.diagnostics.masked_together is not None:
            columns["measured"] = self.measured.tolist()
        columns |= {"id": self.ids.tolist(), "special": self.special.tolist()}
        if self.messages is not None:
            owners = pd.Series(self.messages.owners.tolist(), dtype="Int64")
            columns |= {"role": self.messages.names, "message": owners.mask(owners < 0)}
        start, stop = self.offsets.T.tolist()
        return pd.DataFrame({**columns, "start": start, "stop": stop})

    @property
    def stored(self) -> dict[str, Any]:
        stored = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        if isinstance(self.target, Activation):
            stored["target"] = self.target.stored
        elif callable(self.target):
            stored["target"] = {FUNCTION: function_name(self.target)}
        return stored | {"messages": self.messages and vars(self.messages)}

    @classmethod
    def of_fields(cls, stored: Mapping[str, Any]) -> "Attribution":
        values = {**stored}
        if isinstance(messages := values.get("messages"), Mapping):
            values["messages"] = Messages(**messages)
        if isinstance(known := values.get("diagnostics"), Mapping):
            values["diagnostics"] = Diagnostics.of(known)
        if isinstance(target := values.get("target"), Mapping):
            values["target"] = saved_target(target)
        storage.check_record(cls, values)
        return cls(**values)


def _sentences(attribution: Attribution, rows: Sequence[int]) -> list[list[int]]:
    """Return the rows of every sentence among neighbouring rows, in the order of the text; special tokens alone."""
    spans, special = attribution.spans[rows[0] : rows[-1] + 1], attribution.special[rows].cpu().numpy()
    start, stop = spans[0].start, spans[-1].stop
    sentences = text_spans.sentences(attribution.text[start:stop])
    ranges = [(first + start, last + start) for first, last in sentences] or [(start, stop)]
    found = [[row] for row, alone in zip(rows, special, strict=True) if alone]
    for belongs in text_spans.members(attribution.text, spans, ranges, special):
        found.append([rows[at] for at in belongs.nonzero()[0]])
    return sorted(found)


def _scored(attribution: Attribution, rows: Sequence[int], single: str = "") -> Scored:
    """Return the score of some tokens with their text; ``single`` is the text of one alone."""
    if not rows:
        return Scored("", 0.0, ())
    shown = attribution.text[int(attribution.offsets[rows[0], 0]) : int(attribution.offsets[rows[-1], 1])]
    score = float(attribution.scores[rows].sum())
    shown = single if single and len(rows) == 1 else shown.strip() or shown
    return Scored(shown, score, tuple(attribution.positions[rows].tolist()))


def _kept(attribution: Attribution, keep: Bool[Tensor, "pos"]) -> Attribution:
    """Return the attribution of the tokens in ``keep``, without further diagnostics per token."""
    known = {name: fact for name, fact in attribution.diagnostics.items() if name not in ROW_DIAGNOSTICS}
    if "standard_errors" in known:
        known["standard_errors"] = _rows(known["standard_errors"], keep)
    known["left_out"] = known.get("left_out", 0) + int((~keep).sum())
    pairs, messages = attribution.interactions, attribution.messages
    return replace(
        attribution,
        **{name: _rows(getattr(attribution, name), keep) for name in ROWS},
        tokens=tuple(token for token, kept in zip(attribution.tokens, keep.tolist(), strict=True) if kept),
        diagnostics=Diagnostics.of(known),
        interactions=None if pairs is None else pairs[keep][:, keep],
        messages=None if messages is None else replace(messages, owners=messages.owners[keep]),
    )


def _rows(value: Any, keep: Bool[Tensor, "pos"]) -> Any:
    """Return the kept rows of every tensor in ``value``, and of interactions the kept columns too."""
    if isinstance(value, Mapping):
        rows = {name: _rows(item, keep) for name, item in value.items()}
        pairs = rows.get("interactions")
        return rows if pairs is None else rows | {"interactions": pairs[:, keep]}
    return value[keep] if isinstance(value, Tensor) else value
