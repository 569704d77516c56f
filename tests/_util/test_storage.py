"""Nested values with tensors, in files and in JSON: read exactly as they were written, or refused."""

import json
import math
import pickle
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from helpers.attributions import TOKENS, uncertain
from helpers.nested import same
from heta_lens import Attribution
from heta_lens._util import storage
from heta_lens._util.storage import from_json, load, save, to_json
from heta_lens.attribution import FORMAT, VERSION

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


def test_tensors_may_lie_anywhere_inside(path: Path):
    value = {
        "mask": torch.randn(3),
        "deep": {"list": [torch.arange(2), (None, torch.tensor(True))], "tuple": ((torch.eye(2),),)},
        "2": {"0": torch.zeros(1)},
    }
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


VALUES: list[Any] = [
    {"a": 1, "b": [None, True, "x"], "c": (1, (2.5, frozenset({3, 4})))},
    {1: "whole numbers as keys", "$odd": {"deep": [torch.arange(6).reshape(2, 3)]}},
    torch.tensor([0.1, 1e-30, 3.0]),
    torch.tensor([[0.1, -2.0]], dtype=torch.float64),
    torch.tensor([0.1, 7.0], dtype=torch.bfloat16),
    torch.tensor([0.1, 7.0], dtype=torch.float16),
    torch.tensor([True, False]),
    torch.tensor(5),
    torch.zeros(0, 3),
]


def alike(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(alike, one, other))
    return type(one) is type(other) and one == other


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_what_was_written_is_read_exactly(value: Any) -> None:
    text = json.dumps(to_json(value), allow_nan=False)
    assert alike(from_json(json.loads(text)), value)


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (3, "3 is not a value and its tensors"),
        ({"value": 1}, "is not a value and its tensors"),
        ({"value": 1, "tensors": []}, r"its tensors is \[\], and must be an object"),
        ({"value": 1, "tensors": {"a": 2}}, "its tensor a is 2, and must have dtype, shape, values"),
        (
            {"value": {"$tensor": "a"}, "tensors": {"a": {"dtype": "float8", "shape": [1], "values": [1]}}},
            "its tensor a has the dtype 'float8', which is none of torch's",
        ),
        (
            {"value": {"$tensor": "a"}, "tensors": {"a": {"dtype": "int64", "shape": [1], "values": ["x"]}}},
            "its tensor a holds more than numbers",
        ),
        (
            {"value": 1, "tensors": {"a": {"dtype": "int64", "shape": [1], "values": [1]}}},
            "it names other tensors than it holds",
        ),
    ],
)
def test_what_is_no_such_json_is_refused(written: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        from_json(written)


def saved_fields(path: Path, **changes: Any) -> Path:
    """A file with an attribution's fields, of which some are changed."""
    made = uncertain()
    storage.save(path, FORMAT, VERSION, {entry.name: getattr(made, entry.name) for entry in fields(made)} | changes)
    return path


def of_messages(**changes: Any) -> dict[str, Any]:
    """One message of a chat, in which something is changed."""
    places, owners = torch.tensor([[0, 0, 5]]), torch.tensor([0, -1, 0, 0, 0, 0])
    return {"messages": {"roles": ("user",), "places": places, "owners": owners, **changes}}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": (*TOKENS, "more")}, r"its ids has shape \(6,\) and torch.int64, and must have shape \(7,\)"),
        ({"tokens": ()}, "it has no tokens"),
        ({"tokens": [*TOKENS]}, "its tokens is .* and must be a list of text"),
        ({"tokens": (*TOKENS[:5], 5)}, "its tokens is"),
        ({"tokens": (*TOKENS[:5], "\ud83d")}, r"its tokens\[5\] is not valid UTF-8 at character 0"),
        ({"ids": None}, "its ids is None, and must be a tensor"),
        ({"ids": torch.ones(6)}, "its ids has shape .* torch.float32"),
        ({"scores": torch.ones(6, dtype=torch.int64)}, "its scores has shape .* torch.int64"),
        ({"scores": torch.tensor([1.0, 2, 3, math.nan, 5, 6])}, r"its scores at \[3\] is nan, and must be finite"),
        ({"parts": {"gate": torch.ones(5)}}, r"its parts\['gate'\] has shape \(5,\)"),
        ({"parts": {"gate": 1.0}}, "its parts is"),
        ({"offsets": torch.zeros(6, 3, dtype=torch.int64)}, r"its offsets has shape \(6, 3\)"),
        (
            {"offsets": torch.full((6, 2), 99)},
            r"its offsets\[0\] are \(99, 99\), which is not a place in its text",
        ),
        ({"positions": torch.zeros(6, dtype=torch.int64)}, "its positions are .* ascending order"),
        ({"interactions": torch.ones(6)}, r"its interactions has shape \(6,\)"),
        ({"target": (7, 9)}, "its target_text is ' down', which does not fit the target"),
        ({"target": -1}, "its target is below 0"),
        ({"target": "down"}, "its target is 'down', and must be a whole number"),
        ({"target": frozenset((7,))}, "its target is .*: a set has at least 2 tokens"),
        ({"target": frozenset()}, "its target is .*: a set has at least 2 tokens"),
        ({"target": frozenset((7, -9))}, "its target is below 0"),
        ({"target": (frozenset((7, 9)), 9), "target_text": ("", "")}, "its target is .* a contrast none of them twice"),
        ({"target": (7, 7), "target_text": ("", "")}, "its target is .* a contrast none of them twice"),
        ({"target": (frozenset((7, 9)), 3)}, "its target_text is ' down', which does not fit the target"),
        ({"target": {"function": 5}}, "its target is"),
        ({"target": {"name": "margin"}}, "its target is .*, which names no function"),
        (
            {"target": {"function": "f"}, "diagnostics": {"target_rank": 1, "target_log_prob": -1.0}},
            "which a function as the target has not",
        ),
        ({"target": {}}, "its target is .*, which names no function"),
        ({"diagnostics": {"target_value": "much"}}, "its target_value is 'much', and must be a number"),
        ({"diagnostics": {"target_members": [{"id": 3}]}}, "its target_members hold .*, without text, id"),
        ({"signed": 1}, "its signed is 1, and must be true or false"),
        ({"diagnostics": {"sink_mass": "much"}}, "its sink_mass is 'much', and must be a number"),
        ({"diagnostics": {"target_rank": 1}}, "only one of target_log_prob and target_rank"),
        ({"diagnostics": {"target_rank": 1, "target_log_prob": 1000.0}}, "its target_log_prob is 1000.0"),
        ({"diagnostics": {"standard_errors": {"scores": torch.ones(6)}}}, "standard_errors but no probes"),
        ({"diagnostics": {"standard_errors": {"scores": torch.ones(5)}}}, r"standard_errors\['scores'\] has shape"),
        ({"diagnostics": {"balanced": torch.ones(5)}}, r"its balanced is or has shape \(5,\)"),
        ({"weather": "fine"}, "it has an unknown field 'weather'"),
        ({"messages": 5}, "its messages is 5, and must be an object of text or null"),
        ({"messages": {"roles": ("user",)}}, r"its messages have \['roles'\], and must have roles, places, owners"),
        (of_messages(roles=("user", 5)), "its messages have the roles .* and must have a list of text"),
        (of_messages(roles=("\ud83d",)), "a role of its messages is not valid UTF-8 at character 0"),
        (of_messages(roles=()), r"its messages' owners are \[0, -1, 0, 0, 0, 0\], and must be -1 or one of 0 messages"),
        (of_messages(owners=torch.zeros(5, dtype=torch.int64)), r"its messages' owners has shape \(5,\)"),
        (
            of_messages(owners=torch.full((6,), -2)),
            r"its messages' owners are \[-2, .* must be -1 or one of 1 messages",
        ),
        (of_messages(owners=None), "its messages' owners is None, and must be a tensor"),
        (of_messages(places=torch.zeros(2, 2, dtype=torch.int64)), r"its messages' places has shape \(2, 2\)"),
        (of_messages(places=torch.tensor(3)), r"its messages' places has shape \(\)"),
        (of_messages(places=torch.ones(2, 3)), "its messages' places has shape .* torch.float32"),
        (
            of_messages(places=torch.tensor([[0, 0, 99]])),
            r"its messages' places are \[\[0, 0, 99\]\], and must be of 1",
        ),
        (of_messages(places=torch.tensor([[1, 0, 2]])), r"its messages' places are \[\[1, 0, 2\]\], and must be of 1"),
        (of_messages(places=torch.tensor([[0, 2, 1]])), r"its messages' places are \[\[0, 2, 1\]\]"),
        ({"diagnostics": {"template_mass": "much"}}, "its template_mass is 'much', and must be a number"),
    ],
)
def test_a_file_that_is_no_attribution_is_refused(tmp_path: Path, changes: dict[str, Any], message: str):
    path = saved_fields(tmp_path / "a.safetensors", **changes)
    with pytest.raises(ValueError, match=rf"a.safetensors is a damaged {FORMAT} file: .*{message}"):
        Attribution.load(path)


def test_a_file_that_is_one_is_loaded(tmp_path: Path):
    assert repr(Attribution.load(saved_fields(tmp_path / "a.safetensors"))) == repr(uncertain())
