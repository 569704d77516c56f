"""Grouped probes, transcribed from a dense Hessian in float64, one token after the other."""

from itertools import permutations

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

Hessian = Float64[Tensor, "N d N d"]


def products_of_groups(
    hessian: Hessian, signs: Float64[Tensor, "N d"], groups: Int64[Tensor, "N"]
) -> Float64[Tensor, "N d"]:
    """``Σ_j H_ij r_j`` over the tokens j of i's group, of which i is one."""
    rows = []
    for i in range(len(groups)):
        members = [j for j in range(len(groups)) if groups[j] == groups[i] >= 0]
        rows.append(sum((hessian[i, :, j] @ signs[j] for j in members), torch.zeros_like(signs[0])))
    return torch.stack(rows)


def shown_by_others(
    hessian: Hessian, signs: Float64[Tensor, "N d"], groups: Int64[Tensor, "N"], alone: int
) -> Float64[Tensor, "N"]:
    """``Σ_G ‖Σ_{j∈G} H_ij r_j‖²`` over the shared groups G that i is not in."""
    shown = torch.zeros(len(groups), dtype=torch.float64)
    for i in range(len(groups)):
        for group in range(alone, int(groups.max()) + 1):
            if groups[i] != group:
                members = [j for j in range(len(groups)) if groups[j] == group]
                shown[i] += torch.stack([hessian[i, :, j] @ signs[j] for j in members]).sum(0).square().sum()
    return shown


def pair_energies(hessian: Hessian) -> Float64[Tensor, "N N"]:
    """``‖H_ij‖_F²``: what token j adds to the energy at token i, on average over its signs."""
    return hessian.square().sum((1, 3))


def every_deal(tokens: int, groups: int) -> list[Int64[Tensor, "N"]]:
    """All ways in which so many tokens are dealt to groups of nearly one size."""
    return [torch.tensor(order) % groups for order in permutations(range(tokens))]
