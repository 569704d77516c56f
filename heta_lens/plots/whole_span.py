"""A span as one text, the answer after its prompt, and what a page shows of every target."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from heta_lens._util.chat_messages import Messages
from heta_lens.attribution import Attribution
from heta_lens.plots.view_data import Shown, packed_halves
from heta_lens.span_attribution import SpanAttribution


def span_values(span: SpanAttribution) -> list[Shown]:
    """What its tokens can be coloured by: all targets together, through the model's reasoning if it was followed."""
    names = (["through the reasoning"] if span.reasoning else []) + ["all targets"]
    rows = ([span.through] if span.reasoning else []) + [span.total]
    return [Shown(name, _padded(row, len(span.tokens))) for name, row in zip(names, rows, strict=True)]


def whole_text(span: SpanAttribution) -> Attribution:
    """The prompt and the answer as one attribution, by the sum over all targets."""
    last, summed, count = span.steps[-1], span.summed, len(span.tokens)
    target = last.target if isinstance(last.target, int) else 0
    end = len(last.text)
    offsets = torch.cat([last.offsets, last.offsets.new_tensor([[end, end + len(span.tokens[-1])]])])
    return replace(
        summed,
        ids=torch.cat([last.ids, last.ids.new_tensor([target])]),
        tokens=span.tokens,
        positions=torch.arange(count),
        offsets=offsets,
        special=pad(last.special, (0, 1)),
        text=last.text + span.tokens[-1],
        scores=_padded(summed.scores, count),
        messages=_longer(last.messages),
    )


def _longer(messages: Messages | None) -> Messages | None:
    """The last target belongs to what the token before it belongs to."""
    if messages is None:
        return None
    return replace(messages, owners=torch.cat([messages.owners, messages.owners[-1:]]))


def _padded(scores: Float[Tensor, "pos"], count: int) -> Float[Tensor, "all"]:
    return pad(scores, (0, count - len(scores)))


def matrix(span: SpanAttribution) -> dict[str, Any]:
    """Each target's scores in half precision, as shares of its largest size."""
    rows = [step.scores.detach().cpu().double().numpy() for step in (*span.reasoning, *span.steps)]
    scales = [float(np.abs(row).max()) or 1.0 for row in rows]
    halves = np.concatenate([row / scale for row, scale in zip(rows, scales, strict=True)])
    return {"targets": [len(row) for row in rows], "scales": scales, "halves": packed_halves(halves)}
