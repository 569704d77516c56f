"""Weights that may be quantised or offloaded: read where they hold their numbers, and otherwise run."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from hashlib import sha256
from typing import Any, cast

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from heta_lens.model.hooks import bare, wrapped

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


# --------------------------------------------------------------------------------------------------------- fingerprint
# Identifies a model: its weights, its configuration and its tokenizer, each as a short digest.


CHUNK = 2**18  # weights summed at once
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
COMPUTED = ("rotary_sin", "rotary_cos", "inv_freq")  # tables computed from the configuration, maybe by a different sine
NO_DIFFERENCE = {  # settings that predictions do not depend on, or that show in the weights
    *("device", "n_devices", "seed", "model_name", "name_or_path", "tokenizer_name", "trust_remote_code", "n_params"),
    *("init_mode", "init_weights", "initializer_range", "from_checkpoint", "checkpoint_index", "checkpoint_value"),
    *("checkpoint_label_type", "transformers_version", "use_cache", "return_dict", "output_attentions"),
    *("output_hidden_states", "use_attn_result", "use_split_qkv_input", "use_hook_mlp_in", "use_attn_in"),
    *("use_hook_tokens", "ungroup_grouped_query_attention"),
}


def fingerprint(model: Any) -> dict[str, str]:
    """Digests of a model's ``weights``, ``config`` and ``tokenizer``: equal for one model, wherever it is loaded.

    Every weight counts to its last bit, and of quantised ones their scales too: a change of any single one, in value,
    place or dtype, changes the digest (a change of many does except with a probability of about 2⁻⁶⁴). These do not
    count: the path a model was loaded from, its device, hooks, and tables computed from the configuration. Weights that
    are not in memory (on the meta device) count by their shapes. A model whose weights were processed during loading
    may differ in last bits on another machine.
    """
    return {
        "weights": _digest([_summary(name, tensor) for name, tensor in sorted(_weights(model)) if _counts(tensor)]),
        "config": _digest([_settings(model.cfg), _settings(getattr(wrapped(model), "config", None))]),
        "tokenizer": _digest(_tokenizer(getattr(model, "tokenizer", None))),
    }


# -------------------------------------------------------------------------------------------------------------- weights
def _weights(model: Any) -> Iterator[tuple[str, Tensor]]:
    """Each weight once, under a name that does not depend on what wraps it."""
    yielded = set()
    for module in (wrapped(model), model):
        if not isinstance(module, nn.Module):
            continue
        for name, tensor in stored_tensors(module):
            place = (tensor.data_ptr(), tensor.shape, tensor.stride()) if tensor.device.type != "meta" else name
            if place not in yielded and not name.endswith(COMPUTED):
                yielded.add(place)
                yield name.replace("._original_component", ""), tensor.detach()


def _counts(tensor: Tensor) -> bool:
    """Not a vector of zeros, which is a bias that some versions add and others leave out."""
    return tensor.ndim != 1 or tensor.device.type == "meta" or bool(tensor.any())


def _summary(name: str, tensor: Tensor) -> tuple[str, list[int], str, int | None]:
    total = None if tensor.device.type == "meta" else _total(tensor)
    return name, list(tensor.shape), str(tensor.dtype), total


@torch.no_grad()
def _total(tensor: Tensor) -> int:
    """The weights' bits as whole numbers, each times an odd number that depends on its place, summed modulo 2⁶⁴.

    A whole number below 2⁶⁴ times an odd one is 0 modulo 2⁶⁴ only if it is 0, so no single change is lost.
    """
    flat = torch.view_as_real(tensor).reshape(-1) if tensor.is_complex() else tensor.reshape(-1)
    factors, total = _factors().to(tensor.device), torch.zeros((), dtype=torch.int64, device=tensor.device)
    for start in range(0, len(flat), CHUNK):
        bits = flat[start : start + CHUNK].contiguous().view(BITS[flat.element_size()]).to(torch.int64)
        total = total * int(factors[0]) + (bits * factors[: len(bits)]).sum()
    return int(total)


@cache
def _factors() -> Tensor:
    """Odd numbers without a pattern, the same everywhere (SplitMix64)."""
    with np.errstate(over="ignore"):
        mixed = np.arange(1, CHUNK + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return torch.from_numpy((mixed ^ (mixed >> np.uint64(31)) | np.uint64(1)).view(np.int64))


# ------------------------------------------------------------------------------------------ configuration and tokenizer
def _settings(config: Any) -> Any:
    """The settings that matter. Those that are off or None are left out, as in versions that do not have them."""
    if config is None:
        return None
    settings = config.to_dict() if callable(getattr(config, "to_dict", None)) else vars(config)
    return {
        name: value
        for name, value in settings.items()
        if not (value is None or value is False or name.startswith("_") or name in NO_DIFFERENCE)
    }


def _tokenizer(tokenizer: Any) -> Any:
    if tokenizer is None:
        return None
    special = {name: getattr(tokenizer, f"{name}_token_id", None) for name in ("bos", "eos", "unk")}
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return type(tokenizer).__name__, special, sorted(tokenizer.get_vocab().items())
    described = json.loads(backend.to_str())
    return special, {name: part for name, part in described.items() if name not in ("truncation", "padding")}


def _digest(value: Any) -> str:
    return sha256(json.dumps(_plain(value), sort_keys=True).encode()).hexdigest()[:16]


def _plain(value: Any) -> Any:
    """Something that JSON can hold and that is the same in every process."""
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, torch.dtype | torch.device):
        return str(value)
    return cast(Callable[..., Any], value).__qualname__ if callable(value) else type(value).__qualname__
