"""Nested values with tensors in them, as one safetensors file with a JSON header. No pickle is read or written."""

import json
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from heta_lens.files import write_atomically

TENSOR, TUPLE, PAIRS = "$tensor", "$tuple", "$pairs"


def save(path: str | PathLike[str], kind: str, version: int, value: Mapping[str, Any]) -> None:
    """Write ``value`` as a file of this kind and version."""
    tensors: dict[str, Tensor] = {}
    header = json.dumps(_pack(value, "", tensors))
    if not Path(path).parent.is_dir():
        raise FileNotFoundError(f"there is no folder {Path(path).parent} to save {Path(path).name} in")
    write_atomically(path, to_bytes(tensors, {"format": kind, "version": str(version), "value": header}))


def load(path: str | PathLike[str], kind: str, version: int, make: Callable[[dict[str, Any]], Any] = dict) -> Any:
    """What is made of what `save` wrote; anything else is refused."""
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            names = file.keys()
            tensors = {name: file.get_tensor(name).clone() for name in names}  # not a map of the file
    except SafetensorError as error:
        raise ValueError(f"{path} is not a {kind} file: {error}") from None
    if header.get("format") != kind:
        raise ValueError(f"{path} is a safetensors file, but not a {kind} file")
    try:
        written, value = int(header["version"]), header["value"]
        if written <= version:
            return make(_unpack(json.loads(value), tensors))
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is a damaged {kind} file: {error!r}") from None
    raise ValueError(
        f"{path} was written as version {written} of {kind}; this heta_lens reads up to version {version}: upgrade it"
    )


def _pack(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """JSON for ``value``; its tensors go to ``tensors``, numbered and named by the path that leads to them."""
    if isinstance(value, Tensor):
        name = f"{len(tensors)}{name}"
        tensors[name] = value.detach().cpu().clone().contiguous()
        return {TENSOR: name}
    if isinstance(value, Mapping):
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {key: _pack(item, f"{name}.{key}", tensors) for key, item in value.items()}
        return {PAIRS: [[key, _pack(item, f"{name}.{key}", tensors)] for key, item in value.items()]}
    if isinstance(value, tuple | list):
        items = [_pack(item, f"{name}.{index}", tensors) for index, item in enumerate(value)]
        return {TUPLE: items} if isinstance(value, tuple) else items
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{name.removeprefix('.')} is a {type(value).__name__}, which cannot be saved")


def _unpack(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, dict):
        if value.keys() == {TENSOR}:
            return tensors[value[TENSOR]]
        if value.keys() == {PAIRS}:
            return {key: _unpack(item, tensors) for key, item in value[PAIRS]}
        if value.keys() == {TUPLE}:
            return tuple(_unpack(item, tensors) for item in value[TUPLE])
        return {key: _unpack(item, tensors) for key, item in value.items()}
    if isinstance(value, list):
        return [_unpack(item, tensors) for item in value]
    return value
