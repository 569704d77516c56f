"""Grouped probes: tokens share products with H, so that a score takes as many of them whatever the context's length.

For every probe, each token i belongs to one of a few groups (`token_groups`). The product of H with the signs r of a
group, read at i,

    y_i = H_ii r_i + Σ_j H_ij r_j      over the others of its group,

has the token's own product and cross-talk, which is independent of it: ``E y_i² = E (H_ii r_i)² + E (cross-talk)²``.
Groups are drawn anew for every probe, so what the products of other groups show at i tells how large the second term
is, and the samples ``‖y_i‖₁`` are scaled down by what it adds. Read where others are, the same products tell of
`pairs`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, Int8
from torch import Tensor

from heta_lens.methods.heta.hessian import HessianOperator
from heta_lens.methods.heta.random_probes import gaussian, signs_of
from heta_lens.methods.heta.token_groups import Groups, drawn_groups

MOST_CROSS_TALK = 0.95  # of a token's energy: more is chance


@dataclass(frozen=True, eq=False)
class GroupedProducts:
    """What the products of every probe's groups show: y's ‖·‖₁ at their own tokens, and ‖·‖² at all tokens."""

    groups: Sequence[Groups]
    sizes: Float[Tensor, "probe token"]
    energies: Float[Tensor, "probe group token"]

    def readings(self) -> list[Float[Tensor, "3 _"]]:
        """Of each token, ‖y‖₁ and ‖y‖² of its own groups' products, and the cross-talk's ‖·‖² to be expected in them.

        One of each for every probe in which it has a group.
        """
        both = zip(self.groups, self.energies, strict=True)
        own, crossed = zip(*(own_and_crossed(*each) for each in both), strict=True)
        read = torch.stack([self.sizes, torch.stack(own), torch.stack(crossed)])
        present = torch.stack([groups.present for groups in self.groups]).to(read.device)
        return [read[:, here, token] for token, here in enumerate(present.T)]


def own_and_crossed(
    groups: Groups, energies: Float[Tensor, "group token"]
) -> tuple[Float[Tensor, "token"], Float[Tensor, "token"]]:
    """What a token's own group shows at it, and what of that must be expected to be cross-talk."""
    own = energies.gather(0, groups.of.clamp(min=0)[None].to(energies.device))[0]
    elsewhere = energies[groups.alone : groups.count].sum(0) - own
    return own, groups.expected_share().to(energies) * elsewhere


def grouped_products(
    operator: HessianOperator, seed: int, wanted: Mapping[int, range], groups: int, at_once: int
) -> GroupedProducts:
    """Of the wanted tokens with the signs of each of their probes; the operator begins with the first of them.

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
        drawn_groups(energies, here, groups, [seed, first], number)
        for number, here in zip(numbers, present, strict=True)
    ]
    return _products(operator, places, signs, drawn, at_once)


def _row_energies(
    operator: HessianOperator, places: Int[Tensor, "token"], direction: Float[Tensor, "1 token d"]
) -> Float[Tensor, "token"]:
    """``Σ_j ‖H_ij‖_F²`` of each token i, estimated by one product: how much it disturbs the others."""
    placed = operator.like.new_zeros(1, int(places[-1]) + 1, operator.like.shape[1])
    placed[:, places] = direction.to(placed)
    return operator.matmat(placed, slice(0, placed.shape[1]))[0, places].square().sum(-1).cpu()


def _products(
    operator: HessianOperator,
    places: Int[Tensor, "token"],
    signs: Int8[Tensor, "probe token d"],
    groups: Sequence[Groups],
    at_once: int,
) -> GroupedProducts:
    """With every probe's groups, read at these places."""
    like, of = operator.like, torch.stack([own.of for own in groups])
    sizes = like.new_zeros(signs.shape[:2])
    energies = like.new_zeros(len(groups), max(own.count for own in groups), len(places))
    every = [(probe, group) for probe, own in enumerate(groups) for group in range(own.count)]
    for start in range(0, len(every), at_once):
        probes, numbers = torch.tensor(every[start : start + at_once]).T
        members = of[probes] == numbers[:, None]
        placed = like.new_zeros(len(probes), int(places[-1]) + 1, like.shape[1])
        placed[:, places] = (signs[probes] * members[..., None]).to(like)
        products = operator.matmat(placed, slice(0, placed.shape[1]))[:, places]
        energies[probes, numbers] = products.square().sum(-1)
        rows, tokens = members.nonzero(as_tuple=True)
        sizes[probes[rows], tokens] = products.abs().sum(-1)[rows, tokens]
    return GroupedProducts(groups, sizes, energies)


def without_cross_talk(readings: Sequence[Float[Tensor, "3 _"]]) -> list[Float[Tensor, "_"]]:
    """Each token's samples, from its `GroupedProducts.readings`."""
    return [_without_cross_talk(own) for own in readings]


def _without_cross_talk(readings: Float[Tensor, "3 probe"]) -> Float[Tensor, "probe"]:
    """A token's samples of ‖H_ii r_i‖₁, from the readings of its probes.

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
