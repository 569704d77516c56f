"""Identifies a model: its weights, its configuration and its tokenizer, each as a short digest."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from hashlib import sha256
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from heta_lens.model.model_protocol import wrapped
from heta_lens.model.weight_reading import stored_tensors

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
