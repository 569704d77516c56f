"""Nested values with tensors in them as JSON: the tensors apart, by name, or written out as numbers."""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

import numpy as np
import torch
from torch import Tensor

from heta_lens._util.file_reading import brief
from heta_lens._util.type_checks import check_types, fits

TENSOR, TUPLE, PAIRS, SET, NUMBER = "$tensor", "$tuple", "$pairs", "$set", "$number"
DTYPES = {
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
    if written["dtype"] not in DTYPES:
        raise ValueError(f"its tensor {name} has the dtype {brief(written['dtype'])}, which is none of torch's")
    values = _read(written["values"])
    if not all(isinstance(value, bool | int | float) for value in values):
        raise ValueError(f"its tensor {name} holds more than numbers")
    return torch.tensor(values, dtype=DTYPES[written["dtype"]]).reshape(tuple(written["shape"]))


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
