"""Grouped probes: tokens share HVPs, so that a score takes as many of them whatever the context's length.

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
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Int8
from torch import Tensor

from heta_lens.methods.heta.hessian import HessianFrom, HessianOperator
from heta_lens.methods.heta.random_probes import gaussian, signs_of
from heta_lens.methods.heta.token_groups import Groups, drawn_groups
from heta_lens.model.batching import GRAPH, PRODUCT, SHORT

MOST_CROSS_TALK = 0.95  # of a token's energy: more is chance


@dataclass(frozen=True, eq=False)
class GroupedProducts:
    """What the products of every probe's groups show: y's ‖·‖₁ at their own tokens, and ‖·‖² at all tokens.

    A token that is alone and late may have been read only from where its graph begins; before that are zeros.
    """

    groups: Sequence[Groups]
    sizes: Float[Tensor, "probe token"]
    energies: Float[Tensor, "probe group token"]

    def readings(self) -> list[Float[Tensor, "3 _"]]:
        """Of each token, ‖y‖₁ and ‖y‖² of its own groups' products, and the cross-talk's ‖·‖² to be expected in them.

        One of each for every probe in which it has a group.
        """
        both = zip(self.groups, self.energies, strict=True)
        own, elsewhere = map(torch.stack, zip(*(own_and_elsewhere(*each) for each in both), strict=True))
        share = torch.stack([groups.expected_share() for groups in self.groups]).to(own)
        read = torch.stack([self.sizes, own, share * elsewhere])
        present = torch.stack([groups.present for groups in self.groups]).to(read.device)
        return [read[:, here, token] for token, here in enumerate(present.T)]


def own_and_elsewhere(
    groups: Groups, energies: Float[Tensor, "group token"]
) -> tuple[Float[Tensor, "token"], Float[Tensor, "token"]]:
    """What a token's own group shows at it, and what all shared groups do that are not its own."""
    own = energies.gather(0, groups.of.clamp(min=0)[None].to(energies.device))[0]
    shared = energies[groups.alone : groups.count].sum(0)
    return own, shared - torch.where(groups.shares.to(own.device), own, 0)


class Product(NamedTuple):
    """A group in a probe, and the place of its token, if there is only one."""

    probe: int
    group: int
    alone: int | None

    def is_late(self, start: int) -> bool:
        return self.alone is not None and self.alone >= start


@dataclass(frozen=True, eq=False)
class Drawn:
    """What H is to be multiplied with: every probe's groups, and the tokens' signs (0 where a token has no group).

    ``places`` are the tokens' positions from that of the first on.
    """

    places: Int[Tensor, "token"]
    signs: Int8[Tensor, "probe token d"]
    groups: Sequence[Groups]

    @property
    def of(self) -> Int[Tensor, "probe token"]:
        """The group of each token in each probe."""
        return torch.stack([groups.of for groups in self.groups])

    @property
    def products(self) -> list[Product]:
        """One a group."""
        return [
            Product(probe, group, int(self.places[own.of == group]) if group < own.alone else None)
            for probe, own in enumerate(self.groups)
            for group in range(own.count)
        ]


def grouped_products(
    hessian_from: HessianFrom, seed: int, wanted: Mapping[int, range], groups: int, at_once: int, *, late: bool = False
) -> GroupedProducts:
    """Of the wanted tokens with the signs of each of their probes; ``hessian_from(0)`` begins with the first of them.

    One product more, with a random direction everywhere, tells which tokens should have groups of their own. ``late``
    allows those of them that are late a graph that begins later: they are then read from there on.
    """
    operator = hessian_from(0)
    drawn = _draw(operator, seed, wanted, groups)
    like, (count, tokens) = operator.like, drawn.of.shape
    most = max(own.count for own in drawn.groups)
    found = GroupedProducts(drawn.groups, like.new_zeros(count, tokens), like.new_zeros(count, most, tokens))
    products = drawn.products
    alone = [each.alone for each in products if each.alone is not None]
    start = late_start(alone, len(like)) if late else len(like)
    _multiply(operator, drawn, [each for each in products if not each.is_late(start)], 0, at_once, found)
    if later := [each for each in products if each.is_late(start)]:
        del operator  # and its graph, before the next is built
        _multiply(hessian_from(start), drawn, later, start, at_once, found)
    return found


def _draw(operator: HessianOperator, seed: int, wanted: Mapping[int, range], groups: int) -> Drawn:
    """Every wanted probe's groups and signs."""
    first, width = min(wanted), operator.like.shape[1]
    places = torch.tensor([token - first for token in wanted])
    numbers = sorted(set[int]().union(*wanted.values()))
    present = torch.tensor([[number in own for own in wanted.values()] for number in numbers])
    signs = torch.zeros(len(numbers), len(wanted), width, dtype=torch.int8)
    for column, own in enumerate(signs_of(seed, wanted, width)):
        signs[present[:, column], column] = own.to(torch.int8)
    energies = _row_energies(operator, places, gaussian(seed, first, 1, len(places), width))
    both = zip(numbers, present, strict=True)
    return Drawn(places, signs, [drawn_groups(energies, here, groups, [seed, first], number) for number, here in both])


def _row_energies(
    operator: HessianOperator, places: Int[Tensor, "token"], direction: Float[Tensor, "1 token d"]
) -> Float[Tensor, "token"]:
    """``Σ_j ‖H_ij‖_F²`` of each token i, estimated by one product: how much it disturbs the others."""
    placed = operator.like.new_zeros(1, int(places[-1]) + 1, operator.like.shape[1])
    placed[:, places] = direction.to(placed)
    return operator.matmat(placed, slice(0, placed.shape[1]))[0, places].square().sum(-1).cpu()


def late_start(alone: Sequence[int], length: int) -> int:
    """Where a graph of their own should begin, for products of tokens at these places that are not before it.

    They need not run what is before it. At the end, where that saves less than building the graph takes.
    """

    def saved(start: int) -> int:
        run = max(length - start, SHORT)
        return PRODUCT * sum(place >= start for place in alone) * (length - run) - GRAPH * run

    best = max(set(alone), key=saved, default=length)
    return best if alone and saved(best) > 0 else length


def _multiply(
    operator: HessianOperator,
    drawn: Drawn,
    products: Sequence[Product],
    start: int,
    at_once: int,
    found: GroupedProducts,
) -> None:
    """Take these products with an operator that begins at a place, and note what they show from there on."""
    (tokens,) = (drawn.places >= start).nonzero(as_tuple=True)
    places, of, signs = drawn.places[tokens] - start, drawn.of[:, tokens], drawn.signs[:, tokens]
    for some in (products[at : at + at_once] for at in range(0, len(products), at_once)):
        probes, numbers = torch.tensor([(each.probe, each.group) for each in some]).T
        members = of[probes] == numbers[:, None]
        placed = operator.like.new_zeros(len(some), int(places[-1]) + 1, operator.like.shape[1])
        placed[:, places] = (signs[probes] * members[..., None]).to(placed)
        shown = operator.matmat(placed, slice(0, placed.shape[1]))[:, places]
        found.energies[probes[:, None], numbers[:, None], tokens] = shown.square().sum(-1)
        rows, columns = members.nonzero(as_tuple=True)
        found.sizes[probes[rows], tokens[columns]] = shown.abs().sum(-1)[rows, columns]


def without_cross_talk(readings: Sequence[Float[Tensor, "3 _"]]) -> list[Float[Tensor, "_"]]:
    """Each token's samples, from its `GroupedProducts.readings`."""
    return [_without_cross_talk(own) for own in readings]


def is_capped(readings: Float[Tensor, "3 probe"]) -> bool:
    """Whether a token's cross-talk is so much of its energy that taking it out is stopped: S is then too large."""
    energy, cross_talk = readings[1:].sum(1)
    return bool(cross_talk > MOST_CROSS_TALK * energy)


def _without_cross_talk(readings: Float[Tensor, "3 probe"]) -> Float[Tensor, "probe"]:
    """A token's samples of ‖H_ii r_i‖₁, from the readings of its probes.

    Their mean is ``mean ‖y‖₁ · sqrt(1 - cross-talk / energy)``, and their spread is of that (by the delta method).
    """
    sizes = readings[0]
    means = readings.mean(1, keepdim=True)
    if not readings[2].any() or not means[1].any():
        return sizes
    if is_capped(readings):
        return (1 - MOST_CROSS_TALK) ** 0.5 * sizes
    share = means[2] / means[1]
    kept, deviations = (1 - share).sqrt(), readings - means
    share_deviations = (deviations[2] - share * deviations[1]) / means[1]
    return kept * sizes - means[0] * share_deviations / (2 * kept)
