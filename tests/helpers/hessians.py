"""Hessians of functions that are known, as the library multiplies with them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from heta_lens.methods.heta.hessian import EVERYWHERE, HessianFrom, HessianOperator, Places, hessian
from heta_lens.model.batching import Batches


@dataclass(frozen=True, eq=False)
class Dense(HessianOperator):
    """Products with a matrix that is there."""

    matrix: Tensor

    @property
    def like(self) -> Tensor:
        return self.matrix[:, :, 0, 0]

    def matmat(self, directions: Tensor, places: Places = EVERYWHERE) -> Tensor:
        span = places if isinstance(places, slice) else slice(places, places + 1)
        placed = directions if isinstance(places, slice) else directions[:, None]
        return torch.einsum("iajb,kjb->kia", self.matrix[:, :, span], placed)


def from_dense(matrix: Tensor) -> HessianFrom:
    """The part of a matrix from a position on."""
    return lambda start: Dense(matrix[start:, :, start:])


def hessian_from(
    objective_from: Callable[[int], Callable[[Tensor], Tensor]],
    at: Tensor,
    batch: int = 2,
    done: Callable[[int], Any] = lambda _: None,
) -> Callable[[int], HessianOperator]:
    return lambda start: hessian(objective_from(start), at[start:], Batches(batch), done)


def random_hessian(n: int, d: int) -> Tensor:
    matrix = torch.randn(n * d, n * d, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return (matrix + matrix.T).reshape(n, d, n, d)
