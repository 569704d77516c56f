"""The gate M of Eq. 4: how much attention-weighted value flows from each token to the predicted one.

``M[i] ∝ Σ_{l,h} Φ^{(l,h)}(i→T) · ‖v_i^{(l,h)} W_O^{(h)}‖``, sum 1. The flow Φ is walked from the last layer down with
one row of positions, so it costs O(L·H·N²) and never forms a product of two N×N matrices. Between layers half of a
position's stream is its residual and half the heads' mean attention; rows are not renormalised, so what an attention
sink swallows is gone.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, TypeAlias, get_args

import torch
from einops import einsum, repeat
from jaxtyping import Float
from torch import Tensor

Flow: TypeAlias = Literal["suffix", "suffix_input", "prefix_head", "rollout", "direct"]
Patterns: TypeAlias = Sequence[Float[Tensor, "head query key"]]


def gate(
    patterns: Patterns, norms: Sequence[Float[Tensor, "head pos"]], flow: Flow = "suffix"
) -> tuple[Float[Tensor, "pos"], float]:
    """M and its normaliser Z; if no value flows at all, Z is 0 and M uniform."""
    flowing = einsum(transport(patterns, flow), torch.stack(list(norms)), "l h pos, l h pos -> l pos")
    mass = _to_input(flowing, patterns) if flow == "suffix_input" else flowing.sum(0)
    total = mass.sum()
    if total == 0:
        return torch.full_like(mass, 1 / len(mass)), 0.0
    return mass / total, float(total)


def by_head(
    patterns: Patterns, norms: Sequence[Float[Tensor, "head pos"]], flow: Flow = "suffix"
) -> Float[Tensor, "layer head pos"]:
    """What each head adds to M: over all heads it sums to M (to 0, if no value flows at all)."""
    flowing = transport(patterns, flow) * torch.stack(list(norms))
    if flow == "suffix_input":
        flowing = torch.stack([_handed_back(carried, layer, patterns) for layer, carried in enumerate(flowing)])
    total = flowing.sum()
    return flowing / total if total else flowing


def value_norms(
    values: Float[Tensor, "pos group d_head"], output: Float[Tensor, "head d_head d"], order: int = 1
) -> Float[Tensor, "head pos"]:
    """``‖v_i W_O‖`` for every head; query heads that share a group's values see them repeated."""
    shared = repeat(values, "pos group d_head -> pos (group share) d_head", share=output.shape[0] // values.shape[1])
    written = einsum(shared, output, "pos head d_head, head d_head d -> head pos d")
    return torch.linalg.vector_norm(written, ord=order, dim=-1)


def norms_by_layer(
    values: Iterable[Float[Tensor, "pos group d_head"]],
    outputs: Iterable[Float[Tensor, "head d_head d"]],
    order: int = 1,
) -> list[Float[Tensor, "head pos"]]:
    return [value_norms(one, output, order) for one, output in zip(values, outputs, strict=True)]


def transport(patterns: Patterns, flow: Flow) -> Float[Tensor, "layer head pos"]:
    """Φ^{(l,h)}(i→T): the weight with which what layer l, head h takes from position i reaches the last position."""
    return _FLOWS[flow](patterns)


def _suffix(patterns: Patterns) -> Float[Tensor, "layer head pos"]:
    """Paths from layer l to the output: ``Φ = r A``, then ``r ← ½r + ½ r mean_h A``, from the last layer down."""
    row, flows = _last_position(patterns), []
    for pattern in reversed(patterns):
        flows.append(einsum(row, pattern, "query, head query key -> head key"))
        row = _mix(row, pattern.mean(0))
    return torch.stack(flows[::-1])


def _prefix_head(patterns: Patterns) -> Float[Tensor, "layer head pos"]:
    """Paths from the input up to layer l that stay in one head (the authors' released code)."""
    start = repeat(_last_position(patterns), "pos -> 1 head pos", head=patterns[0].shape[0])
    rows = start[:0]
    for pattern in reversed(patterns):
        rows = torch.cat([start, rows])
        rows = (rows + einsum(rows, pattern, "l head query, head query key -> l head key")) / 2
    return rows


def _rollout(patterns: Patterns) -> Float[Tensor, "layer head pos"]:
    """Paths through all layers, averaged over heads: one row, the same for every layer and head."""
    row = _last_position(patterns)
    for pattern in reversed(patterns):
        row = _mix(row, pattern.mean(0))
    return repeat(row, "pos -> l head pos", l=len(patterns), head=patterns[0].shape[0])


def _direct(patterns: Patterns) -> Float[Tensor, "layer head pos"]:
    """One step: what the last position attends to in each head."""
    return torch.stack([pattern[:, -1] for pattern in patterns])


_FLOWS: dict[Flow, Callable[[Patterns], Tensor]] = {
    "suffix": _suffix,
    "suffix_input": _suffix,
    "prefix_head": _prefix_head,
    "rollout": _rollout,
    "direct": _direct,
}
assert set(_FLOWS) == set(get_args(Flow))


def _to_input(flowing: Float[Tensor, "layer pos"], patterns: Patterns) -> Float[Tensor, "pos"]:
    """Hand what position i carries at layer l back to the input tokens that reached it."""
    mass = torch.zeros_like(flowing[0])
    for carried, pattern in zip(reversed(flowing), reversed(patterns), strict=True):
        mass = _mix(mass, pattern.mean(0)) + carried
    return mass


def _handed_back(carried: Float[Tensor, "head pos"], layer: int, patterns: Patterns) -> Float[Tensor, "head pos"]:
    """The same for what a single layer's heads carry, through the layers below it."""
    for below in reversed(range(layer)):
        carried = _mix(carried, patterns[below].mean(0))
    return carried


def _mix(row: Float[Tensor, "*rows query"], attention: Float[Tensor, "query key"]) -> Float[Tensor, "*rows key"]:
    return (row + row @ attention) / 2


def _last_position(patterns: Patterns) -> Float[Tensor, "pos"]:
    row = torch.zeros_like(patterns[0][0, 0])
    row[-1] = 1
    return row
