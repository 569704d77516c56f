"""Which message of a chat mattered: each with its score, and its share of the whole."""

from typing import NamedTuple

from heta_lens._util.chat_messages import TEMPLATE
from heta_lens.attribution import Attribution
from heta_lens.plots.attribution_text import percent
from heta_lens.plots.colours import BLUE, ORANGE, Coloured, Shade, coloured
from heta_lens.span_attribution import SpanAttribution


class MessageShare(NamedTuple):
    """A message with its score, how much of the whole score (sign aside) its tokens hold, and these."""

    role: str
    text: str
    score: float
    share: float
    shade: Shade
    tokens: list[Coloured]
    template: bool

    @property
    def percent(self) -> str:
        return percent(self.share)


def message_shares(attribution: Attribution | SpanAttribution) -> list[MessageShare]:
    """Every message, and last the template's own tokens."""
    scored = attribution if isinstance(attribution, Attribution) else attribution.summed
    positions = scored.positions.tolist()
    shown = dict(zip(positions, coloured(scored.tokens, positions, scored.scores), strict=True))
    whole = float(scored.scores.abs().sum())
    found = []
    for text, score, own, role in scored.by_message():
        part = [shown[position] for position in own]
        share = sum(abs(token.value) for token in part) / whole if whole else 0.0
        found.append(
            MessageShare(role, text, score, share, ORANGE if score < 0 else BLUE, part, template=role == TEMPLATE)
        )
    return found
