"""A span as one text, the answer after its prompt, and what a page shows of every target."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from heta_lens._util.chat_messages import Messages
from heta_lens._util.printable_text import single_line
from heta_lens.attribution import Attribution
from heta_lens.plots.view_data import MEANINGS, Shown, packed_halves
from heta_lens.span_attribution import SpanAttribution


def span_values(span: SpanAttribution) -> list[Shown]:
    """What its tokens can be coloured by: all targets together, through the model's reasoning if it was followed.

    And what the scores are made of, also added up over the targets.
    """
    through = {"through the reasoning": span.through} if span.reasoning else {}
    parts = {name: sum_before(span, [step.parts[name] for step in span.steps]) for name in common_parts(span)}
    rows = {**through, "all targets": span.total, **parts}
    what = {name: f"{MEANINGS.get(name, name)}; added up over the targets, as the scores are" for name in parts}
    return [Shown(name, _padded(row, len(span.tokens)), what=what.get(name, "")) for name, row in rows.items()]


def common_parts(span: SpanAttribution) -> list[str]:
    """The parts that every step has."""
    first, *others = (*span.steps, *span.reasoning)
    return [name for name in first.parts if all(name in step.parts for step in others)]


def sum_before(span: SpanAttribution, rows: Sequence[Float[Tensor, "_"]]) -> Float[Tensor, "pos"]:
    """Each target's values added up, of the tokens before the span."""
    return torch.stack([row[: span.start] for row in rows]).sum(0)


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
    """Each target's scores, their parts, and the standard errors of the scores, if all of them have some."""
    steps = (*span.reasoning, *span.steps)
    errors = [error for step in steps if (error := step.standard_errors.get("scores")) is not None]
    return {
        "targets": [*map(len, steps)],
        **_packed_rows([step.scores for step in steps]),
        "parts": {single_line(name): _packed_rows([step.parts[name] for step in steps]) for name in common_parts(span)},
        "errors": _packed_rows(errors) if len(errors) == len(steps) else None,
    }


def _packed_rows(rows: Sequence[Float[Tensor, "_"]]) -> dict[str, Any]:
    """In half precision, as shares of the largest size of each."""
    values = [row.detach().cpu().double().numpy() for row in rows]
    scales = [float(np.nanmax(np.abs(row), initial=0.0)) or 1.0 for row in values]
    shares = [row / scale for row, scale in zip(values, scales, strict=True)]
    return {"scales": scales, "halves": packed_halves(np.concatenate(shares))}
