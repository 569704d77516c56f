"""Circuitsvis token views that work offline and cannot be broken by the text of a token."""

import re
from collections.abc import Sequence
from html import escape
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import pad

from heta_lens._util.html_view import View
from heta_lens.attribution import Attribution
from heta_lens.plots.scales import deepest, held, hidden_in, scale_end
from heta_lens.span_attribution import SpanAttribution


def circuitsvis(attribution: Attribution | SpanAttribution, *, special: bool = False) -> View:
    """Circuitsvis coloured tokens: shown by a notebook, or ``.save("page.html")``; needs no network.

    A span is coloured by all of its targets together, or by the one that is pointed at; one that was followed through
    a reasoning, by what came of that, and by the reasoning's tokens too. Special tokens and a chat template's are left
    out, except with ``special=True``.
    """
    if isinstance(attribution, Attribution):
        shown = ~attribution.hidden | special
        tokens, scores = _kept(attribution.tokens, shown), attribution.scores[shown]
        end = scale_end(attribution, special=special)
        return coloured_tokens(attribution.title, tokens, scores, "; ".join(attribution.notes), end)
    rows = [attribution.total, *(step.scores for step in attribution.steps)]
    names = ["all targets", *attribution.targets]
    if reasoning := attribution.reasoning:
        rows = [attribution.through, *rows, *(step.scores for step in reasoning)]
        written = (attribution.tokens[len(step)] for step in reasoning)
        names = ["through the reasoning", *names, *(f"reasoning: {token}" for token in written)]
    shown = ~hidden_in(attribution) | special
    values = torch.stack([pad(row, (0, len(attribution.tokens) - len(row))) for row in rows])
    notes = "; ".join(
        filter(None, ["point at a target, or at a token; each target has its own scale", held(attribution.summed)])
    )
    return tokens_by_target(attribution.title, _kept(attribution.tokens, shown), names, values[:, shown], notes)


def _kept(tokens: Sequence[str], shown: Bool[Tensor, "pos"]) -> list[str]:
    return [token for token, kept in zip(tokens, shown.tolist(), strict=True) if kept]


def coloured_tokens(
    title: str, tokens: Sequence[str], values: Float[Tensor, "pos"], notes: str = "", end: float | None = None
) -> View:
    """Tokens coloured by value: white at 0, deeper with size up to ``end``, blue above and orange below."""
    from circuitsvis.tokens import colored_tokens  # slow to import

    highest = deepest(values) if end is None else end
    # Circuitsvis colours the negative side only when the scale reaches there.
    lowest = -highest if bool((values < 0).any()) else 0.0
    shown = colored_tokens([_inert(token) for token in tokens], values.tolist(), lowest, highest)
    return _view(title, notes, shown)


def tokens_by_target(
    title: str, tokens: Sequence[str], targets: Sequence[str], values: Float[Tensor, "target pos"], notes: str = ""
) -> View:
    """Tokens coloured by the values of one target at a time, the one that is pointed at; each on its own scale."""
    from circuitsvis.tokens import colored_tokens_multi  # slow to import

    scaled = torch.stack([(row / deepest(row)).clamp(-1, 1) for row in values])
    shown = colored_tokens_multi(
        [_inert(token) for token in tokens], scaled.T.contiguous(), [_inert(_visible(target)) for target in targets]
    )
    return _view(title, notes, shown)


def _view(title: str, notes: str, shown: Any) -> View:
    caption = f"<p><strong>{escape(title)}</strong><br><small>{escape(notes)}</small></p>"
    # `local_src` holds the whole script and fetches nothing; circuitsvis' own notebook output asks the network.
    return View(title, f"<div>{caption}{shown.local_src}</div>")


def _visible(target: str) -> str:
    """The target's name on a button, where white space alone would be invisible."""
    return target if target.strip() else repr(target)


def _inert(token: str) -> str:
    """The token with an invisible character after every ``<`` and ``&``.

    Circuitsvis sets tokens as HTML without escaping them: ``<s>`` would be invisible, ``</script>`` would end the page.
    """
    return re.sub("[<&]", "\\g<0>\N{WORD JOINER}", token)
