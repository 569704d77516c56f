"""Attribution: the frozen answer to "which context tokens made the model predict this token?"."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from math import exp, isnan, nan
from operator import index
from os import PathLike
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from rich.cells import cell_len, set_cell_size
from torch import Tensor

from heta_lens import storage, text
from heta_lens.options import check_at_least, check_choice
from heta_lens.samples import student_t
from heta_lens.saved import check_shapes, check_values
from heta_lens.show import View, coloured_tokens
from heta_lens.text import Span, quoted
from heta_lens.typed import check_names

Target: TypeAlias = int | tuple[int, int]
Reduction: TypeAlias = Literal["sum", "mean", "max"]
Order: TypeAlias = Literal["score", "size"]

REDUCTIONS: dict[Reduction, Callable[[Tensor], Tensor]] = {"sum": torch.sum, "mean": torch.mean, "max": torch.amax}
FORMAT, VERSION = "heta_lens.attribution", 1
WIDTH = 30  # of the bars in a repr
SHOWN = 3  # other spellings of the target that are named
PAIRS = {"interactions"}  # what has a row and a column for each token
PER_COLUMN = {"effects"}  # what has a column for each


class Scored(NamedTuple):
    """A stretch of text with its score, and the positions of the tokens that make it up."""

    text: str
    score: float
    positions: tuple[int, ...]


@dataclass(frozen=True, eq=False, repr=False)
class Attribution:
    """One score a context token, and all that is needed to read, check and repeat it.

    ``positions`` are places in the context; they are 0, 1, 2 … unless some tokens were left out for display.
    ``offsets`` are character spans in ``text``, the decoded context. ``parts`` are the factors of the score, for
    methods that have them; ``interactions``, where they were asked for, how strongly each pair of tokens acts together.
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
    diagnostics: Mapping[str, Any] = field(default_factory=dict)
    signed: bool = False
    interactions: Float[Tensor, "pos pos"] | None = None

    def __post_init__(self) -> None:
        for name, values in {"the score": self.scores, **self.parts, "interactions": self.interactions}.items():
            if isinstance(values, Tensor) and not bool(values.isfinite().all()):
                place = (~values.isfinite()).nonzero()[0].tolist()
                where = f"position {int(self.positions[place[0]])}, token {self.tokens[place[0]]!r}"
                raise ValueError(f"{name} is {float(values[tuple(place)])} at {where}: scores must be finite numbers")

    def __len__(self) -> int:
        return len(self.ids)

    # ------------------------------------------------------------------------------------------------ reading it
    def top(self, k: int = 10, by: Order = "score") -> list[Scored]:
        """The k tokens with the highest scores, highest first, of equal ones the first in the text; all, if fewer.

        This is the order of every list and metric: of signed scores, what speaks most for the target comes first, and
        what speaks against it last. ``by="size"`` ranks by the absolute score instead.
        """
        check_at_least("k", k, 0, whole=True)
        check_choice("by", by, get_args(Order))
        values = self.scores.abs() if by == "size" else self.scores
        order = values.argsort(descending=True, stable=True)[:k].tolist()
        return [Scored(self.tokens[row], float(self.scores[row]), (int(self.positions[row]),)) for row in order]

    def by_word(self, reduce: Reduction = "sum") -> list[Scored]:
        """Scores of whitespace-separated words. Special and blank tokens stand alone; every token counts once."""
        return [self._scored(rows, reduce) for rows in text.words(self.text, self._spans, self.special.tolist())]

    def by_spans(self, spans: Iterable[tuple[int, int]], reduce: Reduction = "sum") -> list[Scored]:
        """Scores of stretches ``attribution.text[start:stop]``.

        A token counts if any visible character of it lies inside. The text begins with what the model read first, a
        special token perhaps, so look for places in it and not in your own prompt: ``attribution.text.index(...)``.
        """
        try:
            wanted = [Span(index(start), index(stop)) for start, stop in spans]
        except (TypeError, ValueError):
            raise TypeError(f"spans={spans!r} must be pairs (start, stop) of places in attribution.text") from None
        for start, stop in wanted:
            if not 0 <= start < stop <= len(self.text):
                raise ValueError(f"span ({start}, {stop}) is not inside the context's {len(self.text)} characters")
        return [
            self._scored(text.tokens_in(self.text, self._spans, span), reduce)._replace(text=self.text[slice(*span)])
            for span in wanted
        ]

    def without(self, positions: Iterable[int] = (), *, special: bool = False) -> "Attribution":
        """The same attribution with some tokens left out: for display, since the remaining scores do not change."""
        try:
            wanted = torch.tensor([index(position) for position in positions], dtype=self.positions.dtype)
        except TypeError:
            raise TypeError(f"positions={positions!r} must be places in the context") from None
        unknown = wanted[~torch.isin(wanted, self.positions)].tolist()
        if unknown:
            raise ValueError(f"positions={unknown} are not in this attribution")
        left_out = torch.isin(self.positions, wanted)
        per_token = {"standard_errors", "balanced", "drop", "envelope", "completeness_gaps"} & self.diagnostics.keys()
        if self._own_probes is not None:
            per_token |= {"probes"}
        keep = ~(left_out | self.special) if special else ~left_out
        if not keep.any():
            raise ValueError("nothing would be left: every token is special or listed in positions")
        return replace(
            self,
            tokens=tuple(token for token, kept in zip(self.tokens, keep.tolist(), strict=True) if kept),
            diagnostics={
                **self.diagnostics,
                **_rows({name: self.diagnostics[name] for name in per_token}, keep),
                **{name: self.diagnostics[name][:, keep] for name in PER_COLUMN & self.diagnostics.keys()},
                "left_out": self.diagnostics.get("left_out", 0) + int((~keep).sum()),
            },
            **_rows(
                {
                    name: getattr(self, name)
                    for name in ("ids", "positions", "offsets", "special", "scores", "parts", "interactions")
                },
                keep,
            ),
        )

    # --------------------------------------------------------------------------------------------- how sure it is
    @property
    def _own_probes(self) -> Int[Tensor, "pos"] | None:
        """How many probes each token had; None where all had as many."""
        probes = self.diagnostics.get("probes")
        return probes if isinstance(probes, Tensor) else None

    @property
    def standard_errors(self) -> Mapping[str, Float[Tensor, "pos"] | Float[Tensor, "pos pos"] | None]:
        """Of the scores, each part and the interactions; None where there is no chance in it, or only one probe."""
        return self.diagnostics.get("standard_errors", {})

    def interval(self, confidence: float = 0.95) -> tuple[Float[Tensor, "pos"], Float[Tensor, "pos"]]:
        """Lower and upper ends of each score's confidence interval (Student's t over the probes)."""
        if not 0 < confidence < 1:
            raise ValueError(f"confidence={confidence} must be between 0 and 1")
        error = self.standard_errors.get("scores")
        if error is None:
            raise ValueError("these scores have no standard error: nothing in them is random, or one probe was used")
        counts = torch.as_tensor(self.diagnostics["probes"]).expand(len(error))
        reach = student_t(counts, confidence).to(error) * error
        return self.scores - reach, self.scores + reach

    # ---------------------------------------------------------------------------------------- showing, keeping it
    def plot(self) -> View:
        """Circuitsvis coloured tokens: shown by a notebook, or ``.save("page.html")``; needs no network."""
        return coloured_tokens(self.title, self.tokens, self.scores, "; ".join(self.notes))

    def to_frame(self) -> pd.DataFrame:
        """One row a token: where it is, its score, its parts and their standard errors, and how often it was probed."""
        columns: dict[str, Any] = {
            "position": self.positions.tolist(),
            "token": self.tokens,
            "score": self.scores.tolist(),
            **{name: part.tolist() for name, part in self.parts.items()},
        }
        for name, error in self.standard_errors.items():
            if error is not None and name not in PAIRS:
                columns["score_se" if name == "scores" else f"{name}_se"] = error.tolist()
        if self._own_probes is not None:
            columns["probes"] = self._own_probes.tolist()
        columns |= {"id": self.ids.tolist(), "special": self.special.tolist()}
        columns |= {"start": self.offsets[:, 0].tolist(), "stop": self.offsets[:, 1].tolist()}
        return pd.DataFrame(columns)

    def save(self, path: str | PathLike[str]) -> None:
        """Write a safetensors file: tensors as they are, everything else in its JSON header."""
        storage.save(path, FORMAT, VERSION, {entry.name: getattr(self, entry.name) for entry in fields(self)})

    @classmethod
    def load(cls, path: str | PathLike[str]) -> "Attribution":
        """Read what `save` wrote; any other file is refused."""
        return storage.load(path, FORMAT, VERSION, cls._of, cls._check)

    @classmethod
    def _check(cls, fields: Mapping[str, Any]) -> None:
        """Refuse what is no attribution by the types, lengths and dtypes of its fields."""
        check_names(cls, fields)
        check_shapes({"parts": {}, "options": {}, "diagnostics": {}, **fields})

    @classmethod
    def _of(cls, fields: Mapping[str, Any]) -> "Attribution":
        check_values({"parts": {}, "diagnostics": {}, **fields})
        return cls(**fields)

    def __repr__(self) -> str:
        largest = float(self.scores.abs().max()) or 1.0
        rows = [
            f"{position:>5}  {set_cell_size(_clip(repr(token), 24), 24)} {score:>11.4g}  "
            + "█" * round(WIDTH * abs(score) / largest)
            for token, score, (position,) in self.top(8)
        ]
        shown = [f"the {len(rows)} highest of {len(self)} tokens"] if len(rows) < len(self) else []
        return "\n".join([self.title, *rows, *shown, *self.notes])

    @property
    def notes(self) -> list[str]:
        """How to read the scores: of how likely a target, how much the first token holds, what their sign means."""
        left_out = self.diagnostics.get("left_out", 0)
        sink = self.diagnostics.get("sink_mass", nan) if not left_out else nan
        sign = "either sign: above 0 speaks for the target" if self.signed else "≥ 0: how much it matters, no direction"
        return [
            *([self._likelihood] if "target_rank" in self.diagnostics else []),
            *([self._spellings] if self.diagnostics.get("other_spellings") else []),
            *([f"{left_out} tokens left out"] if left_out else []),
            *([] if isnan(sink) else [f"first token (often an attention sink): {sink:.0%} of the score"]),
            *([self._unfinished] if self._unfinished else []),
            *([self._against] if self._against else []),
            f"scores {sign}",
        ]

    @property
    def _against(self) -> str:
        """What speaks most against the target, which stands last in a list of the highest scores."""
        if not self.signed or not (self.scores < 0).any():
            return ""
        row = int(self.scores.argmin())
        told = f"{_clip(repr(self.tokens[row]), 24)} at {int(self.positions[row])}"
        return f"most against the target: {told}, {float(self.scores[row]):.4g}"

    @property
    def _unfinished(self) -> str:
        """Of an integral that its steps came too far from: by how much."""
        gap, due = (self.diagnostics.get(f"completeness_{name}", 0.0) for name in ("gap", "due"))
        return f"the integral misses {gap:.3g} of {due:.3g}: more steps come nearer" if gap > abs(due) / 10 else ""

    @property
    def _likelihood(self) -> str:
        """Which token was explained (of a contrast: which two), how likely it was, and whether under hooks."""
        pair = isinstance(self.target, tuple)
        names = self.diagnostics.get("target_token", ("", "") if pair else "")
        facts: Any = self.target, names, self.diagnostics["target_log_prob"], self.diagnostics["target_rank"]
        each = zip(*facts, strict=True) if pair else [facts]
        likely = " against ".join(_likely(*one) for one in each)
        return likely + (", under hooks" if self.diagnostics.get("user_hooks") else "")

    @property
    def _spellings(self) -> str:
        """The tokens that write the same as the target and were not taken for it."""
        others = self.diagnostics["other_spellings"]
        named = [
            f"{other['text']!r} by token {other['id']} {other['token']!r} (p = {exp(other['log_prob']):.3g})"
            for other in others[:SHOWN]
        ]
        more = [f"{len(others) - SHOWN} more"] if len(others) > SHOWN else []
        return f"also written: {', '.join(named + more)}"

    @property
    def title(self) -> str:
        """The question this answers, in one line."""
        chosen = ", ".join(f"{name}={value!r}" for name, value in self.diagnostics.get("chosen", {}).items())
        asked = f"why {_clip(quoted(self.target_text), 50)}?"
        return _clip(text.legible(f"{self.method}: {asked}" + (f" ({chosen})" if chosen else "")), 80)

    @property
    def _spans(self) -> list[Span]:
        return [Span(*offsets) for offsets in self.offsets.tolist()]

    def _scored(self, rows: list[int], reduce: Reduction) -> Scored:
        if reduce not in REDUCTIONS:
            raise ValueError(f"reduce={reduce!r} is not one of {', '.join(REDUCTIONS)}")
        if not rows:
            return Scored("", 0.0, ())
        start, stop = int(self.offsets[rows[0], 0]), int(self.offsets[rows[-1], 1])
        shown = self.text[start:stop]
        score = float(REDUCTIONS[reduce](self.scores[rows]))
        return Scored(shown.strip() or shown, score, tuple(self.positions[rows].tolist()))


def _likely(token: int, name: str, log_prob: float, rank: int) -> str:
    named = f"token {token} {name!r}: " if name else ""
    return f"{named}p = {exp(log_prob):.3g} (rank {rank})"


def _rows(value: Any, keep: Bool[Tensor, "pos"]) -> Any:
    """The kept rows of every tensor in ``value``; of a map of pairs, the kept columns too."""
    if isinstance(value, Mapping):
        rows = {name: _rows(item, keep) for name, item in value.items()}
        return rows | {name: rows[name][:, keep] for name in PAIRS & rows.keys() if rows[name] is not None}
    return None if value is None else value[keep]


def _clip(line: str, width: int) -> str:
    return line if cell_len(line) <= width else set_cell_size(line, width - 1) + "…"
