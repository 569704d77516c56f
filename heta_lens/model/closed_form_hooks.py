"""Hooks that give a model's norms, rotary embeddings, softmaxes and activations their derivatives in closed form.

They are for the time in which the graph of a gradient is built. Values do not change. A part gets its closed form only
where the formula, applied to the same inputs, gives what the model computed; autograd differentiates everything else.
"""

import re
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from heta_lens.model.adapter import ModelAdapter, is_hooked_transformer
from heta_lens.model.closed_forms import Normalised, Pointwise, Rotated, Softmax, agree, in_closed_form
from heta_lens.model.hooks import Hook, PositionHook, pattern_name, queries_keys_names, rotated_names, scores_name
from heta_lens.model.norms_and_neurons import ACTIVATIONS, neurons, norms

Hooks: TypeAlias = Iterator[tuple[str, Hook]]


def closed_form_hooks(adapter: ModelAdapter) -> list[tuple[str, Hook]]:
    """For every part of this model that has a closed form."""
    hooks = [*_at_neurons(adapter)]
    if is_hooked_transformer(adapter.model):  # a bridge computes the rest elsewhere, and shows it
        hooks += [*_at_norms(adapter), *_at_attention(adapter)]
    return hooks


# ------------------------------------------------------------------------------------------------------------- neurons
def _at_neurons(adapter: ModelAdapter) -> Hooks:
    config = adapter.model.cfg
    mixed, gated = getattr(config, "num_experts", None), bool(getattr(config, "gated_mlp", False))
    if mixed or not re.fullmatch(ACTIVATIONS, str(getattr(config, "act_fn", None))):
        return
    for layer in range(adapter.layers):
        mlp = neurons(adapter, layer)
        if mlp is None or not {mlp.before, mlp.after} <= adapter.points.keys() or gated != (mlp.gated is not None):
            continue
        before = list[Tensor]()
        for name in (mlp.before, mlp.gated):
            if name is not None:
                yield name, PositionHook(before.append)
        yield mlp.after, PositionHook(_activated, before)


def _activated(before: list[Tensor], after: Tensor) -> Tensor:
    inputs = [before.pop() for _ in [*before]]
    form = Pointwise.of(after, inputs) if after.requires_grad else None
    return after if form is None else in_closed_form(form, after, inputs)


# --------------------------------------------------------------------------------------------------------------- norms
class Normed(NamedTuple):
    """The output of a norm: as autograd recorded it, and in closed form."""

    recorded: Tensor
    closed: Tensor


def _at_norms(adapter: ModelAdapter) -> Hooks:
    for norm in norms(adapter):
        scales, results = list[Tensor](), list[Normed]()
        yield norm.scale, PositionHook(_steady, scales)
        yield norm.result, PositionHook(_normalised, float(adapter.model.cfg.eps), scales, results)


def _steady(scales: list[Tensor], scale: Tensor) -> Tensor:
    """A constant to divide by: how it depends on what it divides is part of the closed form."""
    scales.append(scale)
    return scale.detach()


def _normalised(eps: float, scales: list[Tensor], results: list[Normed], value: Tensor) -> Tensor:
    """A layer's first norm runs three times, for queries, keys and values: on one tensor, with one result."""
    scale, constant = scales.pop(), value.detach()
    if results and _of_same_tensor(results[-1].recorded, value):
        return results[-1].closed
    square = scale.detach().square()
    if not agree(square - eps, square * constant.square().mean(-1, keepdim=True)):
        return value * (scale.detach() / scale)  # which gives back how the scale changes
    results.append(Normed(value, in_closed_form(Normalised(constant), value, [value])))
    return results[-1].closed


def _of_same_tensor(one: Tensor, other: Tensor) -> bool:
    """Whether a norm gave both for the same tensor: what it divided (and may have centred) is one node of the graph."""
    source = _source(one)
    return source is not None and source is _source(other) and torch.equal(one, other)


def _source(normalised: Tensor) -> Any:
    node = normalised.grad_fn and normalised.grad_fn.next_functions[0][0]
    return node.next_functions[0][0] if node is not None and node.name() == "SubBackward0" else node


# ----------------------------------------------------------------------------------------------------------- attention
def _at_attention(adapter: ModelAdapter) -> Hooks:
    sinks = bool(getattr(adapter.model.cfg, "use_attention_sinks", False))
    for layer in range(adapter.layers):
        for name, rotated in zip(queries_keys_names(layer), rotated_names(layer), strict=True):
            if rotated in adapter.points:
                before = list[Tensor]()
                yield name, before.append
                yield rotated, partial(_rotated, adapter.blocks[layer].attn, before)
        scores = list[Tensor]()
        yield scores_name(layer), scores.append
        yield pattern_name(layer), partial(_pattern, sinks, scores)


def _rotated(attention: Any, noted: list[Tensor], value: Float[Tensor, "batch pos head d"]) -> Tensor:
    """Queries or keys of a run from the first position on; kept keys are rotated as well, and left as they are."""
    before, rotation = noted.pop(), _rotation(attention, value)
    if before.shape == value.shape and agree(value.detach(), rotation.turned(before.detach())):
        return in_closed_form(rotation, value, [before])
    return value


def _rotation(attention: Any, like: Float[Tensor, "batch pos head d"]) -> Rotated:
    """Of the first positions of a prompt."""
    length, width, turned = like.shape[1], like.shape[3], attention.rotary_cos.shape[1]
    adjacent, entries = bool(attention.cfg.rotary_adjacent_pairs), torch.arange(turned, device=like.device)
    first = entries % 2 == 0 if adjacent else entries < turned // 2
    cos, sin = (own[:length].to(like) for own in (attention.rotary_cos, attention.rotary_sin))
    sin = torch.where(first, -sin, sin)
    cos, sin = pad(cos, (0, width - turned), value=1.0), pad(sin, (0, width - turned))
    return Rotated(cos[:, None], sin[:, None], partial(_partners, turned, adjacent))


def _partners(turned: int, adjacent: bool, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
    """Each entry's partner in its pair, of the entries that are turned; the rest as they are."""
    if turned < x.shape[-1]:  # a slice of all of it is a view that cannot be batched
        return torch.cat([_partners(turned, adjacent, x[..., :turned]), x[..., turned:]], -1)
    if adjacent:
        return torch.stack([x[..., 1::2], x[..., ::2]], -1).flatten(-2)
    return torch.cat([x[..., turned // 2 :], x[..., : turned // 2]], -1)


def _pattern(sinks: bool, noted: list[Tensor], value: Float[Tensor, "batch head query key"]) -> Tensor:
    scores, constant = noted.pop(), value.detach()
    total = constant.sum(-1, keepdim=True)
    plain = scores.detach().softmax(-1).nan_to_num() * (total if sinks else 1)
    return in_closed_form(Softmax(constant), value, [scores]) if agree(constant, plain) else value
