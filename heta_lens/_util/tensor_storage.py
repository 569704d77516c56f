"""Nested values with tensors in them, as one safetensors file with a JSON header. No pickle is read or written."""

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from heta_lens._util.file_reading import brief, parse_json, regular_file
from heta_lens._util.file_writing import check_no_view, write_atomically
from heta_lens._util.nested_tensors import pack, tensor_names, unpack
from heta_lens._util.type_checks import fits

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
