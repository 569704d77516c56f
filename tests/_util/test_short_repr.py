"""A short repr."""

from dataclasses import dataclass
from typing import Any

import torch

from heta_lens._util.text import short_repr


@dataclass(frozen=True, eq=False)
class Record:
    tensor: torch.Tensor
    model: Any
    pair: tuple[int, ...]
    text: str


def test_tensors_and_models_are_shown_by_kind_and_size() -> None:
    record = Record(torch.zeros(2, 3), object(), (1, 2), "x" * 100)
    assert short_repr(record) == f"Record(tensor=float32[2, 3], model=<object>, pair=(1, 2), text='{'x' * 59}…)"
    assert "pair=<3 of them>" in short_repr(Record(torch.zeros(1), None, (1, 2, 3), ""))
