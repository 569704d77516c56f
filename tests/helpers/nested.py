"""Nested values with tensors in them."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def same(found: Any, expected: Any) -> bool:
    """Equal, of the same types, and bit for bit in every tensor."""
    if isinstance(expected, Tensor):
        return isinstance(found, Tensor) and found.dtype == expected.dtype and torch.equal(found, expected)
    if type(found) is not type(expected):
        return False
    if isinstance(expected, Mapping):
        return list(found) == list(expected) and all(same(found[key], item) for key, item in expected.items())
    if isinstance(expected, list | tuple):
        return len(found) == len(expected) and all(map(same, found, expected))
    return found == expected
