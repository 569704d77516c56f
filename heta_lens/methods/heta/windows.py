"""Windows over a long context, and what to make of several answers about one token."""

from collections.abc import Sequence
from itertools import pairwise
from operator import index
from typing import NamedTuple, SupportsIndex

import torch
from einops import reduce
from jaxtyping import Float
from torch import Tensor

from heta_lens._util.numerics import token_count


class Window(NamedTuple):
    """Positions ``start:stop`` of a context."""

    start: int
    stop: int


def windows(length: int, size: SupportsIndex, overlap: float | int) -> list[Window]:
    """Windows of one size that cover a context, each the next ``size · (1 - overlap)`` further on.

    The last is moved back to end with the context; a context no longer than one window is a single one.
    """
    size = index(size)
    if size >= length:
        return [Window(0, length)]
    stride = token_count(1 - overlap, size, "nearest", least=1)
    starts = [*range(0, length - size, stride), length - size]
    return [Window(start, start + size) for start in starts]


def most_central(spans: Sequence[Window]) -> list[Window]:
    """For each window the positions nearest to its middle (the later of two as near): all are in one."""
    edges = [(one.start + one.stop + after.start + after.stop + 1) // 4 for one, after in pairwise(spans)]
    return [Window(*ends) for ends in pairwise([spans[0].start, *edges, spans[-1].stop])]


def averaged(
    parts: Sequence[Float[Tensor, "*kind _"]], spans: Sequence[Window], length: int
) -> Float[Tensor, "*kind pos"]:
    """Each token's mean over the stretches it lies in."""
    total = parts[0].new_zeros(*parts[0].shape[:-1], length)
    times = parts[0].new_zeros(length)
    for part, (start, stop) in zip(parts, spans, strict=True):
        total[..., start:stop] += part
        times[start:stop] += 1
    return total / times


def window_gate(parts: Sequence[Float[Tensor, "part"]], spans: Sequence[Window], length: int) -> Float[Tensor, "pos"]:
    """The gate as each window sees it: a share of that window's flow, averaged, and made to sum to 1 again."""
    shares = [part / part.sum() if part.any() else torch.full_like(part, 1 / len(part)) for part in parts]
    gate = averaged(shares, spans, length)
    return gate / gate.sum()


def leakage(gate: Float[Tensor, "pos"], windowed: Float[Tensor, "pos"]) -> dict[str, float]:
    """How far windows move the gate: at the worst token (``largest``), and the mass that changes place (``total``)."""
    gap = (gate - windowed).abs()
    return {"largest": float(gap.max()), "total": float(gap.sum()) / 2}


def edge_gap(
    scores: Float[Tensor, "pos"], windowed: Float[Tensor, "pos"], spans: Sequence[Window], reach: int = 16
) -> float:
    """The share of the score that windows move among tokens within ``reach`` of an edge between them."""
    length = len(scores)
    edges = torch.tensor([edge for span in spans for edge in span if 0 < edge < length])
    places = torch.arange(length)
    near = (places[:, None] + 0.5 - edges).abs() <= reach if len(edges) else torch.zeros(length, 1, dtype=torch.bool)
    gap = (scores / scores.sum() - windowed / windowed.sum()).abs()
    return float(gap[reduce(near, "pos edge -> pos", "any").to(gap.device)].sum()) / 2
