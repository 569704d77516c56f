"""Scores as colours and as shares: white at 0, deeper with size, blue above and orange below."""

from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import NamedTuple

from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import pad

from heta_lens._util.text import cut
from heta_lens.attribution import Attribution
from heta_lens.diagnostics import share_of
from heta_lens.span_attribution import SpanAttribution

MOST = 2 / 3  # the share of the score above which a single value would hide the others
SINK = 0.25  # the share of the score above which a word that begins the text is called an attention sink


class Shade(NamedTuple):
    red: int
    green: int
    blue: int

    @property
    def numbers(self) -> str:
        return ",".join(map(str, self))


WHITE, BLUE, ORANGE = Shade(255, 255, 255), Shade(33, 113, 217), Shade(201, 84, 10)
DEPTH = 0.8  # of the colours under black text, so that the text is legible on the deepest


def shade_of(depth: float | int) -> Shade:
    """Return the colour of a depth between -1 and 1."""
    pairs = zip(WHITE, BLUE if depth > 0 else ORANGE, strict=True)
    return Shade(*(round(start + (stop - start) * abs(depth)) for start, stop in pairs))


def tint(shade: Shade) -> Shade:
    """Return a lighter shade, for black text on top."""
    return Shade(*(round(255 - DEPTH * (255 - part)) for part in shade))


def deepest(values: Float[Tensor, "pos"]) -> float:
    """Return the size with the deepest colour: the largest, or twice the second where the largest holds `MOST`.

    Then the one value that holds most does not bleach the others.
    """
    sizes = values.abs().sort(descending=True).values.tolist()
    alone = len(sizes) > 1 and sizes[1] and sizes[0] > MOST * sum(sizes)
    return (2 * sizes[1] if alone else sizes[0]) or 1.0


def sink(attribution: Attribution) -> Bool[Tensor, "pos"]:
    """Return a mask of the first word, if its share of the score is so large that it would hide the others."""
    first = (attribution.positions == 0) & ~(attribution.special | attribution.template)
    return first & (share_of(attribution.scores, first) > SINK) & (len(attribution) > 1)


def scaled_tokens(attribution: Attribution, *, special: bool = False) -> Bool[Tensor, "pos"]:
    """Return a mask of the tokens that set the scale of bars and colours: shown tokens except an attention sink."""
    shown = ~attribution.hidden | special
    others = shown & ~sink(attribution)
    return others if others.any() else shown


@dataclass(frozen=True)
class ColouredScores:
    """Scores as the colours of a view; hidden tokens have no colour, except with ``special``."""

    attribution: Attribution
    special: bool

    @cached_property
    def end(self) -> float:
        """The size of a score with the deepest colour."""
        scaled = self.attribution.scores[scaled_tokens(self.attribution, special=self.special)]
        return deepest(scaled if scaled.any() else self.attribution.scores)

    @cached_property
    def shown(self) -> Float[Tensor, "pos"]:
        """The scores, with 0 for a token without a colour."""
        return self.attribution.scores * (~self.attribution.hidden | self.special)

    @property
    def depths(self) -> list[float]:
        """The depth of each colour, between -1 and 1."""
        return (self.shown / self.end).clamp(-1, 1).tolist()

    @property
    def beyond(self) -> str:
        """A line on the token beyond the deepest colour, if any; an attention sink has its own (see `share_note`)."""
        sizes = self.attribution.scores.abs() * scaled_tokens(self.attribution, special=self.special)
        row, score = int(sizes.argmax()), float(self.attribution.scores[sizes.argmax()])
        token = f"{cut(repr(self.attribution.tokens[row]), 24)} at {int(self.attribution.positions[row])}"
        return f"{token} is beyond the scale: {score:.4g} ({self.share(score)})" if abs(score) > self.end else ""

    def share(self, score: float) -> str:
        """Return the share of a score in the sum of all sizes, in words."""
        return f"{percent_of(self.attribution.scores, score)} of the score"


def hidden_in(result: Attribution | SpanAttribution) -> Bool[Tensor, "all"]:
    """Return a mask of the tokens that views leave out, with no token of a span's answer among them."""
    hidden = result.summed.hidden
    return pad(hidden, (0, len(result.tokens) - len(hidden)))


def last_row(attribution: Attribution) -> int | None:
    """Return the row of the context's last token, which the prediction is read from; None if the token was removed."""
    end = len(attribution) + (attribution.diagnostics.left_out or 0) - 1
    return len(attribution) - 1 if int(attribution.positions[-1]) == end else None


def percent(share: float) -> str:
    """Return a share in percent with one decimal, but 0% and 100% only for exactly nothing and everything."""
    if 0 < share < 0.001:
        return "<0.1%"
    return ">99.9%" if 0.999 < share < 1 else f"{share:.1%}"


def percent_of(scores: Float[Tensor, "pos"], score: float | int) -> str:
    """Return the share of a score in the sum of all sizes, in percent."""
    return percent(abs(score) / (float(scores.abs().sum()) or inf))


def share_note(attribution: Attribution) -> str:
    """Return a line on the shares of hidden tokens and of an attention sink; empty without such tokens."""
    hidden, first = attribution.hidden, sink(attribution)
    if not attribution.scores.any():
        return ""
    lines = []
    if hidden.any():
        lines += [f"{_hidden_named(attribution)} {_whole_percent(share_of(attribution.scores, hidden))} of the score"]
    if first.any():
        share = _whole_percent(share_of(attribution.scores, first))
        lines += [f"{_quoted(attribution, first)} (first token) holds {share} of the score: attention sink"]
    return "; ".join(lines)


def _hidden_named(attribution: Attribution) -> str:
    """Return the hidden tokens as the subject of a sentence, with the verb."""
    hidden = attribution.hidden
    if bool((hidden & attribution.template).any()):
        others = " and special tokens" if bool((hidden & ~attribution.template).any()) else ""
        return f"tokens of the chat template{others} hold"
    if int(hidden.sum()) > 1:
        return "special tokens hold"
    kind = "first token, special" if bool(attribution.positions[hidden] == 0) else "special"
    return f"{_quoted(attribution, hidden)} ({kind}) holds"


def _quoted(attribution: Attribution, rows: Bool[Tensor, "pos"]) -> str:
    return cut(repr(attribution.tokens[int(rows.int().argmax())]), 24)


def _whole_percent(share: float) -> str:
    return percent(share) if 0 < share < 0.005 or 0.995 <= share < 1 else f"{share:.0%}"
