"""Circuitsvis token views for offline use, safe from the text of tokens."""

import re
from collections.abc import Sequence
from html import escape
from itertools import compress

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from heta_lens._util.html_view import View
from heta_lens.attribution import Attribution
from heta_lens.plots.scales import ColouredScores, deepest, hidden_in, share_note
from heta_lens.span_attribution import SpanAttribution


def circuitsvis(attribution: Attribution | SpanAttribution, *, special: bool = False) -> View:
    """Return circuitsvis coloured tokens: a notebook shows the view, ``.save("page.html")`` keeps it, without network.

    A span is coloured by the sums over all targets, or by the target under the pointer. A span that was followed
    through a reasoning is coloured by the score through the reasoning first, and by the reasoning's tokens too. Special
    tokens and a chat template's are left out, except with ``special=True``.
    """
    from circuitsvis import tokens as views  # slow to import

    shown = ~hidden_in(attribution) | special
    tokens = [_inert(token) for token in compress(attribution.tokens, shown.tolist())]
    if isinstance(attribution, Attribution):
        scores, end = attribution.scores[shown], ColouredScores(attribution, special).end
        # Circuitsvis colours the negative side only when the scale reaches there.
        lowest = -end if bool((scores < 0).any()) else 0.0
        view, notes = views.colored_tokens(tokens, scores.tolist(), lowest, end), attribution.notes
    else:
        steps = zip(attribution.targets, (step.scores for step in attribution.steps), strict=True)
        named = [("all targets", attribution.total), *steps]
        if reasoning := attribution.reasoning:
            written = [(f"reasoning: {attribution.tokens[len(step)]}", step.scores) for step in reasoning]
            named = [("through the reasoning", attribution.through), *named, *written]
        values = [pad(row, (0, len(attribution.tokens) - len(row)))[shown] for _, row in named]
        scaled = torch.stack([(row / deepest(row)).clamp(-1, 1) for row in values], 1)
        names = [_inert(name if name.strip() else repr(name)) for name, _ in named]  # white space alone is invisible
        view = views.colored_tokens_multi(tokens, scaled, names)
        notes = ["point at a target, or at a token; each target has its own scale", share_note(attribution.summed)]
    below = escape("; ".join(filter(None, notes)))
    caption = f"<p><strong>{escape(attribution.title)}</strong><br><small>{below}</small></p>"
    # `local_src` holds the whole script and fetches nothing; circuitsvis' own notebook output asks the network.
    return View(attribution.title, f"<div>{caption}{view.local_src}</div>")


def circuitsvis_heads(
    title: str, tokens: Sequence[str], names: Sequence[str], patterns: Float[Tensor, "head query key"]
) -> View:
    """Return circuitsvis' view of the attention patterns of heads, which needs no network."""
    from circuitsvis.attention import attention_heads  # slow to import

    view = attention_heads(patterns, [*map(_inert, tokens)], [*names])
    return View(title, f"<div><p><strong>{escape(title)}</strong></p>{view.local_src}</div>")


def _inert(token: str) -> str:
    """Return the token with an invisible character after every ``<`` and ``&``.

    Circuitsvis sets tokens as HTML without escaping: ``<s>`` would be invisible, ``</script>`` would end the page.
    """
    return re.sub("[<&]", "\\g<0>\N{WORD JOINER}", token)
