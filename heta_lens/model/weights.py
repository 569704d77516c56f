"""Quantised, offloaded and plain weights: plain weights are read, the rest is run on unit vectors."""

import json
from collections.abc import Iterator
from hashlib import sha256
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from heta_lens.model.hooks import bare, wrapped

PLAIN = (Tensor, nn.Parameter)  # derived classes may pack or scale their numbers


def is_readable(weight: Any) -> bool:
    """Return whether a weight is a plain tensor of floats in memory: not packed, scaled or offloaded."""
    plain = type(weight) in PLAIN and weight.is_floating_point() and weight.dtype.itemsize >= 2
    return plain and not is_elsewhere(weight)


def is_elsewhere(weight: Any) -> bool:
    """Return whether a weight is offloaded, and loaded only during a run of the module."""
    return isinstance(weight, Tensor) and weight.device.type == "meta"


def vector_of(part: Any, name: str, module: Any, own: str) -> Tensor | None:
    """Return a bias, or the weight of a norm; load an offloaded one from the module's attribute ``own``."""
    tensor, module = getattr(part, name, None), bare(module)
    if tensor is None or not is_elsewhere(tensor) or not hasattr(module, "_hf_hook"):
        return tensor
    module._hf_hook.pre_forward(module)  # loads the weights, as for a run of the module
    try:
        return getattr(module, own).detach().clone().reshape(tensor.shape)
    finally:
        module._hf_hook.post_forward(module, None)


def stored(module: Any) -> dict[str, Tensor]:
    """Return the tensors that a module stores, without computed tensors and tensors of a wrapped module."""
    return {**module._parameters, **module._buffers}


def quantised_modules(model: Any) -> Iterator[str]:
    """Yield the names of modules with quantised weights."""
    for name, module in wrapped(model).named_modules():
        weight = stored(module).get("weight")
        if weight is not None and not is_readable(weight) and not is_elsewhere(weight):
            yield name.replace("._original_component", "")


def stored_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield every stored tensor of a model by name; packed weights are unpacked to numbers and scales."""
    for place, module in nn.Module.named_modules(model):
        for name, tensor in stored(module).items():
            if tensor is not None:
                yield from _unpacked(f"{place}.{name}" if place else name, tensor, module)


def _unpacked(name: str, tensor: Any, module: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield the parts of a tensor of bitsandbytes, or of a class that wraps tensors."""
    if hasattr(tensor, "__tensor_flatten__"):
        for part in tensor.__tensor_flatten__()[0]:
            yield from _unpacked(f"{name}.{part}", getattr(tensor, part), module)
        return
    yield name, tensor
    state = getattr(tensor, "quant_state", None)
    scales = {} if state is None else state.as_dict()
    if hasattr(tensor, "SCB"):  # moves to the module's state in the first run
        scales["SCB"] = module.state.SCB if tensor.SCB is None else tensor.SCB
    for part, scale in scales.items():
        if isinstance(scale, Tensor):
            yield f"{name}.{part}", scale


def read_output_weights(attention: Any) -> Float[Tensor, "head d_head d"] | None:
    """Return W_O as stored; None if W_O cannot be read."""
    weight = stored(attention).get("W_O") if not hasattr(attention, "o") else stored(bare(attention.o)).get("weight")
    return attention.W_O.detach() if is_readable(weight) else None


@torch.no_grad()
def read_or_run(part: Any, name: str, projection: str, width: int, dtype: torch.dtype) -> Tensor:
    """Return a weight of an attention or an MLP in the shape of TransformerLens; ``[in, out]`` if it has to be run."""
    linear = getattr(part, projection, None)
    weight = None if linear is None else stored(bare(linear)).get("weight")
    if weight is not None and not is_readable(weight):
        return on_units(bare(linear), width, dtype)
    return getattr(part, name).detach()


def on_units(projection: Any, width: int, dtype: torch.dtype) -> Float[Tensor, "into out"]:
    """Return the images of all unit vectors under a linear map."""
    weight = stored(projection).get("weight")
    offloaded = hasattr(projection, "_hf_hook") and is_elsewhere(weight)  # accelerate loads such weights for a run
    device = torch.device("cpu") if weight is None or offloaded else weight.device
    units = torch.cat([torch.eye(width), torch.zeros(1, width)]).to(device, dtype)
    images = projection(units)  # all at once, since offloaded weights are loaded anew for each run
    return images[:-1] - images[-1]


COMPUTED = ("rotary_sin", "rotary_cos", "inv_freq")  # tables computed from the configuration; sines differ by version
NO_DIFFERENCE = {  # settings without influence on predictions, or visible in the weights
    *("device", "n_devices", "seed", "model_name", "name_or_path", "tokenizer_name", "trust_remote_code", "n_params"),
    *("init_mode", "init_weights", "initializer_range", "from_checkpoint", "checkpoint_index", "checkpoint_value"),
    *("checkpoint_label_type", "transformers_version", "use_cache", "return_dict", "output_attentions"),
    *("output_hidden_states", "use_attn_result", "use_split_qkv_input", "use_hook_mlp_in", "use_attn_in"),
    *("use_hook_tokens", "ungroup_grouped_query_attention"),
}


def fingerprint(model: Any) -> dict[str, str]:
    """Compute digests of a model's ``weights``, ``config`` and ``tokenizer``, which tell models apart.

    Every bit of every weight counts, and the scales of quantised weights too. The path of a checkpoint, the device,
    hooks, and tables computed from the configuration do not count. Weights on the meta device count by their shapes.
    A model whose weights were processed during loading may differ in last bits on another machine.
    """
    return {
        "weights": _weights_digest(model),
        "config": _digest([_settings(model.cfg), _settings(getattr(wrapped(model), "config", None))]),
        "tokenizer": _digest(_tokenizer(getattr(model, "tokenizer", None))),
    }


SAMPLED = 64  # weights of every tensor


@torch.no_grad()
def identity(model: Any) -> dict[str, Any]:
    """Return a model's name, number of layers, and a digest of a few weights of every tensor, which training changes.

    The digest takes milliseconds where `fingerprint` reads every weight.
    """
    digest = sha256()
    for name, tensor in sorted(_distinct_weights(model), key=itemgetter(0)):
        digest.update(repr((name, tuple(tensor.shape))).encode())
        if tensor.device.type != "meta":
            some = tensor.reshape(-1)[:: max(1, tensor.numel() // SAMPLED)]
            digest.update(some.contiguous().view(torch.uint8).cpu().numpy().data)
    name = Path(str(getattr(model.cfg, "model_name", None) or "")).name
    return {"name": name, "layers": len(model.blocks), "weights": digest.hexdigest()[:8]}


def _weights_digest(model: Any) -> str:
    digest = sha256()
    for name, tensor in sorted(_distinct_weights(model), key=itemgetter(0)):
        on_meta = tensor.device.type == "meta"
        if tensor.ndim == 1 and not on_meta and not tensor.any():  # a zero bias, which only some versions add
            continue
        digest.update(repr((name, tuple(tensor.shape), tensor.dtype)).encode())
        if not on_meta:
            digest.update(tensor.reshape(-1).contiguous().view(torch.uint8).cpu().numpy().data)
    return digest.hexdigest()[:16]


def _distinct_weights(model: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield every weight once, under a name independent of the wrapper."""
    seen = set()
    for module in (wrapped(model), model):
        for name, tensor in stored_tensors(module) if isinstance(module, nn.Module) else ():
            key = name if tensor.device.type == "meta" else (tensor.data_ptr(), tensor.shape, tensor.stride())
            if key not in seen and not name.endswith(COMPUTED):
                seen.add(key)
                yield name.replace("._original_component", ""), tensor.detach()


def _settings(config: Any) -> Any:
    """Return the settings with influence on predictions; values of None or False differ by version and are skipped."""
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
    parts = json.loads(backend.to_str())
    return special, {name: part for name, part in parts.items() if name not in ("truncation", "padding")}


def _digest(value: Any) -> str:
    return sha256(json.dumps(value, sort_keys=True, default=_named).encode()).hexdigest()[:16]


def _named(value: Any) -> Any:
    """Return a stable replacement for a value without a JSON form."""
    if isinstance(value, torch.dtype | torch.device):
        return str(value)
    if isinstance(value, np.generic):
        return value.item()
    return getattr(value, "__qualname__", type(value).__qualname__)
