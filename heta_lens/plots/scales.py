"""Scores as colours: white at 0, deeper with size, blue above and orange below."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import pad

from heta_lens._util.chat_messages import TEMPLATE
from heta_lens._util.text import cut
from heta_lens.attribution import Attribution
from heta_lens.diagnostics import share_of
from heta_lens.span_attribution import SpanAttribution


class Shade(NamedTuple):
    red: int
    green: int
    blue: int

    @property
    def css(self) -> str:
        return f"rgb({self.red},{self.green},{self.blue})"


WHITE, BLUE, ORANGE = Shade(255, 255, 255), Shade(33, 113, 217), Shade(201, 84, 10)


def shades(values: Float[Tensor, "pos"], end: float) -> list[Shade]:
    """The colour of every value, where ``end`` has the deepest."""
    return [shade_of(depth) for depth in (values / end).clamp(-1, 1).tolist()]


def shade_of(depth: float) -> Shade:
    """The colour of a depth from -1 to 1."""
    deep = BLUE if depth > 0 else ORANGE
    return Shade(*(round(start + (stop - start) * abs(depth)) for start, stop in zip(WHITE, deep, strict=True)))


def deepest(values: Float[Tensor, "pos"]) -> float:
    """Where colour is deepest: twice the second largest size, so that one outlier does not bleach the rest."""
    sizes = values.abs().sort(descending=True).values.tolist()
    return (min(sizes[0], 2 * sizes[1]) if len(sizes) > 1 and sizes[1] else sizes[0]) or 1.0


# -------------------------------------------------------------------------------------------------------------- shares
# How much of the whole score tokens and messages hold, in percent; which tokens a view shows, and scales to.


def percent(share: float) -> str:
    """With one digit after the point, but never as none or all of it where it is not."""
    if 0 < share < 0.001:
        return "<0.1%"
    return ">99.9%" if 0.999 < share < 1 else f"{share:.1%}"


def percent_of(scores: Float[Tensor, "pos"], score: float | int) -> str:
    """How much of all scores a score is; signs do not count."""
    return percent(abs(score) / (float(scores.abs().sum()) or 1.0))


SINK = 0.25  # of the score, above which a word that begins the text is called an attention sink
LITTLE = 1e-3  # of the score, below which the order of tokens says next to nothing


def sink(attribution: Attribution) -> Bool[Tensor, "pos"]:
    """The word that begins the text, if it holds so much of the score that the rest could not be seen beside it."""
    first = (attribution.positions == 0) & ~(attribution.special | attribution.template)
    return first & (share_of(attribution.scores, first) > SINK) & (len(attribution) > 1)


def scaling(attribution: Attribution, *, special: bool = False) -> Bool[Tensor, "pos"]:
    """The tokens that bars and colours are scaled to: those that a view shows, except an attention sink."""
    shown = ~attribution.hidden | special
    others = shown & ~sink(attribution)
    return others if others.any() else shown


def scale_end(attribution: Attribution, *, special: bool = False) -> float:
    """Which size has the deepest colour."""
    return deepest(attribution.scores[scaling(attribution, special=special)])


def hidden_in(attribution: Attribution | SpanAttribution) -> Bool[Tensor, "all"]:
    """The tokens that views leave out; of the answer of a span, none."""
    hidden = attribution.summed.hidden
    return pad(hidden, (0, len(attribution.tokens) - len(hidden)))


def held(attribution: Attribution) -> str:
    """What tokens hold that views leave out, or that begin the text as an attention sink; empty if there are none."""
    hidden, first = attribution.hidden, sink(attribution)
    if not attribution.scores.any():
        return ""
    lines = []
    if hidden.any():
        lines += [f"{_hidden(attribution)} {_rounded(share_of(attribution.scores, hidden))} of the score"]
    if first.any():
        share = _rounded(share_of(attribution.scores, first))
        lines += [f"{_token(attribution, first)} (first token) holds {share} of the score: attention sink"]
    if lines and share_of(attribution.scores, ~(hidden | first)) < LITTLE:
        lines += ["all other tokens together less than 0.1%"]
    return "; ".join(lines)


def _hidden(attribution: Attribution) -> str:
    """Which tokens are left out, with their verb."""
    hidden = attribution.hidden
    if bool((hidden & attribution.template).any()):
        others = bool((hidden & ~attribution.template).any())  # a message may have some
        return "special tokens and the chat template hold" if others else "tokens of the chat template hold"
    if int(hidden.sum()) > 1:
        return "special tokens hold"
    kind = "first token, special" if bool(attribution.positions[hidden] == 0) else "special"
    return f"{_token(attribution, hidden)} ({kind}) holds"


def _token(attribution: Attribution, rows: Bool[Tensor, "pos"]) -> str:
    """The first of these tokens, in quotes."""
    return cut(repr(attribution.tokens[int(rows.int().argmax())]), 24)


def _rounded(share: float) -> str:
    """In whole percent, but never as none or all of it where it is not."""
    return percent(share) if 0 < share < 0.005 or 0.995 <= share < 1 else f"{share:.0%}"


def last(attribution: Attribution) -> int | None:
    """The row of the context's last token, from which the prediction is read; None where it was removed."""
    end = len(attribution) + (attribution.diagnostics.left_out or 0) - 1
    return len(attribution) - 1 if int(attribution.positions[-1]) == end else None


class MessageShare(NamedTuple):
    """A message with its score, and how much of the whole score (sign aside) its tokens hold."""

    role: str
    text: str
    score: float
    share: float
    template: bool

    @property
    def percent(self) -> str:
        return percent(self.share)


def message_shares(attribution: Attribution | SpanAttribution) -> list[MessageShare]:
    """Every message, and last the template's own tokens."""
    scored = attribution.summed
    size_at = dict(zip(scored.positions.tolist(), scored.scores.abs().tolist(), strict=True))
    whole = sum(size_at.values()) or 1.0
    return [
        MessageShare(role, text, score, sum(size_at[place] for place in places) / whole, template=role == TEMPLATE)
        for text, score, places, role in scored.by_message()
    ]


# ------------------------------------------------------------------------------------------------------- score formula
# How HETA's score is made of its parts, in the numbers of an attribution, so that a reader can check a row.


WEIGHTS = {"curvature": "beta", "information": "gamma"}  # and the options that say them
DIVISORS = {"sum": torch.sum, "max": torch.max}
CLOSE = 1e-4  # of the largest score


class Term(NamedTuple):
    """A part, what it is multiplied by, and what it is divided by first."""

    part: str
    weight: float
    divisor: float | None

    @property
    def words(self) -> str:
        weight = "" if self.weight == 1 else f"{self.weight:.4g} × "
        return f"{weight}{self.part}" + ("" if self.divisor is None else f" / {self.divisor:.4g}")

    def of(self, parts: Mapping[str, Float[Tensor, "pos"]]) -> Float[Tensor, "pos"]:
        """What it adds to the score, the gate included."""
        return parts["gate"].double() * self.weight * parts[self.part].double() / (self.divisor or 1)


def score_formula(attribution: Attribution) -> str:
    """``score = gate × (0.5 × curvature + 0.5 × information)``; empty where the parts do not give the scores."""
    if attribution.options.get("combine") == "geometric":
        return _product(attribution)
    balance, terms = attribution.options.get("balance"), score_terms(attribution)
    if _divided(attribution) and attribution.diagnostics.left_out:
        return f"the score divides each part by its {balance} over the whole context, of which tokens are left out here"
    if terms is None:
        return ""
    why = f", where balance={balance!r} divides each part by its {balance}"
    return _in_words(terms) + (why if _divided(attribution) else "")


def score_terms(attribution: Attribution) -> list[Term] | None:
    """What is added up to the score; nothing, if it is the gate alone. None, where the parts do not give the scores."""
    parts, balance = attribution.parts, attribution.options.get("balance")
    if "gate" not in parts or not parts.keys() <= {"gate", *WEIGHTS}:
        return None
    given = {name: attribution.options.get(option) for name, option in WEIGHTS.items()}
    for weights in (given, {}):  # of variants with one part, whose weight is 1
        terms = [_term(name, parts[name], weights.get(name), balance) for name in WEIGHTS if name in parts]
        if _gives_scores(attribution, terms):
            return terms
    return None


def _product(attribution: Attribution) -> str:
    """The same of a geometric score."""
    if not attribution.parts:
        return ""
    beta, gamma = (attribution.options[name] for name in ("beta", "gamma"))
    powers = f"curvature^{beta / (beta + gamma):.4g}", f"information^{gamma / (beta + gamma):.4g}"
    return " × ".join(["score = gate", *powers]) + (", with the sign of information" if attribution.signed else "")


def _divided(attribution: Attribution) -> bool:
    """Whether parts are divided before they are added."""
    parts = attribution.parts.keys()
    return attribution.options.get("balance") in DIVISORS and len(parts) > 1 and parts <= {"gate", *WEIGHTS}


def _term(name: str, part: Float[Tensor, "pos"], weight: object, balance: object) -> Term:
    divide = DIVISORS.get(balance) if isinstance(balance, str) else None
    divisor = float(divide(part.double())) if divide is not None and part.any() else None
    return Term(name, weight if isinstance(weight, int | float) else 1, divisor)


def _gives_scores(attribution: Attribution, terms: Sequence[Term]) -> bool:
    """Whether the formula is true of these numbers."""
    parts, scores = attribution.parts, attribution.scores.double()
    made = torch.stack([term.of(parts) for term in terms]).sum(0) if terms else parts["gate"].double()
    return bool(((made - scores).abs() <= CLOSE * scores.abs().max()).all())


def _in_words(terms: Sequence[Term]) -> str:
    factors = " + ".join(term.words for term in terms)
    return "score = gate" + (f" × ({factors})" if len(terms) > 1 else f" × {factors}" if terms else "")
