"""The gate M of Eq. 4: the attention-weighted value flow from every token to the predicted token.

``M[i] ∝ Σ_{l,h} Φ^{(l,h)}(i→T) · ‖v_i^{(l,h)} W_O^{(h)}‖``, sum 1. The flow Φ is walked from the last layer down with
one row of positions, so it costs O(L·H·N²) and never forms a product of two N×N matrices. Between layers half of a
position's stream is its residual and half the heads' mean attention; rows are not renormalised, so what an attention
sink swallows is gone.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, TypeAlias

import torch
from einops import einsum, repeat
from jaxtyping import Float
from torch import Tensor

from heta_lens.model.hooks import head_outputs

Flow: TypeAlias = Literal["suffix", "prefix_head", "rollout", "direct"]
PatternsByLayer: TypeAlias = Sequence[Float[Tensor, "head query key"]]
"""Patterns by layer, to be read once: without cached patterns, every read runs the model."""

NormsByLayer: TypeAlias = Sequence[Float[Tensor, "head pos"]]


def gate(patterns: PatternsByLayer, norms: NormsByLayer, flow: Flow = "suffix") -> tuple[Float[Tensor, "pos"], float]:
    """Return M and the normaliser Z; without any flow, Z is 0 and M uniform."""
    mass = (transport(patterns, flow) * torch.stack([*norms])).sum((0, 1))
    total = mass.sum()
    if total == 0:
        return torch.full_like(mass, 1 / len(mass)), 0.0
    return mass / total, float(total)


def value_norms(
    values: Iterable[Float[Tensor, "pos group d_head"]],
    outputs: Iterable[Float[Tensor, "head d_head d"]],
    order: int = 1,
) -> list[Float[Tensor, "head pos"]]:
    """Return ``‖v_i W_O‖`` by layer, one head at a time: all heads together need as much memory as an MLP."""
    by_layer = []
    for value, output in zip(values, outputs, strict=True):
        share = len(output) // value.shape[1]  # heads with the same values
        wrote = (head_outputs(value[:, [head // share]], output[[head]])[0] for head in range(len(output)))
        by_layer.append(torch.stack([torch.linalg.vector_norm(each, ord=order, dim=-1) for each in wrote]))
    return by_layer


def transport(patterns: PatternsByLayer, flow: Flow) -> Float[Tensor, "layer head pos"]:
    """Return Φ^{(l,h)}(i→T): the share of a head's flow from position i that reaches the last position."""
    if flow == "direct":  # the attention of the last position, in every head
        return torch.stack([pattern[:, -1] for pattern in patterns])
    if flow == "suffix":
        return torch.stack([*_suffix(patterns)][::-1])
    rows, heads = None, 0
    for pattern in reversed(patterns):
        heads = len(pattern)
        if flow == "rollout":  # paths through all layers, averaged over heads: the same row for every layer and head
            rows = _mix(_last_position(pattern) if rows is None else rows, pattern.mean(0))
        else:  # paths from the input up to layer l that stay in a head (the authors' released code)
            start = repeat(_last_position(pattern), "pos -> 1 head pos", head=heads)
            rows = start if rows is None else torch.cat([start, rows])
            rows = (rows + einsum(rows, pattern, "l head query, head query key -> l head key")) / 2
    assert rows is not None, "there is at least one layer"
    return repeat(rows, "pos -> l head pos", l=len(patterns), head=heads) if flow == "rollout" else rows


def _suffix(patterns: PatternsByLayer) -> Iterator[Float[Tensor, "head key"]]:
    """Yield Φ from the last layer down: ``Φ = r A``, then ``r ← ½r + ½ r mean_h A``."""
    row = None
    for pattern in reversed(patterns):
        row = _last_position(pattern) if row is None else row
        yield einsum(row, pattern, "query, head query key -> head key")
        row = _mix(row, pattern.mean(0))


def _mix(row: Float[Tensor, "query"], attention: Float[Tensor, "query key"]) -> Float[Tensor, "key"]:
    return (row + row @ attention) / 2


def _last_position(pattern: Float[Tensor, "head query key"]) -> Float[Tensor, "key"]:
    row = torch.zeros_like(pattern[0, 0])
    row[-1] = 1
    return row
