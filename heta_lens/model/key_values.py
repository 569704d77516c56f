"""Runs that continue from kept keys and values; what differs between kinds of models is left to a subclass each."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from heta_lens.model.model_protocol import KeysValues, Model


@dataclass(frozen=True, eq=False)
class KeyValueReuse(ABC):
    """How a kind of model continues from the keys and values of a prefix."""

    model: Model
    position_axis: ClassVar[int]  # of keys and values, as this kind of model keeps them

    @abstractmethod
    def arguments(self, prefix: KeysValues, start: int, stop: int, batch: int, device: torch.device) -> dict[str, Any]:
        """Arguments with which a run of positions ``start:stop`` continues these keys and values."""

    @abstractmethod
    def grown(self, arguments: Mapping[str, Any]) -> KeysValues:
        """The keys and values that a run with these arguments continued and those it added, per layer."""

    def resume(
        self, keys_values: KeysValues, start: int, stop: int, batch: int, device: torch.device
    ) -> dict[str, Any]:
        """Arguments with which a run of positions ``start:stop`` continues the first ``start``, unchanged.

        Built anew for every run, because the run appends to them: `grown` reads the result.
        """
        first = partial(_first_positions, self.position_axis, start, batch)
        prefix = [(first(keys), first(values)) for keys, values in keys_values]
        return self.arguments(prefix, start, stop, batch, device)

    def joined(self, before: KeysValues, clean: KeysValues, stop: int) -> KeysValues:
        """Keys and values ``before``, followed by the ``clean`` ones of the positions up to ``stop``."""
        join = partial(_join, self.position_axis, stop)
        return [
            (join(keys, clean_keys), join(values, clean_values))
            for (keys, values), (clean_keys, clean_values) in zip(before, clean, strict=True)
        ]


def _first_positions(axis: int, count: int, batch: int, kept: Tensor) -> Tensor:
    return kept.narrow(axis, 0, count).expand(batch, -1, -1, -1)


def _join(axis: int, stop: int, head: Tensor, clean: Tensor) -> Tensor:
    start = head.shape[axis]
    tail = clean.narrow(axis, start, stop - start)
    return torch.cat([head, tail.expand(len(head), -1, -1, -1)], axis)
