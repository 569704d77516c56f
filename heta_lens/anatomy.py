"""What a model's layers are made of, and where its hooks show it: for methods that change what flows back through them.

What is not seen here cannot be changed, so a model with other parts is told apart, and says which.
"""

import re
from collections.abc import Iterator
from functools import reduce
from typing import Any, NamedTuple, cast

from jaxtyping import Float
from torch import Tensor

from heta_lens.lens import Lens, wrapped

ACTIVATIONS = r"(quick_)?gelu(?!_ln)\w*|silu|swish|relu2?"  # of one neuron each, which are 0 at 0
GATE = r"attn\.hook_(q_)?gate$"


class Norm(NamedTuple):
    """Where a normalisation shows the standard deviation it divides by, and then what comes of it, plus a bias."""

    scale: str
    result: str
    bias: Float[Tensor, "d"] | None


class Neurons(NamedTuple):
    """Where an MLP's activation goes in, where what it is multiplied by is seen (if it gates), and what comes of it."""

    before: str
    gated: str | None
    after: str


def attention_inputs(layer: int) -> tuple[str, str, str]:
    """Queries, keys and values, before they are rotated or shared among heads."""
    query, key, value = (f"blocks.{layer}.attn.hook_{kind}" for kind in "qkv")
    return query, key, value


def neurons(lens: Lens, layer: int) -> Neurons | None:
    """None where there is attention only."""
    if getattr(lens.model.cfg, "attn_only", False):
        return None
    before, gated, after = (f"blocks.{layer}.mlp.hook_{at}" for at in ("pre", "pre_linear", "post"))
    return Neurons(before, gated if gated in lens.points else None, after)


def norms(lens: Lens) -> list[Norm]:
    """All that show their scale, each by one of its names."""
    places = {id(point): name for name, point in lens.points.items() if name.endswith(".hook_scale")}
    return [_norm(lens, name.removesuffix(".hook_scale")) for name in places.values()]


def _norm(lens: Lens, place: str) -> Norm:
    """A HookedTransformer's norm is a hook point short, but its last one comes before weights and bias."""
    scale, normalized, result = (f"{place}.hook_{at}" for at in ("scale", "normalized", "out"))
    if result not in lens.points:
        return Norm(scale, normalized, None)
    bare = reduce(getattr, place.split("."), cast(Any, lens.model)).original_component
    return Norm(scale, result, getattr(bare, "bias", None))


def irregularity(lens: Lens) -> str | None:
    """What there is in a model beside softmax attention, norms that show their scale, and single neurons' activations.

    One clause, of the first that is found.
    """
    return next(_irregularities(lens), None)


def _irregularities(lens: Lens) -> Iterator[str]:
    config = lens.model.cfg
    if getattr(config, "num_experts", None):
        yield "mixes experts"
    if any((getattr(config, f"{of}_soft_cap", None) or 0) > 0 for of in ("attn_scores", "output_logits")):
        yield "caps its attention scores or logits"
    if getattr(config, "clip_qkv", None) is not None:
        yield "clips queries, keys and values"
    yield from (f"gates what attention writes ({name})" for name in lens.points if re.search(GATE, name))
    layers = [neurons(lens, layer) for layer in range(lens.layers)]
    for layer, own in enumerate(layers):
        needed = {*attention_inputs(layer), *(own or ())} - {None}
        yield from (f"has no {name}" for name in sorted(needed - lens.points.keys()))
        if own and getattr(config, "gated_mlp", False) != (own.gated is not None):
            yield f"has MLPs of which layer {layer} is {'not ' if own.gated is None else ''}seen to be gated"
    if any(layers) and not re.fullmatch(ACTIVATIONS, str(config.act_fn)):
        yield f"has the activation {config.act_fn!r}"
    yield from (f"has a {name} that shows no scale" for name in _hidden_norms(lens))


def _hidden_norms(lens: Lens) -> list[str]:
    seen = {id(part) for norm in lens.model.modules() if hasattr(norm, "hook_scale") for part in norm.modules()}
    modules = (*lens.model.modules(), *wrapped(lens.model).modules())
    return [type(other).__name__ for other in modules if "Norm" in type(other).__name__ and id(other) not in seen]
