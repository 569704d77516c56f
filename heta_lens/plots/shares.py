"""How much of the whole score tokens and messages hold, in percent."""

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from heta_lens._util.chat_messages import TEMPLATE
from heta_lens.attribution import Attribution
from heta_lens.span_attribution import SpanAttribution


def percent(share: float) -> str:
    """With one digit after the point, but never as none or all of it where it is not."""
    if 0 < share < 0.001:
        return "<0.1%"
    return ">99.9%" if 0.999 < share < 1 else f"{share:.1%}"


def percent_of(scores: Float[Tensor, "pos"], score: float | int) -> str:
    """How much of all scores a score is; signs do not count."""
    return percent(abs(score) / (float(scores.abs().sum()) or 1.0))


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
