"""Attribution: the frozen answer to "which context tokens made the model predict this token?"."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from operator import index
from os import PathLike
from typing import Any, Literal, TypeAlias, get_args

import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from heta_lens._util import storage
from heta_lens._util.chat_messages import Messages
from heta_lens._util.html_view import View
from heta_lens._util.numerics import powered_ends, student_t
from heta_lens._util.options import check_at_least, check_choice, check_field_names
from heta_lens._util.saved_attribution_checks import FUNCTION, ONE_PER_TOKEN, check_shapes, check_values
from heta_lens._util.target_kinds import SavedFunction, Target, function_name, sides
from heta_lens._util.text import Span, tokens_of
from heta_lens.diagnostics import Diagnostics, share_of
from heta_lens.grouped_scores import GroupedScores, Scored, ScoredList, ScoredText

Order: TypeAlias = Literal["score", "size"]

FORMAT, VERSION = "heta_lens.attribution", 2
FIRST = 1  # version, which has no messages and no other targets than tokens and contrasts of two
ROWS = ("ids", "positions", "offsets", "special", "scores", "parts", "interactions")  # fields that have one per token
PER_TOKEN = {"standard_errors", *ONE_PER_TOKEN}  # diagnostics that have
PAIRS = {"interactions"}  # what has a row and a column per token
PER_COLUMN = {"effects"}  # diagnostics that have a column per token


@dataclass(frozen=True, eq=False, repr=False)
class Attribution(GroupedScores):
    """One score per context token, and all that is needed to read, check and repeat it.

    ``positions`` are places in the context; they are 0, 1, 2 … unless some tokens were removed for display.
    ``offsets`` are character spans in ``text``, the decoded context. ``parts`` are the factors of the score, for
    methods that have them; ``interactions``, where they were asked for, how strongly each pair of tokens acts together.
    ``target`` is an id, a frozenset of ids, a pair of these for a contrast, or a function of the logits. Of a function,
    a file holds only the name.
    ``messages``, of a chat, are whose each token is.
    """

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
        if not isinstance(self.diagnostics, Diagnostics):
            object.__setattr__(self, "diagnostics", Diagnostics.of(self.diagnostics))
        _check_finite(self)

    def __len__(self) -> int:
        return len(self.ids)

    # ------------------------------------------------------------------------------------------------ reading it
    def top(self, k: int = 10, by: Order = "score", *, special: bool = False) -> ScoredList[Scored]:
        """The k tokens with the highest scores, highest first, of equal ones the first in the text; all, if fewer.

        Of signed scores, what speaks most for the target comes first, and what speaks against it last; ``by="size"``
        ranks by the absolute score instead. ``special=True`` includes the tokens that are ``hidden``.
        """
        check_at_least("k", k, 0, whole=True)
        check_choice("by", by, get_args(Order))
        values = self.scores.abs() if by == "size" else self.scores
        order = values.argsort(descending=True, stable=True)
        rows = order[~self.hidden[order] | special][:k].tolist()
        return ScoredList(
            Scored(self.tokens[row], float(self.scores[row]), (int(self.positions[row]),)) for row in rows
        )

    def positions_of(self, passage: str) -> list[int]:
        """Where the tokens are that write a passage, which must occur in the text exactly once."""
        rows = tokens_of(passage, self.text, [Span(*offsets) for offsets in self.offsets.tolist()])
        return self.positions[rows].tolist()

    @property
    def template(self) -> Bool[Tensor, "pos"]:
        """Which tokens a chat template wrote: BOS, headers, end markers; none, if this is not a chat."""
        return torch.zeros_like(self.special) if self.messages is None else self.messages.template

    @property
    def hidden(self) -> Bool[Tensor, "pos"]:
        """Tokens that lists and views leave out: special ones, and a chat template's; none, if all are."""
        hidden = self.special | self.template
        return hidden & ~hidden.all()

    def without_special(self) -> "Attribution":
        """The same attribution with special tokens removed, as `without` removes others."""
        return self.without(self.positions[self.special].tolist())

    def without(self, positions: Iterable[int] = (), *, template: bool = False) -> "Attribution":
        """The same attribution with some tokens removed: for display, since the remaining scores do not change.

        ``template`` removes all that a chat template wrote. Lists and views leave special tokens out by themselves.
        """
        try:
            wanted = torch.tensor([index(position) for position in positions], dtype=self.positions.dtype)
        except TypeError:
            raise TypeError(f"positions={positions!r} must be places in the context") from None
        unknown = wanted[~torch.isin(wanted, self.positions)].tolist()
        if unknown:
            raise ValueError(f"positions={unknown} are not in this attribution")
        if template and self.messages is None:
            raise ValueError("template=True needs a chat: give attribute tokens=heta_lens.chat(model, messages)")
        removed = torch.isin(self.positions, wanted) | (self.template & template)
        if removed.all():
            raise ValueError("nothing would be left: every token is special, of the template or listed in positions")
        mass = {"template_mass": share_of(self.scores, self.template)} if template and self.template.any() else {}
        return _kept(self, ~removed, mass)

    # --------------------------------------------------------------------------------------------- how sure it is
    @property
    def standard_errors(self) -> Mapping[str, Float[Tensor, "pos"] | Float[Tensor, "pos pos"] | None]:
        """Of the scores, each part and the interactions; None where there is no chance in it, or only one probe."""
        return self.diagnostics.standard_errors or {}

    def interval(self, confidence: float = 0.95) -> tuple[Float[Tensor, "pos"], Float[Tensor, "pos"]]:
        """Lower and upper ends of each score's confidence interval (Student's t over the probes).

        Of a geometric score, the ends of the curvature's interval, floored at 0, are transformed.
        """
        if not 0 < confidence < 1:
            raise ValueError(f"confidence={confidence} must be between 0 and 1")
        error = self.standard_errors.get("scores")
        if error is None:
            raise ValueError("these scores have no standard error: nothing in them is random, or one probe was used")
        counts = torch.as_tensor(self.diagnostics.probes).expand(len(error))
        reach = student_t(counts, confidence).to(error)
        if self.options.get("combine") == "geometric" and "curvature" in self.parts:
            power = self.options["beta"] / (self.options["beta"] + self.options["gamma"])
            mean, spread = self.parts["curvature"], torch.as_tensor(self.standard_errors["curvature"])
            return powered_ends(self.scores, mean, reach * spread, power)
        reach = reach * error
        return self.scores - reach, self.scores + reach

    # ---------------------------------------------------------------------------------------- showing, keeping it
    def plot(self, *, special: bool = False) -> View:
        """Tokens in colour, with a table: shown by a notebook, elsewhere ``.open()`` or ``.save("page.html")``."""
        from heta_lens.plots.page import page  # which imports this module

        return page(self, special=special)

    def to_frame(self) -> pd.DataFrame:
        """One row per token: its place, score, parts and their standard errors, and how often it was probed."""
        return pd.DataFrame(_columns(self))

    def save(self, path: str | PathLike[str]) -> None:
        """Write a safetensors file: tensors as they are, everything else in its JSON header."""
        storage.save(path, FORMAT, written_version(self), stored_fields(self))

    @classmethod
    def load(cls, path: str | PathLike[str]) -> "Attribution":
        """Read what `save` wrote; any other file is refused."""
        return storage.load(path, FORMAT, VERSION, cls._of, cls._check)

    @classmethod
    def of_fields(cls, fields: Mapping[str, Any]) -> "Attribution":
        """From `stored_fields`, refused where they do not fit together."""
        cls._check(fields)
        return cls._of(fields)

    @classmethod
    def _check(cls, fields: Mapping[str, Any]) -> None:
        """Refuse what is no attribution by the types, lengths and dtypes of its fields."""
        check_field_names(cls, fields)
        check_shapes({"parts": {}, "options": {}, "diagnostics": {}, **fields})

    @classmethod
    def _of(cls, fields: Mapping[str, Any]) -> "Attribution":
        check_values({"parts": {}, "diagnostics": {}, **fields})
        target: Any = fields["target"]
        target = SavedFunction(target[FUNCTION]) if isinstance(target, Mapping) else target
        diagnostics, messages = Diagnostics.of(fields.get("diagnostics", {})), Messages.of(fields.get("messages"))
        return cls(**{**fields, "target": target, "diagnostics": diagnostics, "messages": messages})

    def __repr__(self) -> str:
        from heta_lens.plots import attribution_text  # which imports this module

        return attribution_text.summary(self)

    @property
    def summed(self) -> "Attribution":
        """Itself; of a span, all of its targets together."""
        return self

    @property
    def title(self) -> str:
        """The question this answers, in one line."""
        from heta_lens.plots import attribution_text  # which imports this module

        return attribution_text.title(self)

    @property
    def notes(self) -> list[str]:
        """How to read the scores: how likely the target was, what special tokens hold, what the sign means."""
        from heta_lens.plots import attribution_text  # which imports this module

        return attribution_text.notes(self)

    @property
    def _scored_text(self) -> ScoredText:
        return self


def stored_fields(attribution: Attribution) -> dict[str, Any]:
    """What a file holds of it: all fields that it has, but of a function as the target only the name."""
    held: dict[str, Any] = {entry.name: getattr(attribution, entry.name) for entry in fields(attribution)}
    target, messages = attribution.target, held.pop("messages")
    held["target"] = {FUNCTION: function_name(target)} if callable(target) else target
    return held if messages is None else held | {"messages": vars(messages)}


def written_version(attribution: Attribution) -> int:
    """Older versions of heta_lens can read what has no messages, and a token or a contrast of two as the target."""
    target = attribution.target
    plain = not callable(target) and all(isinstance(part, int) for part in sides(target))
    return FIRST if plain and attribution.messages is None else VERSION


def _check_finite(attribution: Attribution) -> None:
    """Refuse scores that are no finite numbers, naming the first by its position and token."""
    named = {"the score": attribution.scores, **attribution.parts, "interactions": attribution.interactions}
    for name, values in named.items():
        if isinstance(values, Tensor) and not bool(values.isfinite().all()):
            place = (~values.isfinite()).nonzero()[0].tolist()
            where = f"position {int(attribution.positions[place[0]])}, token {attribution.tokens[place[0]]!r}"
            raise ValueError(f"{name} is {float(values[tuple(place)])} at {where}: scores must be finite numbers")


def _own_probes(attribution: Attribution) -> Int[Tensor, "pos"] | None:
    """How many probes each token had; None where all had as many."""
    probes = attribution.diagnostics.probes
    return probes if isinstance(probes, Tensor) else None


def _columns(attribution: Attribution) -> dict[str, Any]:
    """The columns of `Attribution.to_frame`."""
    columns: dict[str, Any] = {
        "position": attribution.positions.tolist(),
        "token": attribution.tokens,
        "score": attribution.scores.tolist(),
        **{name: part.tolist() for name, part in attribution.parts.items()},
    }
    for name, error in attribution.standard_errors.items():
        if error is not None and name not in PAIRS:
            columns["score_se" if name == "scores" else f"{name}_se"] = error.tolist()
    if (probes := _own_probes(attribution)) is not None:
        columns["probes"] = probes.tolist()
    columns |= {"id": attribution.ids.tolist(), "special": attribution.special.tolist()}
    if attribution.messages is not None:
        owners = pd.Series(attribution.messages.owners.tolist(), dtype="Int64")
        columns |= {"role": attribution.messages.names, "message": owners.mask(owners < 0)}
    return columns | dict(zip(("start", "stop"), attribution.offsets.T.tolist(), strict=True))


def _kept(attribution: Attribution, keep: Bool[Tensor, "pos"], more: Mapping[str, float]) -> Attribution:
    """The attribution of these tokens alone, and ``more`` of what is known then."""
    known = attribution.diagnostics
    per_token = {name: known[name] for name in PER_TOKEN & known.keys()}
    if (probes := _own_probes(attribution)) is not None:
        per_token["probes"] = probes
    per_column = {name: known[name][:, keep] for name in PER_COLUMN & known.keys()}
    left_out = (known.left_out or 0) + int((~keep).sum())
    return replace(
        attribution,
        tokens=tuple(token for token, kept in zip(attribution.tokens, keep.tolist(), strict=True) if kept),
        diagnostics=Diagnostics.of({**known, **_rows(per_token, keep), **per_column, "left_out": left_out, **more}),
        messages=None if attribution.messages is None else attribution.messages.kept(keep),
        **_rows({name: getattr(attribution, name) for name in ROWS}, keep),
    )


def _rows(value: Any, keep: Bool[Tensor, "pos"]) -> Any:
    """The kept rows of every tensor in ``value``; of a map of pairs, the kept columns too."""
    if isinstance(value, Mapping):
        rows = {name: _rows(item, keep) for name, item in value.items()}
        return rows | {name: rows[name][:, keep] for name in PAIRS & rows.keys() if rows[name] is not None}
    return None if value is None else value[keep]
