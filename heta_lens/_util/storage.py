"""Nested values with tensors in them as JSON: the tensors apart, by name, or written out as numbers."""

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from heta_lens._util.files import brief, check_no_view, parse_json, regular_file, write_atomically
from heta_lens._util.options import check_types, fits

TENSOR, TUPLE, PAIRS, SET, NUMBER = "$tensor", "$tuple", "$pairs", "$set", "$number"
NESTED_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.bool),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8),
    )
}
WRITTEN = {"dtype": str, "shape": Sequence[int], "values": Sequence[Any]}


# ------------------------------------------------------------------------------------------------------ tensors apart
def pack(value: Any, tensors: dict[str, Tensor], name: str = "") -> Any:
    """JSON for ``value``; its tensors go to ``tensors``, numbered and named by the path that leads to them."""
    if isinstance(value, Tensor):
        name = f"{len(tensors)}{name}"
        tensors[name] = value.detach().cpu().clone().contiguous()
        return {TENSOR: name}
    if isinstance(value, Mapping):
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {key: pack(item, tensors, f"{name}.{key}") for key, item in value.items()}
        return {PAIRS: [[key, pack(item, tensors, f"{name}.{key}")] for key, item in value.items()]}
    if isinstance(value, tuple | list):
        items = [pack(item, tensors, f"{name}.{index}") for index, item in enumerate(value)]
        return {TUPLE: items} if isinstance(value, tuple) else items
    if isinstance(value, frozenset):
        return {SET: sorted(value)}
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{name.removeprefix('.')} is a {type(value).__name__}, which cannot be saved")


def unpack(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """What `pack` was given."""
    if isinstance(value, dict):
        if value.keys() == {TENSOR}:
            return tensors[value[TENSOR]]
        if value.keys() == {PAIRS}:
            if not all(isinstance(pair, list) and len(pair) == 2 for pair in value[PAIRS]):
                raise ValueError(f"{brief(value[PAIRS])} are not pairs")
            return {key: unpack(item, tensors) for key, item in value[PAIRS]}
        if value.keys() == {TUPLE}:
            return tuple(unpack(item, tensors) for item in value[TUPLE])
        if value.keys() == {SET}:
            if not fits(value[SET], Sequence[int]):
                raise ValueError(f"{brief(value[SET])} are not the whole numbers of a set")
            return frozenset(value[SET])
        return {key: unpack(item, tensors) for key, item in value.items()}
    if isinstance(value, list):
        return [unpack(item, tensors) for item in value]
    return value


def tensor_names(value: Any) -> list[str]:
    """The names of the tensors that belong into a value."""
    if isinstance(value, dict) and value.keys() == {TENSOR}:
        return [value[TENSOR]] if isinstance(value[TENSOR], str) else []
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [name for item in inner for name in tensor_names(item)]


# -------------------------------------------------------------------------------------------------- tensors written out
def to_json(value: Any) -> dict[str, Any]:
    """``value`` with its tensors as lists of numbers; what is no finite number is written as ``{"$number": "nan"}``."""
    tensors: dict[str, Tensor] = {}
    packed = pack(value, tensors)
    return {"value": _written(packed), "tensors": {name: _tensor_to_json(tensor) for name, tensor in tensors.items()}}


def from_json(written: Any) -> Any:
    """What `to_json` was given."""
    if not isinstance(written, Mapping) or written.keys() != {"value", "tensors"}:
        raise ValueError(f"{brief(written)} is not a value and its tensors")
    check_types({"tensors": Mapping[str, Any]}, written)
    tensors = {name: _tensor_from_json(name, tensor) for name, tensor in written["tensors"].items()}
    value = _read(written["value"])
    if sorted(tensor_names(value)) != sorted(tensors):
        raise ValueError("it names other tensors than it holds")
    return unpack(value, tensors)


def shortest(tensor: Tensor) -> list[Any]:
    """A tensor's numbers, each with as few digits as tell it from others of its precision; flat."""
    values = tensor.detach().cpu().flatten()
    if values.dtype in (torch.float32, torch.float16, torch.bfloat16):
        return [float(str(value)) for value in values.float().numpy()]
    return values.tolist()


def _tensor_to_json(tensor: Tensor) -> dict[str, Any]:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return {"dtype": dtype, "shape": [*tensor.shape], "values": _written(shortest(tensor))}


def _tensor_from_json(name: str, written: Any) -> Tensor:
    if not isinstance(written, Mapping) or written.keys() != WRITTEN.keys():
        raise ValueError(f"its tensor {name} is {brief(written)}, and must have {', '.join(WRITTEN)}")
    check_types(WRITTEN, written)
    if written["dtype"] not in NESTED_DTYPES:
        raise ValueError(f"its tensor {name} has the dtype {brief(written['dtype'])}, which is none of torch's")
    values = _read(written["values"])
    if not all(isinstance(value, bool | int | float) for value in values):
        raise ValueError(f"its tensor {name} holds more than numbers")
    return torch.tensor(values, dtype=NESTED_DTYPES[written["dtype"]]).reshape(tuple(written["shape"]))


def _written(value: Any) -> Any:
    """JSON without NaN and Infinity, which are not JSON."""
    if isinstance(value, dict):
        return {key: _written(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_written(item) for item in value]
    return {NUMBER: str(value)} if isinstance(value, float) and not isfinite(value) else value


def _read(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() == {NUMBER}:
            return float(value[NUMBER])
        return {key: _read(item) for key, item in value.items()}
    return [_read(item) for item in value] if isinstance(value, list) else value


# ------------------------------------------------------------------------------------------------------ tensor storage
# Nested values with tensors in them, as one safetensors file with a JSON header. No pickle is read or written.


LONGEST_HEADER = 100_000_000  # as safetensors has it
DTYPES = {
    **{"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "BOOL": torch.bool},
    **{"I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8},
}


class OtherKind(ValueError):
    """A safetensors file that holds something else."""


def save(path: str | PathLike[str], kind: str, version: int, value: Mapping[str, Any]) -> None:
    """Write ``value`` as a file of this kind and version."""
    check_no_view(path, "its plot().save")
    tensors: dict[str, Tensor] = {}
    header = json.dumps(pack(value, tensors))
    if not Path(path).parent.is_dir():
        raise FileNotFoundError(f"there is no folder {Path(path).parent} to save {Path(path).name} in")
    write_atomically(path, to_bytes(tensors, {"format": kind, "version": str(version), "value": header}))


def load(
    path: str | PathLike[str],
    kind: str,
    version: int,
    make: Callable[[dict[str, Any]], Any] = dict,
    check: Callable[[dict[str, Any]], Any] = dict,
) -> Any:
    """What is made of what `save` wrote; anything else is refused.

    The header says what kind of file it is before any tensor is read, and ``check`` sees the value with tensors that
    have a shape and a dtype but no contents, so that a foreign file costs no memory.
    """
    regular_file(path)
    header = _header(path, kind)
    written = header.get("version", "")
    if re.fullmatch("[0-9]{1,9}", written) and int(written) > version:
        raise ValueError(
            f"{path} was written as version {written} of {kind}; this heta_lens reads up to version {version}: "
            "upgrade it"
        )
    try:
        if not re.fullmatch("[0-9]{1,9}", written):
            raise ValueError(f"its version is {brief(written)}, and must be a number")
        value = parse_json(header["value"], numbers=False, halves=True)
        with safe_open(path, framework="pt") as file:
            names = sorted(tensor_names(value))
            if names != sorted(file.keys()):
                raise ValueError("its header names other tensors than it holds")
            check(unpack(value, {name: _empty(file, name) for name in names}))
            tensors = {name: file.get_tensor(name).clone() for name in names}  # not a map of the file
        return make(unpack(value, tensors))
    except (KeyError, IndexError, TypeError, ValueError, SafetensorError, OSError) as error:
        reason = f"its header has no {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{path} is a damaged {kind} file: {reason}") from None


def _header(path: str | PathLike[str], kind: str) -> dict[str, str]:
    """The metadata of a safetensors file of this kind, read without mapping or reading its tensors."""
    try:
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            room = os.fstat(file.fileno()).st_size - 8
            if not 0 < length <= min(room, LONGEST_HEADER):
                raise ValueError("it is not a safetensors file, which begins with the length of its header")
            header = parse_json(file.read(length).decode(), halves=True)
    except OSError as error:
        raise type(error)(f"{path} cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        reason = "its header is not text" if isinstance(error, UnicodeDecodeError) else error
        raise ValueError(f"{path} is not a {kind} file: {reason}") from None
    metadata: dict[str, str] = header.pop("__metadata__", {}) if isinstance(header, dict) else {}
    if not (isinstance(header, dict) and fits(metadata, Mapping[str, str])):
        raise ValueError(f"{path} is not a {kind} file: its header is not a safetensors header")
    if metadata.get("format") != kind:
        raise OtherKind(f"{path} is a safetensors file, but not a {kind} file")
    _check_whole(path, kind, header, room - length)
    return metadata


def _check_whole(path: str | PathLike[str], kind: str, tensors: Mapping[str, Any], size: int) -> None:
    """Refuse a file that is cut short, or longer than its tensors."""
    ends = [entry["data_offsets"][1] for entry in tensors.values() if _is_entry(entry)]
    if len(ends) < len(tensors) or max(ends, default=0) != size:
        raise ValueError(f"{path} is not a {kind} file: its tensors do not fill it, so it was cut short or damaged")


def _is_entry(entry: Any) -> bool:
    """Whether this describes a tensor, as the header of safetensors does."""
    offsets: Any = entry.get("data_offsets") if isinstance(entry, dict) else None
    return fits(offsets, Sequence[int]) and len(offsets) == 2


def _empty(file: Any, name: str) -> Tensor:
    """A tensor of the shape and dtype that the file says, without contents."""
    stored = file.get_slice(name)
    return torch.empty(stored.get_shape(), dtype=DTYPES.get(stored.get_dtype(), torch.uint8), device="meta")
