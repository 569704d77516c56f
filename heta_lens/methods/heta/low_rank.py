"""The part of H in a random subspace near its eigenvectors of largest eigenvalue, and how much that misses."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import nan
from typing import Any, NamedTuple

import torch
from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor

from heta_lens.methods.heta.hessian import EVERYWHERE, HessianOperator, Places

OVERSAMPLING = 8


class Energy(NamedTuple):
    """Squares of Frobenius norms: of what a low rank leaves out of H, and of what it keeps."""

    missed: float
    kept: float


@dataclass(frozen=True, eq=False)
class LowRank(HessianOperator):
    """``H_k = V diag(λ) Vᵀ``, with the eigenvalues of largest size, and an estimate of ``‖H - H_k‖_F``."""

    vectors: Float[Tensor, "pos d k"]
    values: Float[Tensor, "k"]
    missed_squared: float

    @property
    def like(self) -> Float[Tensor, "pos d"]:
        return self.vectors[..., 0]

    @property
    def energy(self) -> Energy:
        return Energy(self.missed_squared, float(self.values.square().sum()))

    def part(self, start: int, length: int | None = None) -> "LowRank":
        """The same matrix over the positions from ``start`` on; over ``length`` of them, where others do not matter."""
        return replace(self, vectors=self.vectors[start : None if length is None else start + length])

    def matmat(self, directions: Float[Tensor, "k *part d"], places: Places = EVERYWHERE) -> Float[Tensor, "k pos d"]:
        along = rearrange(self.vectors[places], "... rank -> (...) rank")
        weights = rearrange(directions.to(along), "k ... -> k (...)") @ along * self.values
        return einsum(weights, self.vectors, "k rank, pos d rank -> k pos d")


def low_rank(
    operator: HessianOperator,
    rank: int,
    tests: Callable[[int, int, int], Float[Tensor, "k pos d"]],
    probes: Float[Tensor, "probe pos d"],
) -> LowRank:
    """A randomised range finder on the symmetric, indefinite H: ``2 (rank + 8)`` products with it.

    ``tests(count, pos, d)`` are random directions; their images span nearly the range. What is left out is measured on
    ``probes`` that had no part in it: ``E‖(H - H_k) r‖² = ‖H - H_k‖_F²``, which is ``‖H‖_F² - Σ λ²``.
    """
    n, d = probes.shape[1:]
    images = operator.matmat(tests(min(rank + OVERSAMPLING, n * d), n, d))
    if not images.isfinite().all():  # so that the curvature is not finite at the same positions, and named there
        return LowRank(rearrange(images.sum(0), "pos d -> pos d 1"), images.new_ones(1), nan)
    basis = torch.linalg.qr(rearrange(images, "k pos d -> (pos d) k")).Q
    products = operator.matmat(rearrange(basis, "(pos d) k -> k pos d", pos=n))
    # On the CPU in float64, which not every device has: it is a small matrix.
    small = (rearrange(products, "k pos d -> k (pos d)") @ basis).cpu().double()
    values, inner = (tensor.to(basis) for tensor in torch.linalg.eigh((small + small.T) / 2))
    largest = values.abs().argsort(descending=True)[:rank]
    vectors = rearrange(basis @ inner[:, largest], "(pos d) k -> pos d k", pos=n)
    kept = LowRank(vectors, values[largest], 0.0)
    missed = operator.matmat(probes) - kept.matmat(probes)
    return replace(kept, missed_squared=float(missed.square().sum((1, 2)).mean()))


def tail_energy(energies: Sequence[Energy]) -> dict[str, Any]:
    """What low ranks leave out of H, over all windows: ``‖H - H_k‖_F``, and its share of ``‖H‖_F``."""
    if not energies:
        return {}
    missed = sum(energy.missed for energy in energies)
    whole = missed + sum(energy.kept for energy in energies)
    return {"tail_energy": missed**0.5, "tail_energy_share": (missed / whole) ** 0.5 if whole else 0.0}
