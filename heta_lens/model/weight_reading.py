"""Weights that may be quantised or offloaded: read where they hold their numbers, and otherwise run."""

from collections.abc import Iterator
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from heta_lens.model.model_protocol import bare, wrapped

PLAIN = (Tensor, nn.Parameter)  # exactly these: classes derived from them pack or scale their numbers


def is_readable(weight: Any) -> bool:
    """Whether it holds the numbers it stands for: neither packed, nor scaled apart from them, nor elsewhere."""
    plain = type(weight) in PLAIN and weight.is_floating_point() and weight.dtype.itemsize >= 2
    return plain and not is_elsewhere(weight)


def is_elsewhere(weight: Any) -> bool:
    """Whether it is loaded only when its module runs (offloaded to another memory or to a disk)."""
    return isinstance(weight, Tensor) and weight.device.type == "meta"


def vector_of(part: Any, name: str, module: Any, own: str) -> Tensor | None:
    """A bias, or the weight of a norm, under TransformerLens' ``name``; kept elsewhere, it is its module's ``own``."""
    tensor = getattr(part, name, None)
    hook = getattr(bare(module), "_hf_hook", None)
    if tensor is None or not is_elsewhere(tensor) or hook is None:
        return tensor
    hook.pre_forward(bare(module))  # which loads it, as for a run of the module
    try:
        return getattr(bare(module), own).detach().clone().reshape(tensor.shape)
    finally:
        hook.post_forward(bare(module), None)


def stored(module: Any) -> dict[str, Tensor]:
    """A module's own tensors; not those that it computes, or takes from another module that it wraps."""
    return {name: tensor for of in (module._parameters, module._buffers) for name, tensor in of.items()}


def quantised_modules(model: Any) -> Iterator[str]:
    """The names of the modules whose weights are stored with fewer bits than they compute with."""
    for name, module in wrapped(model).named_modules():
        weight = stored(module).get("weight")
        if weight is not None and not is_readable(weight) and not is_elsewhere(weight):
            yield name.replace("._original_component", "")


def stored_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Every tensor that a model keeps, by name; packed weights as what they are packed into, scales included."""
    for place, module in nn.Module.named_modules(model):
        for name, tensor in stored(module).items():
            if tensor is not None:
                yield from _unpacked(f"{place}.{name}" if place else name, tensor, module)


def _unpacked(name: str, tensor: Any, module: Any) -> Iterator[tuple[str, Tensor]]:
    """What a tensor of bitsandbytes, or of a class that wraps others, consists of."""
    if hasattr(tensor, "__tensor_flatten__"):
        for part in tensor.__tensor_flatten__()[0]:
            yield from _unpacked(f"{name}.{part}", getattr(tensor, part), module)
        return
    yield name, tensor
    state = getattr(tensor, "quant_state", None)
    scales = {} if state is None else state.as_dict()
    if hasattr(tensor, "SCB"):  # which moves to the module's state in its first run
        scales["SCB"] = module.state.SCB if tensor.SCB is None else tensor.SCB
    for part, scale in scales.items():
        if isinstance(scale, Tensor):
            yield f"{name}.{part}", scale


def read_output_weights(attention: Any) -> Float[Tensor, "head d_head d"] | None:
    """W_O as it is stored; None if it cannot be read."""
    weight = stored(attention).get("W_O") if not hasattr(attention, "o") else stored(bare(attention.o)).get("weight")
    return attention.W_O.detach() if is_readable(weight) else None


@torch.no_grad()
def output_weights(attention: Any, heads: int, d_head: int, dtype: torch.dtype) -> Float[Tensor, "head d_head d"]:
    """W_O; where it cannot be read, what the output projection makes of every unit vector."""
    weights = read_output_weights(attention)
    if weights is not None:
        return weights
    if not hasattr(attention, "o"):
        raise ValueError(
            f"W_O of a {type(attention).__name__} with quantised weights can be neither read nor run by itself: "
            "load the model as a TransformerBridge"
        )
    return rearrange(run(bare(attention.o), heads * d_head, dtype), "(head d_head) d -> head d_head d", head=heads)


@torch.no_grad()
def read_or_run(part: Any, name: str, projection: str, width: int, dtype: torch.dtype) -> Tensor:
    """A weight of an attention or an MLP, as TransformerLens shapes it; ``[in, out]``, if it has to be run."""
    linear = getattr(part, projection, None)
    weight = None if linear is None else stored(bare(linear)).get("weight")
    if weight is not None and not is_readable(weight):
        return run(bare(linear), width, dtype)
    try:
        return getattr(part, name).detach()
    except NotImplementedError as error:
        raise ValueError(f"{name} of a {type(part).__name__} can be neither read nor run by itself: {error}") from None


def run(projection: Any, width: int, dtype: torch.dtype) -> Float[Tensor, "into out"]:
    """What a linear map makes of every unit vector."""
    weight = stored(projection).get("weight")
    offloaded = hasattr(projection, "_hf_hook") and is_elsewhere(weight)  # accelerate loads it when it runs
    device = torch.device("cpu") if weight is None or offloaded else weight.device
    units = torch.cat([torch.eye(width), torch.zeros(1, width)]).to(device, dtype)
    images = projection(units)  # all at once, since offloaded weights are loaded anew for each run
    return images[:-1] - images[-1]
