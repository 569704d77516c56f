"""Grouped probes: tokens share products with H, so that a score takes as many of them whatever the context's length.

For every probe, each token i belongs to one of a few groups. The product of H with the signs r of a group, read at i,

    y_i = H_ii r_i + Σ_j H_ij r_j      over the others of its group,

has the token's own product and cross-talk, which is independent of it: ``E y_i² = E (H_ii r_i)² + E (cross-talk)²``.
Groups are drawn anew for every probe, so what the products of other groups show at i tells how large the second term
is, and the samples ``‖y_i‖₁`` are scaled down by what it adds. Tokens that disturb others most, by the rows of H, have
groups of their own, and no cross-talk.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Int8
from torch import Tensor

from heta_lens.methods.heta.hessian import HessianOperator
from heta_lens.methods.heta.random_probes import gaussian, signs_of

LEAST_SHARED = 2  # groups of several tokens: what one shows at the tokens of another is their cross-talk
MOST_CROSS_TALK = 0.95  # of a token's energy: more is chance
NONE = -1


class Readings(NamedTuple):
    """What products show at a token: ‖y‖₁ and ‖y‖² of its own group's, and the cross-talk's ‖·‖² to be expected."""

    sizes: Float[Tensor, "probe token"]
    energies: Float[Tensor, "probe token"]
    crossed: Float[Tensor, "probe token"]


@dataclass(frozen=True, eq=False)
class Groups:
    """The group of each token, or `NONE`. The first ``alone`` groups have one token each."""

    of: Int[Tensor, "token"]
    alone: int
    count: int

    def expected_share(self) -> Float[Tensor, "token"]:
        """The cross-talk to be expected at a token, relative to what all other shared groups show there.

        Every other token of shared groups is as likely to be in its group.
        """
        sharing = (self.of >= self.alone).sum()
        own = torch.bincount(self.of.clamp(min=0), minlength=self.count)[self.of]
        return torch.where(self.of >= self.alone, (own - 1) / (sharing - own).clamp(min=1), 0.0)


def grouped_readings(
    operator: HessianOperator, seed: int, wanted: Mapping[int, range], groups: int, at_once: int
) -> list[Float[Tensor, "3 _"]]:
    """Each wanted token's `Readings`, one a probe; the operator begins with the first of these positions.

    One product more, with a random direction everywhere, tells which tokens should have groups of their own.
    """
    first, width = min(wanted), operator.like.shape[1]
    places = torch.tensor([token - first for token in wanted], device=operator.like.device)
    numbers = sorted(set[int]().union(*wanted.values()))
    present = torch.tensor([[number in own for own in wanted.values()] for number in numbers])
    signs = torch.zeros(len(numbers), len(wanted), width, dtype=torch.int8)
    for column, own in enumerate(signs_of(seed, wanted, width)):
        signs[present[:, column], column] = own.to(torch.int8)
    energies = _row_energies(operator, places, gaussian(seed, first, 1, len(places), width))
    drawn = [
        drawn_groups(energies, here, groups, [seed, first, number])
        for number, here in zip(numbers, present, strict=True)
    ]
    readings = torch.stack(_read(operator, places, signs, drawn, at_once))
    return [own[:, here.to(own.device)] for own, here in zip(readings.unbind(2), present.T, strict=True)]


def _row_energies(
    operator: HessianOperator, places: Int[Tensor, "token"], direction: Float[Tensor, "1 token d"]
) -> Float[Tensor, "token"]:
    """``Σ_j ‖H_ij‖_F²`` of each token i, estimated by one product: how much it disturbs the others."""
    placed = operator.like.new_zeros(1, int(places[-1]) + 1, operator.like.shape[1])
    placed[:, places] = direction.to(placed)
    return operator.matmat(placed, slice(0, placed.shape[1]))[0, places].square().sum(-1).cpu()


def drawn_groups(
    energies: Float[Tensor, "token"], present: Bool[Tensor, "token"], groups: int, seed: Sequence[int]
) -> Groups:
    """Groups of the tokens that are ``present``: each its own where there are enough; else the rest dealt at random."""
    tokens = present.nonzero()[:, 0]
    of = torch.full_like(present, NONE, dtype=torch.long)
    if len(tokens) <= groups:
        of[tokens] = torch.arange(len(tokens))
        return Groups(of, len(tokens), len(tokens))
    alone = count_alone(energies[tokens], groups)
    ordered = tokens[energies[tokens].argsort(descending=True, stable=True)]
    shuffled = np.random.default_rng(seed).permutation(len(tokens) - alone)
    of[ordered[:alone]] = torch.arange(alone)
    of[ordered[alone:]] = alone + torch.from_numpy(shuffled) % (groups - alone)
    return Groups(of, alone, groups)


def count_alone(energies: Float[Tensor, "token"], groups: int) -> int:
    """How many tokens, of the largest energies, should have groups of their own.

    With blocks ``‖H_ij‖² ∝ e_i e_j``, the rest's cross-talk is the sum of these over pairs, shared out over the groups
    that are left.
    """
    ordered = energies.double().sort(descending=True).values
    rest = torch.cat([ordered, ordered.new_zeros(1)]).flip(0).cumsum(0).flip(0)  # of the tokens from a rank on
    squares = torch.cat([ordered.square(), ordered.new_zeros(1)]).flip(0).cumsum(0).flip(0)
    most = groups - LEAST_SHARED
    expected = [float(rest[alone] ** 2 - squares[alone]) / (groups - alone) for alone in range(most + 1)]
    return min(range(most + 1), key=expected.__getitem__)


def _read(
    operator: HessianOperator,
    places: Int[Tensor, "token"],
    signs: Int8[Tensor, "probe token d"],
    groups: Sequence[Groups],
    at_once: int,
) -> Readings:
    """What the products of every probe's groups show at these places; 0 for tokens of no group."""
    like = operator.like
    readings = Readings(*(like.new_zeros(signs.shape[:2]) for _ in Readings._fields))
    shared = like.new_zeros(signs.shape[:2])  # what all shared groups show
    every = [(probe, group) for probe, own in enumerate(groups) for group in range(own.count)]
    for start in range(0, len(every), at_once):
        some = every[start : start + at_once]
        probes = torch.tensor([probe for probe, _ in some])
        members = torch.stack([groups[probe].of == number for probe, number in some])
        placed = like.new_zeros(len(probes), int(places[-1]) + 1, like.shape[1])
        placed[:, places] = (signs[probes] * members[..., None]).to(like)
        products = operator.matmat(placed, slice(0, placed.shape[1]))[:, places]
        sizes, energies = products.abs().sum(-1), products.square().sum(-1)
        rows, tokens = members.nonzero(as_tuple=True)
        readings.sizes[probes[rows], tokens] = sizes[rows, tokens]
        readings.energies[probes[rows], tokens] = energies[rows, tokens]
        is_shared = torch.tensor([number >= groups[probe].alone for probe, number in some])
        shared.index_add_(0, probes[is_shared].to(like.device), energies[is_shared])
    expected = torch.stack([own.expected_share() for own in groups]).to(like)
    return readings._replace(crossed=expected * (shared - readings.energies))


def without_cross_talk(readings: Sequence[Float[Tensor, "3 _"]]) -> list[Float[Tensor, "_"]]:
    """Each token's samples, from its `Readings`."""
    return [_without_cross_talk(own) for own in readings]


def _without_cross_talk(readings: Float[Tensor, "3 probe"]) -> Float[Tensor, "probe"]:
    """A token's samples of ‖H_ii r_i‖₁, from the `Readings` of its probes.

    Their mean is ``mean ‖y‖₁ · sqrt(1 - cross-talk / energy)``, and their spread is of that (by the delta method).
    """
    sizes = readings[0]
    means = readings.mean(1, keepdim=True)
    if not readings[2].any() or not means[1].any():
        return sizes
    share = means[2] / means[1]
    if share > MOST_CROSS_TALK:
        return (1 - MOST_CROSS_TALK) ** 0.5 * sizes
    kept, deviations = (1 - share).sqrt(), readings - means
    share_deviations = (deviations[2] - share * deviations[1]) / means[1]
    return kept * sizes - means[0] * share_deviations / (2 * kept)
