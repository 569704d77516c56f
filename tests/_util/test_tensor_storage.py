"""Nested values come back from a file exactly as they went in, and nothing else is read."""

import math
import os
import pickle
import stat
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from helpers.nested import same
from heta_lens._util.storage import load, save

KIND = "tests.value"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "value.safetensors"


def stored(path: Path, value: dict[str, Any]) -> dict[str, Any]:
    save(path, KIND, 1, value)
    return load(path, KIND, 1)


# ------------------------------------------------------------------------------------------------------- round trips
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


def test_nan_and_infinity_survive(path: Path):
    value = stored(path, {"number": math.nan, "tensor": torch.tensor([math.nan, -math.inf])})
    assert math.isnan(value["number"])
    assert value["tensor"][0].isnan()
    assert value["tensor"][1] == -math.inf


def test_tensors_may_lie_anywhere_inside(path: Path):
    value = {
        "mask": torch.randn(3),
        "deep": {"list": [torch.arange(2), (None, torch.tensor(True))], "tuple": ((torch.eye(2),),)},
        "2": {"0": torch.zeros(1)},
    }
    assert same(stored(path, value), value)


def test_views_of_one_tensor_are_stored_each_on_its_own(path: Path):
    whole = torch.arange(6.0).view(2, 3)
    value = {"whole": whole, "row": whole[1], "transposed": whole.T, "again": whole}
    assert same(stored(path, value), value)


def test_a_gradient_graph_is_left_behind(path: Path):
    leaf = torch.ones(2, requires_grad=True)
    found = stored(path, {"leaf": leaf, "grown": leaf * 2})
    assert same(found, {"leaf": torch.ones(2), "grown": torch.full((2,), 2.0)})
    assert not found["leaf"].requires_grad


@pytest.mark.parametrize(
    "value",
    [
        {"a.b": torch.tensor(1.0), "a": {"b": torch.tensor(2.0)}},
        {".a": torch.tensor(1.0), "a": torch.tensor(2.0)},
        {"a": {".b": torch.tensor(1.0)}, "a.": {"b": torch.tensor(2.0)}},
    ],
    ids=["a.b and a/b", ".a and a", "a/.b and a./b"],
)
def test_names_with_dots_do_not_mix_tensors_up(path: Path, value: dict[str, Any]):
    assert same(stored(path, value), value)


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


def test_text_with_half_a_surrogate_pair_survives(path: Path):
    assert stored(path, {"text": "\ud83d"}) == {"text": "\ud83d"}


def test_saving_leaves_the_value_alone(path: Path):
    tensor = torch.arange(3.0)
    value = {"tensor": tensor, "nested": {"list": [tensor]}}
    save(path, KIND, 1, value)
    assert value["tensor"] is tensor
    assert value["nested"]["list"][0] is tensor


def test_saving_again_replaces_the_file(path: Path):
    stored(path, {"long": torch.randn(1000)})
    assert same(stored(path, {"short": torch.ones(1)}), {"short": torch.ones(1)})


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


@pytest.mark.parametrize("name", ["a.png", "a.HTML", "a.json"])
def test_a_file_is_not_named_as_a_picture_or_a_table(path: Path, name: str):
    with pytest.raises(ValueError, match=rf"{name} would hold tensors: name it \.safetensors, .*plot\(\)\.save"):
        save(path.with_name(name), "kind", 1, {})
    assert not path.with_name(name).exists()


def test_a_path_may_be_text(path: Path):
    save(str(path), KIND, 1, {"a": 1})
    assert load(str(path), KIND, 1) == {"a": 1}


# ---------------------------------------------------------------------------------------------------------- refusals
class Trap:
    """Unpickling one raises the alarm."""

    def __reduce__(self) -> tuple[Any, ...]:
        return pytest.fail, ("a pickle was read",)


@pytest.mark.parametrize("write", [torch.save, lambda trap, path: path.write_bytes(pickle.dumps(trap))])
def test_a_pickle_is_refused_unread(path: Path, write: Any):
    write({"scores": Trap()}, path)
    with pytest.raises(ValueError, match=rf"value\.safetensors is not a {KIND} file"):
        load(path, KIND, 1)


@pytest.mark.parametrize("content", [b"", b"{}", b"some text that is long enough", bytes(100), b"\xff" * 100])
def test_any_other_file_is_refused(path: Path, content: bytes):
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"value\.safetensors is not a {KIND} file"):
        load(path, KIND, 1)


def test_half_a_file_is_refused(path: Path):
    save(path, KIND, 1, {"tensor": torch.ones(1000)})
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=rf"value\.safetensors is not a {KIND} file"):
        load(path, KIND, 1)


@pytest.mark.parametrize("header", [None, {}, {"format": "pt"}, {"format": "other", "version": "1", "value": "{}"}])
def test_safetensors_of_another_kind_are_refused(path: Path, header: dict[str, str] | None):
    save_file({"scores": torch.ones(1)}, path, header)
    with pytest.raises(ValueError, match=rf"value\.safetensors is a safetensors file, but not a {KIND} file"):
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


def test_a_newer_version_is_refused_by_saying_what_to_do(path: Path):
    save(path, KIND, 3, {"a": 1})
    with pytest.raises(ValueError, match=r"version 3 .* reads up to version 2: upgrade"):
        load(path, KIND, 2)


def test_an_older_version_is_read(path: Path):
    save(path, KIND, 1, {"a": 1})
    assert load(path, KIND, 2) == {"a": 1}


def test_a_missing_file_is_called_missing(path: Path):
    with pytest.raises(FileNotFoundError, match=r"value\.safetensors"):
        load(path, KIND, 1)


# --------------------------------------------------------------------------------------------------------- the file
@pytest.mark.skipif(os.name == "nt", reason="no umask there")
@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_a_new_file_has_the_permissions_that_the_umask_gives(path: Path, umask: int):
    before = os.umask(umask)
    try:
        save(path, KIND, 1, {"tensor": torch.ones(3)})
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask


def test_a_file_is_replaced_whole_or_stays_as_it_was(path: Path, monkeypatch: pytest.MonkeyPatch):
    save(path, KIND, 1, {"tensor": torch.ones(3)})
    before = path.read_bytes()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        save(path, KIND, 1, {"tensor": torch.zeros(300)})
    assert path.read_bytes() == before
    assert [*path.parent.iterdir()] == [path]
