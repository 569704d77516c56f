"""Nested values with tensors in them, as one safetensors file with a JSON header. No pickle is read or written."""

import json
from collections.abc import Mapping
from os import PathLike
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

TENSOR, TUPLE = "$tensor", "$tuple"


def save(path: str | PathLike[str], kind: str, version: int, value: Mapping[str, Any]) -> None:
    """Write ``value`` as a file of this kind and version."""
    tensors: dict[str, Tensor] = {}
    header = json.dumps(_pack(value, "", tensors), ensure_ascii=False)
    save_file(tensors, path, {"format": kind, "version": str(version), "value": header})


def load(path: str | PathLike[str], kind: str, version: int) -> dict[str, Any]:
    """Read what `save` wrote, and refuse anything else."""
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            names = file.keys()
            tensors = {name: file.get_tensor(name) for name in names}
    except SafetensorError as error:
        raise ValueError(f"{path} is not a {kind} file: {error}") from None
    if header.get("format") != kind:
        raise ValueError(f"{path} is a safetensors file, but not a {kind} file")
    if int(header["version"]) > version:
        raise ValueError(
            f"{path} was written as version {header['version']} of {kind}; this heta_lens reads up to version "
            f"{version}: upgrade it"
        )
    return _unpack(json.loads(header["value"]), tensors)


def _pack(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """JSON for ``value``; its tensors go to ``tensors`` under the path that leads to them."""
    if isinstance(value, Tensor):
        tensors[name] = value.detach().cpu().clone().contiguous()
        return {TENSOR: name}
    if isinstance(value, Mapping):
        return {str(key): _pack(item, f"{name}.{key}".lstrip("."), tensors) for key, item in value.items()}
    if isinstance(value, tuple | list):
        items = [_pack(item, f"{name}.{index}".lstrip("."), tensors) for index, item in enumerate(value)]
        return {TUPLE: items} if isinstance(value, tuple) else items
    return value


def _unpack(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, dict):
        if value.keys() == {TENSOR}:
            return tensors[value[TENSOR]]
        if value.keys() == {TUPLE}:
            return tuple(_unpack(item, tensors) for item in value[TUPLE])
        return {key: _unpack(item, tensors) for key, item in value.items()}
    if isinstance(value, list):
        return [_unpack(item, tensors) for item in value]
    return value
