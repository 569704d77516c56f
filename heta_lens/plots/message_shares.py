"""Which message of a chat mattered: each with its score, and its share of the whole."""

from typing import NamedTuple

from heta_lens._util.chat_messages import TEMPLATE
from heta_lens.attribution import Attribution
from heta_lens.plots.attribution_text import percent
from heta_lens.span_attribution import SpanAttribution


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
    scored = attribution if isinstance(attribution, Attribution) else attribution.summed
    size_at = dict(zip(scored.positions.tolist(), scored.scores.abs().tolist(), strict=True))
    whole = sum(size_at.values()) or 1.0
    return [
        MessageShare(role, text, score, sum(size_at[place] for place in places) / whole, template=role == TEMPLATE)
        for text, score, places, role in scored.by_message()
    ]
