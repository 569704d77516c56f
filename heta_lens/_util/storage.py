"""Nested values with tensors as safetensors files with a JSON header."""

import json
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from math import isfinite
from os import PathLike
from typing import Any, get_type_hints

import numpy as np
from jaxtyping import jaxtyped
from safetensors import SafetensorError
from safetensors.torch import load as tensors_of
from safetensors.torch import save as safetensors
from torch import Tensor

from heta_lens._util.files import brief, check_no_view, regular_file, write_atomically
from heta_lens._util.options import check_types


class OtherKind(ValueError):
    """A safetensors file whose contents are of another kind."""


def pack(value: Any, tensors: dict[str, Tensor], path: str = "") -> Any:
    """Return the JSON of a value; the function adds the tensors inside to ``tensors``, numbered and named by path."""
    match value:
        case Tensor():
            name = f"{len(tensors)}{path}"
            tensors[name] = value.detach().cpu().clone().contiguous()
            return {"$tensor": name}
        case Mapping():
            if all(isinstance(key, str) and not key.startswith("$") for key in value):
                return {key: pack(item, tensors, f"{path}.{key}") for key, item in value.items()}
            return {"$pairs": [[key, pack(item, tensors, f"{path}.{key}")] for key, item in value.items()]}
        case tuple() | list():
            items = [pack(item, tensors, f"{path}.{index}") for index, item in enumerate(value)]
            return {"$tuple": items} if isinstance(value, tuple) else items
        case frozenset():
            return {"$set": sorted(value)}
        case float() if not isfinite(value):
            return {"$number": str(value)}  # JSON has no NaN and no infinity
        case None | str() | int() | float():
            return value
        case np.generic():
            return pack(value.item(), tensors, path)
    raise TypeError(f"{path.removeprefix('.')} is a {type(value).__name__}, which cannot be saved")


def unpack(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Return the value of JSON from `pack`."""
    match value:
        case list():
            return [unpack(item, tensors) for item in value]
        case {"$tensor": name}:
            return tensors[name]
        case {"$pairs": pairs}:
            return {key: unpack(item, tensors) for key, item in pairs}
        case {"$tuple": items}:
            return tuple(unpack(item, tensors) for item in items)
        case {"$set": members}:
            return frozenset(members)
        case {"$number": number}:
            return float(number)
        case dict():
            return {key: unpack(item, tensors) for key, item in value.items()}
    return value


# --------------------------------------------------------------------------------------------------------------- files
def to_bytes(kind: str, version: int, value: Mapping[str, Any]) -> bytes:
    """Return a value as the content of a safetensors file of a kind and version."""
    tensors: dict[str, Tensor] = {}
    header = json.dumps(pack(value, tensors))
    return safetensors(tensors, {"format": kind, "version": str(version), "value": header})


def save(path: str | PathLike[str], kind: str, version: int, value: Mapping[str, Any]) -> None:
    """Write a value to a safetensors file of a kind and version."""
    check_no_view(path, "its plot().save")
    write_atomically(path, to_bytes(kind, version, value))


def load(path: str | PathLike[str], kind: str, version: int, make: Callable[[Any], Any] = dict) -> Any:
    """Return the result of ``make`` for the value that `save` wrote, as `of_bytes` does."""
    return of_bytes(regular_file(path).read_bytes(), str(path), kind, version, make)


def of_bytes(raw: bytes, place: str, kind: str, version: int, make: Callable[[Any], Any] = dict) -> Any:
    """Return the result of ``make`` for the value in the bytes of a file; ``place`` names the bytes in errors.

    Raises:
        OtherKind: The bytes are a safetensors file of another kind.
        ValueError: The bytes are damaged, no safetensors file, of another version, or ``make`` refuses the value.
    """
    try:
        header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")]).get("__metadata__") or {}
        own_kind, own_version = header.get("format"), header.get("version")
    except Exception as error:
        raise ValueError(f"{place} is not a {kind} file: it is not a safetensors file ({reason(error)})") from None
    if own_kind != kind:
        raise OtherKind(f"{place} is a safetensors file, but not a {kind} file")
    if own_version != str(version):
        raise ValueError(
            f"{place} was written as version {brief(own_version)} of {kind}, and this heta_lens reads "
            f"version {version}: install the heta_lens that wrote the file"
        )
    try:
        return make(unpack(json.loads(header["value"]), tensors_of(raw)))
    except Exception as error:  # every library below has exceptions for damaged input
        raise ValueError(f"{place} is a damaged {kind} file: {reason(error)}") from None


def reason(error: Exception) -> str:
    text = brief(error.args[0])[1:-1] if isinstance(error, SafetensorError) else " ".join(str(error).split())
    return f"it has no {text}" if isinstance(error, KeyError) else text[:400]


def check_record(kind: type, values: Mapping[str, Any]) -> None:
    """Raise for the first field that a dataclass annotates with another type; dataclasses among them are checked too.

    Dimensions of one name must have the same size in all tensors.
    """
    with jaxtyped("context"):
        _check_types(kind, values)


def _check_types(kind: type, values: Mapping[str, Any]) -> None:
    check_types(get_type_hints(kind), values)
    for value in values.values():
        if is_dataclass(value):
            _check_types(type(value), vars(value))


def only_vector(file: str, raw: bytes) -> Tensor:
    """Return the only tensor of a safetensors file, a vector."""
    try:
        tensors = tensors_of(raw)
    except Exception as error:  # whatever is in the file
        raise ValueError(f"{file} is not a safetensors file ({reason(error)})") from None
    if len(tensors) != 1 or next(iter(tensors.values())).ndim != 1:
        held = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in tensors.items())
        raise ValueError(f"{file} holds {held or 'nothing'}: save one vector in it")
    return next(iter(tensors.values()))
