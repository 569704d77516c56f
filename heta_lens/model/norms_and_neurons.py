"""Norms and MLPs of a model and their hook points, for methods that change the flow of gradients.

Such methods have rules for the listed parts only, so a model with other parts is recognised, and the part is named.
"""

import re
from collections.abc import Iterator
from operator import attrgetter
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.hooks import attention_inputs, wrapped

ACTIVATIONS = r"(quick_)?gelu(?!_ln)\w*|silu|swish|relu2?"  # elementwise, and 0 at 0
GATE = r"attn\.hook_(q_)?gate$"


class Norm(NamedTuple):
    """A norm: the bias, and the hook points of the standard deviation and the result."""

    scale: str
    result: str
    bias: Float[Tensor, "d"] | None


class Neurons(NamedTuple):
    """Hook points of an MLP: before the activation, of the gated factor (if gated), and after both."""

    before: str
    gated: str | None
    after: str


def neurons(adapter: ModelAdapter, layer: int) -> Neurons | None:
    """Return the hook points of a layer's MLP; None in a model of attention only."""
    if getattr(adapter.model.cfg, "attn_only", False):
        return None
    before, gated, after = (f"blocks.{layer}.mlp.hook_{at}" for at in ("pre", "pre_linear", "post"))
    return Neurons(before, gated if gated in adapter.points else None, after)


def ignores_size(adapter: ModelAdapter) -> bool:
    """Return whether the embeddings' size hardly matters: a norm comes first, and no positions are added."""
    config = adapter.model.cfg
    return bool(config.normalization_type) and config.positional_embedding_type not in ("standard", "shortformer")


def norms(adapter: ModelAdapter) -> list[Norm]:
    """List the norms that a run passes, with a visible scale, under a single name."""
    scales = {
        point: name for name, point in adapter.points.items() if name.endswith(".hook_scale") and adapter.passes(name)
    }
    found = []
    for scale in scales.values():
        place = scale.removesuffix(".hook_scale")
        if f"{place}.hook_out" in adapter.points:
            module = attrgetter(place)(adapter.model).original_component
            found.append(Norm(scale, f"{place}.hook_out", getattr(module, "bias", None)))
        else:  # the last hook point of a HookedTransformer's norm comes before weights and bias
            found.append(Norm(scale, f"{place}.hook_normalized", None))
    return found


def irregularity(adapter: ModelAdapter) -> str | None:
    """Return a clause that names the first part without a rule; None if every part has a rule.

    Rules exist for softmax attention, norms that show their scale, and elementwise activations.
    """
    return next(_irregularities(adapter), None)


def _irregularities(adapter: ModelAdapter) -> Iterator[str]:
    config = adapter.model.cfg
    if getattr(config, "num_experts", None):
        yield "mixes experts"
    if any((getattr(config, f"{of}_soft_cap", None) or 0) > 0 for of in ("attn_scores", "output_logits")):
        yield "caps its attention scores or logits"
    for name in ("use_split_qkv_input", "use_attn_in"):
        if getattr(config, name, False):
            yield f"has an input of its own for every head ({name}: turn it off)"
    if getattr(config, "clip_qkv", None) is not None:
        yield "clips queries, keys and values"
    yield from (f"gates what attention writes ({name})" for name in adapter.points if re.search(GATE, name))
    layers = [neurons(adapter, layer) for layer in range(adapter.layers)]
    for layer, own in enumerate(layers):
        needed = {*attention_inputs(layer), *(own or ())} - {None}
        yield from (f"has no {name}" for name in sorted(needed - adapter.points.keys()))
        if own and getattr(config, "gated_mlp", False) != (own.gated is not None):
            yield f"has MLPs of which layer {layer} is {'not ' if own.gated is None else ''}seen to be gated"
    if any(layers) and not re.fullmatch(ACTIVATIONS, str(config.act_fn)):
        yield f"has the activation {config.act_fn!r}"
    shown = {part for norm in adapter.model.modules() if hasattr(norm, "hook_scale") for part in norm.modules()}
    for module in (*adapter.model.modules(), *wrapped(adapter.model).modules()):
        if "Norm" in type(module).__name__ and module not in shown:
            yield f"has a {type(module).__name__} that shows no scale"
