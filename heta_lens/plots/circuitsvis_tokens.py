"""Circuitsvis token views for offline use, safe from the text of tokens."""

import re
from collections.abc import Sequence
from html import escape
from itertools import compress
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from heta_lens._util.html_view import View
from heta_lens.attribution import Attribution
from heta_lens.plots.scales import deepest, hidden_in, scale_end, share_note
from heta_lens.span_attribution import SpanAttribution


def circuitsvis(attribution: Attribution | SpanAttribution, *, special: bool = False) -> View:
    """Return circuitsvis coloured tokens: a notebook shows the view, ``.save("page.html")`` keeps it, without network.

    A span is coloured by the sums over all targets, or by the target under the pointer. A span that was followed
    through a reasoning is coloured by the score through the reasoning first, and by the reasoning's tokens too. Special
    tokens and a chat template's are left out, except with ``special=True``.
    """
    shown = ~hidden_in(attribution) | special
    tokens = [*compress(attribution.tokens, shown.tolist())]
    if isinstance(attribution, Attribution):
        notes, end = "; ".join(attribution.notes), scale_end(attribution, special=special)
        return coloured_tokens(attribution.title, tokens, attribution.scores[shown], notes, end)
    steps = zip(attribution.targets, (step.scores for step in attribution.steps), strict=True)
    named = [("all targets", attribution.total), *steps]
    if reasoning := attribution.reasoning:
        written = [(f"reasoning: {attribution.tokens[len(step)]}", step.scores) for step in reasoning]
        named = [("through the reasoning", attribution.through), *named, *written]
    values = [pad(row, (0, len(attribution.tokens) - len(row)))[shown] for _, row in named]
    scaled = torch.stack([(row / deepest(row)).clamp(-1, 1) for row in values], 1)
    names = [_inert(name if name.strip() else repr(name)) for name, _ in named]  # white space alone is invisible
    notes = ["point at a target, or at a token; each target has its own scale", share_note(attribution.summed)]
    from circuitsvis.tokens import colored_tokens_multi  # slow to import

    view = colored_tokens_multi([*map(_inert, tokens)], scaled, names)
    return _view(attribution.title, "; ".join(filter(None, notes)), view)


def coloured_tokens(
    title: str, tokens: Sequence[str], values: Float[Tensor, "pos"], notes: str = "", end: float | None = None
) -> View:
    """Return tokens coloured by value: white at 0, deeper with size up to ``end``, blue above and orange below."""
    from circuitsvis.tokens import colored_tokens  # slow to import

    highest = deepest(values) if end is None else end
    # Circuitsvis colours the negative side only when the scale reaches there.
    lowest = -highest if bool((values < 0).any()) else 0.0
    return _view(title, notes, colored_tokens([*map(_inert, tokens)], values.tolist(), lowest, highest))


def _view(title: str, notes: str, shown: Any) -> View:
    caption = f"<p><strong>{escape(title)}</strong><br><small>{escape(notes)}</small></p>"
    # `local_src` holds the whole script and fetches nothing; circuitsvis' own notebook output asks the network.
    return View(title, f"<div>{caption}{shown.local_src}</div>")


def _inert(token: str) -> str:
    """Return the token with an invisible character after every ``<`` and ``&``.

    Circuitsvis sets tokens as HTML without escaping: ``<s>`` would be invisible, ``</script>`` would end the page.
    """
    return re.sub("[<&]", "\\g<0>\N{WORD JOINER}", token)
