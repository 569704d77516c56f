"""How much of the whole score tokens and messages hold, in percent; which tokens a view shows, and scales to."""

from typing import NamedTuple

from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import pad

from heta_lens._util.chat_messages import TEMPLATE
from heta_lens._util.printable_text import cut
from heta_lens.attribution import Attribution
from heta_lens.diagnostics import share_of
from heta_lens.plots.colours import deepest
from heta_lens.span_attribution import SpanAttribution


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
