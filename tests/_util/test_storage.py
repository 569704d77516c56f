"""Nested values with tensors come back from files and from JSON exactly, and other files are refused."""

import math
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from helpers.attributions import same
from heta_lens._util.storage import load, of_bytes, save, to_bytes

# ------------------------------------------------------------------------------------------------------- tensor storage
KIND = "tests.value"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "value.safetensors"


def stored(path: Path, value: dict[str, Any]) -> dict[str, Any]:
    save(path, KIND, 1, value)
    return load(path, KIND, 1)


@pytest.mark.parametrize(
    "value",
    [
        None, True, False, 0, -1, 10**30, 0.1, 1e-300, math.inf, "", "text", "emoji 😀, \"quotes\", \x00, \u2028, é",
        frozenset(), frozenset((3, 1)), (frozenset((3, 1)), 2),
        (), [], {}, (1,), [1], (1, (2, [None, (True,)])), [(), [()]],
        {"a": {"b": {"c": (None,)}}}, {"": 1, ".": 2, "a.b": 3},
    ],
    ids=repr,
)  # fmt: skip
def test_plain_values_come_back_as_they_were(path: Path, value: Any):
    assert same(stored(path, {"value": value}), {"value": value})


@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int8, torch.uint8, torch.bool],
)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0), (2, 3)])
def test_tensors_of_every_dtype_and_shape_come_back_bit_for_bit(path: Path, dtype: torch.dtype, shape: tuple[int, ...]):
    tensor = (torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 3).to(dtype)
    assert same(stored(path, {"tensor": tensor}), {"tensor": tensor})


@pytest.mark.parametrize(
    "value",
    [
        {0: "a", 1: "b"},
        {1: torch.tensor(1), "1": torch.tensor(2)},
        {"$tensor": "mask"},
        {"$tuple": [1]},
        {"$tuple": 1},
        {"$set": [1]},
    ],
    ids=repr,
)
def test_mappings_with_any_keys_come_back_as_they_were(path: Path, value: dict[Any, Any]):
    assert same(stored(path, {"value": value}), {"value": value})


def test_what_was_loaded_does_not_change_with_its_file(path: Path):
    save(path, KIND, 1, {"tensor": torch.full((1000,), 2.0)})
    other = path.read_bytes()
    found = stored(path, {"tensor": torch.ones(1000)})
    with open(path, "r+b") as file:  # in place, as safetensors before 0.8 writes
        file.write(other)
    assert same(found, {"tensor": torch.ones(1000)})


@pytest.mark.parametrize("value", [{1, 2}, object(), b"bytes", 1j])
def test_what_cannot_be_stored_is_refused_and_leaves_no_file(path: Path, value: Any):
    with pytest.raises(TypeError):
        save(path, KIND, 1, {"tensor": torch.ones(1), "options": {"odd": value}})
    assert not path.exists()


class Trap:
    """Unpickling one raises the alarm."""

    def __reduce__(self) -> tuple[Any, ...]:
        return pytest.fail, ("a pickle was read",)


@pytest.mark.parametrize("write", [torch.save, lambda trap, path: path.write_bytes(pickle.dumps(trap))])
def test_a_pickle_is_refused_unread(path: Path, write: Any):
    write({"scores": Trap()}, path)
    with pytest.raises(ValueError, match=rf"value\.safetensors is not a {KIND} file"):
        load(path, KIND, 1)


NOT_METADATA = (24).to_bytes(8, "little") + b'{"__metadata__":"text"}  '


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"some text that is long enough", bytes(100), b"\xff" * 100, NOT_METADATA]
)
def test_any_other_file_is_refused(path: Path, content: bytes):
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"value\.safetensors is not a {KIND} file"):
        load(path, KIND, 1)


@pytest.mark.parametrize(
    "header",
    [
        {"value": "{}"},
        {"version": "one", "value": "{}"},
        {"version": "1"},
        {"version": "1", "value": "{"},
        {"version": "1", "value": '{"scores": {"$tensor": "gone"}}'},
    ],
    ids=["no version", "odd version", "no value", "broken value", "missing tensor"],
)
def test_a_damaged_header_is_refused_by_the_name_of_the_file(path: Path, header: dict[str, str]):
    save_file({"tensor": torch.ones(1)}, path, {"format": KIND, **header})
    with pytest.raises(ValueError, match=r"value\.safetensors"):
        load(path, KIND, 1)


def test_what_is_written_into_bytes_is_read_exactly() -> None:
    value = {1: "whole numbers as keys", "$odd": {"deep": [torch.arange(6).reshape(2, 3)]}}
    raw = to_bytes(KIND, 1, {"value": value})
    assert same(of_bytes(raw, "here", KIND, 1)["value"], value)
    with pytest.raises(ValueError, match=r"here is not a tests\.value file"):
        of_bytes(raw[:20], "here", KIND, 1)


@pytest.mark.parametrize("version", [1, 3])
def test_another_version_is_refused(path: Path, version: int) -> None:
    save(path, KIND, version, {"a": 1})
    with pytest.raises(ValueError, match=rf"version '{version}' of {KIND}, and this heta_lens reads version 2"):
        load(path, KIND, 2)
