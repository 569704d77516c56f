"""Which parts of a model are put in closed form while the graph of a gradient is built, and the hooks that do it.

Values stay as they are. A part is only replaced where the formula, applied to the same inputs, gives what the model
computed there; whatever else a model has is differentiated as autograd recorded it.
"""

import re
from collections.abc import Iterator
from functools import partial
from typing import Any, TypeAlias

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.closed_forms import Normalised, Pattern, Pointwise, Rotated, written_out
from heta_lens.model.hook_sites import pattern_name, queries_keys_names, rotated_names, scores_name
from heta_lens.model.hooking import Hook, PositionHook, note
from heta_lens.model.key_value_reuse import is_hooked_transformer
from heta_lens.model.norms_and_neurons import ACTIVATIONS, neurons, norms

Hooks: TypeAlias = Iterator[tuple[str, Hook]]
Noted: TypeAlias = dict[str, Tensor]  # values, by what they are

SCORES = "scores"
ROUNDING = 32  # relative to the largest value, in distances between neighbouring numbers at 1


def closed_form_hooks(adapter: ModelAdapter) -> list[tuple[str, Hook]]:
    """Hooks that leave every value as it is, and write out the derivatives of the parts that are known."""
    hooks = [*_at_neurons(adapter)]
    if is_hooked_transformer(adapter.model):  # a bridge computes the rest elsewhere, and shows it
        hooks += [*_at_norms(adapter), *_at_attention(adapter)]
    return hooks


# ------------------------------------------------------------------------------------------------------------- neurons
def _at_neurons(adapter: ModelAdapter) -> Hooks:
    if not re.fullmatch(ACTIVATIONS, str(getattr(adapter.model.cfg, "act_fn", None))):
        return
    for layer in range(adapter.layers):
        mlp = neurons(adapter, layer)
        if mlp is not None and {mlp.before, mlp.after} <= adapter.points.keys():
            before = Noted()
            for name in (mlp.before, mlp.gated):
                if name is not None:
                    yield name, PositionHook(note(before, name))
            yield mlp.after, PositionHook(_activated, before)


def _activated(before: Noted, after: Tensor) -> Tensor:
    inputs = [before.pop(name) for name in [*before]]
    form = Pointwise.of(after, inputs) if after.requires_grad and _precise(after) else None
    return after if form is None else written_out(form, after, inputs)


# --------------------------------------------------------------------------------------------------------------- norms
def _at_norms(adapter: ModelAdapter) -> Hooks:
    for norm in norms(adapter):
        noted = Noted()
        yield norm.scale, PositionHook(_steady, noted)
        yield norm.result, PositionHook(_normalised, float(adapter.model.cfg.eps), noted)


def _steady(noted: Noted, scale: Tensor) -> Tensor:
    """A constant to divide by: how it depends on what it divides is part of the closed form."""
    noted["scale"] = scale
    return scale.detach()


def _normalised(eps: float, noted: Noted, value: Tensor) -> Tensor:
    """What a norm gives; one value where it normalises one tensor again, as for queries, keys and values."""
    scale, constant = noted.pop("scale"), value.detach()
    if "value" in noted and _same_source(noted["value"], value) and torch.equal(noted["value"], constant):
        return noted["written"]
    square = scale.detach().square()
    if not _agree(square - eps, square * constant.square().mean(-1, keepdim=True)):
        return value * (scale.detach() / scale)
    noted["value"], noted["written"] = value, written_out(Normalised(constant), value, [value])
    return noted["written"]


def _same_source(one: Tensor, other: Tensor) -> bool:
    source = _source(one)
    return source is not None and source is _source(other)


def _source(normalised: Tensor) -> Any:
    """The node of autograd's graph that gave what was normalised: divided, and centred by some norms before that."""
    node = normalised.grad_fn and normalised.grad_fn.next_functions[0][0]
    return node.next_functions[0][0] if node is not None and node.name() == "SubBackward0" else node


# ----------------------------------------------------------------------------------------------------------- attention
def _at_attention(adapter: ModelAdapter) -> Hooks:
    if (getattr(adapter.model.cfg, "attn_scores_soft_cap", None) or 0) > 0:
        return
    for layer in range(adapter.layers):
        noted, attention = Noted(), adapter.blocks[layer].attn
        for name, rotated in zip(queries_keys_names(layer), rotated_names(layer), strict=True):
            yield name, note(noted, name)
            if rotated in adapter.points:
                yield rotated, partial(_rotated, attention, noted, name)
        yield scores_name(layer), note(noted, SCORES)
        yield pattern_name(layer), partial(_pattern, float(attention.attn_scale), noted)


def _rotated(attention: Any, noted: Noted, name: str, value: Float[Tensor, "batch pos head d"]) -> Tensor:
    """What is noted as queries or keys from here on; those of a run from the first position are written out."""
    before, noted[name] = noted[name], value
    rotation = _rotation(attention, value)
    if before.shape == value.shape and _agree(value.detach(), rotation.turned(before.detach())):
        noted[name] = written_out(rotation, value, [before])
    return noted[name]


def _rotation(attention: Any, like: Float[Tensor, "batch pos head d"]) -> Rotated:
    """Of the first positions of a prompt."""
    _, length, _, width = like.shape
    angles, adjacent = (attention.rotary_cos, attention.rotary_sin), bool(attention.cfg.rotary_adjacent_pairs)
    turned = angles[0].shape[1]
    cos, sin = (rearrange(own[:length].to(like), "pos d -> pos 1 d") for own in angles)
    first = torch.arange(turned, device=like.device) % 2 == 0 if adjacent else torch.arange(turned) < turned // 2
    sin = torch.where(first.to(like.device), -sin, sin)
    more = (0, width - turned)
    return Rotated(pad(cos, more, value=1.0), pad(sin, more), partial(_partners, turned, adjacent))


def _partners(turned: int, adjacent: bool, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
    """Each entry's partner in its pair, of the entries that are turned; the rest as they are."""
    if turned < x.shape[-1]:  # a slice of all of it is a view that cannot be batched
        return torch.cat([_partners(turned, adjacent, x[..., :turned]), x[..., turned:]], -1)
    if adjacent:
        return torch.stack([x[..., 1::2], x[..., ::2]], -1).flatten(-2)
    return torch.cat([x[..., turned // 2 :], x[..., : turned // 2]], -1)


def _pattern(scale: float, noted: Noted, value: Float[Tensor, "batch head query key"]) -> Tensor:
    scores = noted.pop(SCORES)
    queries, keys = (rearrange(noted.pop(name), "batch pos head d -> batch head pos d") for name in [*noted])
    keys = keys.repeat_interleave(queries.shape[1] // keys.shape[1], 1)
    form = Pattern(value.detach(), queries.detach(), keys.detach(), scale)
    masked = form.value <= 0  # and stays so
    plain = form.queries @ form.keys.mT / scale
    if _agree(scores.detach().masked_fill(masked, 0), plain.masked_fill(masked, 0)):
        return written_out(form, value, [queries, keys])
    return value


def _agree(value: Tensor, other: Tensor) -> bool:
    """Within rounding of each other."""
    reach = ROUNDING * torch.finfo(value.dtype).eps * value.abs().max()
    return _precise(value) and bool((value - other).abs().max() <= reach)


def _precise(value: Tensor) -> bool:
    """Half precision rounds too much to tell functions apart."""
    return torch.finfo(value.dtype).bits >= 32
