"""Nested values with tensors become JSON, and the same values again."""

import json
from math import inf, isnan, nan
from typing import Any

import pytest
import torch

from heta_lens._util.storage import from_json, shortest, to_json

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


def test_numbers_that_json_does_not_have() -> None:
    text = json.dumps(to_json({"x": [nan, inf], "t": torch.tensor([nan, -inf, 1.0])}), allow_nan=False)
    back = from_json(json.loads(text))
    assert isnan(back["x"][0]) and back["x"][1] == inf
    assert back["t"].isnan().tolist() == [True, False, False] and float(back["t"][1]) == -inf


def test_single_precision_needs_few_digits() -> None:
    assert shortest(torch.tensor([0.1, 1 / 3])) == [0.1, 0.33333334]
    numbers = torch.rand(1000, generator=torch.Generator().manual_seed(0))
    assert torch.equal(torch.tensor(shortest(numbers)), numbers)


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
