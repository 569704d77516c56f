"""The random directions that H is multiplied with: signs for the curvature, Gaussian ones for a low rank."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int, Int8
from torch import Tensor

from heta_lens.methods.heta.hessian import HessianFrom, HessianOperator
from heta_lens.model.batching import GRAPH, PRODUCT, SHORT


def rademacher(seed: int, position: int, probes: int, d: int) -> Float[Tensor, "probe d"]:
    """Random signs of one token. Every (seed, position) has its own generator, so nothing else can change them."""
    bits = np.random.default_rng([seed, position]).integers(2, size=(probes, d))
    return torch.from_numpy(2.0 * bits - 1.0)


def signs_of(seed: int, wanted: Mapping[int, range], d: int) -> list[Float[Tensor, "probe d"]]:
    """The wanted probes of each of these positions."""
    return [rademacher(seed, position, own.stop, d)[own.start :] for position, own in wanted.items()]


def gaussian(seed: int, start: int, count: int, n: int, d: int) -> Float[Tensor, "count n d"]:
    """Random directions over the ``n`` positions from ``start`` on, with a generator of their own."""
    return torch.from_numpy(np.random.default_rng([seed, start, n]).standard_normal((count, n, d)))


@dataclass(frozen=True, eq=False)
class Signs:
    """The wanted probes of tokens, by their places among states like these; those that are none of the wanted get as
    many as the first."""

    seed: int
    start: int  # the position of the first place
    wanted: Mapping[int, range]  # by position
    like: Float[Tensor, "pos d"]

    def __call__(self, places: Sequence[int]) -> list[Float[Tensor, "probe d"]]:
        positions = [self.start + place for place in places]
        first = next(iter(self.wanted.values()))
        wanted = {position: self.wanted.get(position) or first for position in positions}
        return [own.to(self.like) for own in signs_of(self.seed, wanted, self.like.shape[1])]


# -------------------------------------------------------------------------------------------------------- token groups
# Which tokens share HVPs: the groups of one probe.
#
# Tokens that disturb others most, by the rows of H, have groups of their own. The others are dealt anew for every
# probe,
# at random and evenly, and so that each of a few probes in a row sets other tokens apart.


NONE = -1
DEALS = 1  # so that their random numbers are not those of signs and directions


@dataclass(frozen=True, eq=False)
class Groups:
    """The group of each token, or `NONE`. The first ``alone`` groups have one token each."""

    of: Int[Tensor, "token"]
    alone: int
    count: int

    @property
    def present(self) -> Bool[Tensor, "token"]:
        """Whether a token has a group."""
        return self.of != NONE

    @property
    def shares(self) -> Bool[Tensor, "token"]:
        """Whether a token shares its group, or might have."""
        return self.of >= self.alone

    @property
    def sizes(self) -> Int[Tensor, "token"]:
        """How many tokens are in a token's group; 0 where it has none."""
        counts = torch.bincount(self.of[self.present], minlength=self.count)
        return torch.where(self.present, counts[self.of], 0)

    @property
    def elsewhere(self) -> Int[Tensor, "token"]:
        """How many tokens are in shared groups that are not a token's own."""
        return self.shares.sum() - torch.where(self.shares, self.sizes, 0)

    def expected_share(self) -> Float64[Tensor, "token"]:
        """The cross-talk to be expected at a token, relative to what all other shared groups show there.

        Every other token of shared groups is as likely to be in its group.
        """
        return torch.where(self.shares, (self.sizes - 1).double() / self.elsewhere.clamp(min=1), 0.0)


def drawn_groups(
    energies: Float[Tensor, "token"], present: Bool[Tensor, "token"], groups: int, seed: Sequence[int], probe: int
) -> Groups:
    """Groups of the tokens that are ``present``: each its own where there are enough; else the rest dealt at random."""
    tokens = present.nonzero()[:, 0]
    of = torch.full_like(present, NONE, dtype=torch.long)
    if len(tokens) <= groups:
        of[tokens] = torch.arange(len(tokens))
        return Groups(of, len(tokens), len(tokens))
    alone = count_alone(energies[tokens], groups)
    ordered = tokens[energies[tokens].argsort(descending=True, stable=True)]
    of[ordered[:alone]] = torch.arange(alone)
    of[ordered[alone:]] = alone + dealt(len(tokens) - alone, groups - alone, seed, probe)
    return Groups(of, alone, groups)


def dealt(tokens: int, groups: int, seed: Sequence[int], probe: int) -> Int[Tensor, "token"]:
    """A random deal of so many tokens to groups of nearly one size; two of them are never together in all of as many
    probes in a row as `rounds` says.

    A token has a random rank, whose digits to the base ``groups`` are its groups in turn: first the last digit, then
    the sums of that with each other, which are as evenly spread.
    """
    turn, digit = divmod(probe, rounds(tokens, groups))
    ranks = torch.from_numpy(np.random.default_rng([*seed, turn, DEALS]).permutation(tokens))
    return (ranks + (ranks // groups**digit if digit else 0)) % groups


def most_alone(groups: int) -> int:
    """How many groups may be of one token: two others, at least, tell of cross-talk, each at the other's tokens."""
    return min(groups // 2, groups - 2)


def rounds(tokens: int, groups: int) -> int:
    """How many deals in a row set any two of so many tokens apart, at least once."""
    needed = 1
    while groups**needed < tokens:
        needed += 1
    return needed


def count_alone(energies: Float[Tensor, "token"], groups: int) -> int:
    """How many tokens, of the largest energies, should have groups of their own.

    With blocks ``‖H_ij‖² ∝ e_i e_j``, the rest's cross-talk is the sum of these over pairs, shared out over the groups
    that are left.
    """
    ordered = energies.double().sort(descending=True).values
    rest = torch.cat([ordered, ordered.new_zeros(1)]).flip(0).cumsum(0).flip(0)  # of the tokens from a rank on
    squares = torch.cat([ordered.square(), ordered.new_zeros(1)]).flip(0).cumsum(0).flip(0)
    candidates = range(most_alone(groups) + 1)
    expected = [float(rest[alone] ** 2 - squares[alone]) / (groups - alone) for alone in candidates]
    return min(candidates, key=expected.__getitem__)


# ------------------------------------------------------------------------------------------------------ grouped probes
# Grouped probes: tokens share HVPs, so that a score takes as many of them whatever the context's length.
#
# For every probe, each token i belongs to one of a few groups (`token_groups`). The product of H with the signs r of a
# group, read at i,
#
#     y_i = H_ii r_i + Σ_j H_ij r_j      over the others of its group,
#
# has the token's own product and cross-talk, which is independent of it: ``E y_i² = E (H_ii r_i)² + E (cross-talk)²``.
# Groups are drawn anew for every probe, so what the products of other groups show at i tells how large the second term
# is, and the samples ``‖y_i‖₁`` are scaled down by what it adds. Read where others are, the same products tell of
# `pairs`.


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


# --------------------------------------------------------------------------------------------------------------- pairs
# How strongly two tokens act together: the size ``‖H_ij‖`` of every pair's block, from HVPs.
#
# Probes give the Frobenius norm, on which, unlike Eq. 2's, a block and its transpose agree: ``E‖H_ji r‖₂² =
# ‖H_ij‖_F²``.


LEAST_SHARED = 3  # groups: one's own, one that is read, and another that tells what the others in that one add

Sizes: TypeAlias = tuple[Float[Tensor, "_"], Float[Tensor, "_"] | None]
"""Of one token with itself and each later one, and their standard errors where there is chance in them."""


class Pairs(NamedTuple):
    """The size of every pair of tokens' block, symmetric, and its standard error where there is chance."""

    sizes: Float[Tensor, "pos pos"]
    standard_errors: Float[Tensor, "pos pos"] | None


# ---------------------------------------------------------------------------------------- where tokens are probed alone
def entrywise_sizes(products: Float[Tensor, "k later d"]) -> Sizes:
    """``Σ|H_ij|``, from a product with every unit vector."""
    return products.abs().sum((0, 2)), None


def frobenius_sizes(products: Float[Tensor, "k later d"]) -> Sizes:
    """``‖H_ij‖_F``, from a product with every unit vector."""
    return products.square().sum((0, 2)).sqrt(), None


def probed_sizes(products: Float[Tensor, "k later d"]) -> Sizes:
    """``‖H_ij‖_F``, from products with random signs."""
    squares = products.square().sum(-1)
    if len(squares) < 2:
        return squares[0].sqrt(), None
    return _roots(squares.mean(0), squares.std(0) / len(squares) ** 0.5)


def mirrored(rows: Sequence[Sizes]) -> Pairs:
    """Whole matrices from rows that begin at the diagonal."""
    sizes, errors = zip(*rows, strict=True)
    chance = [error for error in errors if error is not None]
    return Pairs(_symmetric(sizes), _symmetric(chance) if chance else None)


def _symmetric(rows: Sequence[Tensor]) -> Float[Tensor, "pos pos"]:
    upper = torch.stack([torch.nn.functional.pad(row, (len(rows) - len(row), 0)) for row in rows])
    return upper + upper.triu(1).T


# ------------------------------------------------------------------------------------------ where tokens share HVPs
def check_separable(tokens: int, groups: int, probes: int) -> None:
    """Refuse groups that do not tell pairs apart, or too few probes to do it twice."""
    shared = groups - most_alone(groups)  # at least
    if shared < LEAST_SHARED:
        raise ValueError(
            f"interactions=True cannot tell pairs of {tokens} tokens apart in groups={groups}: "
            f"it needs groups={2 * LEAST_SHARED - 1} or more, or groups=None"
        )
    if probes < (least := 2 * rounds(tokens, shared)):
        raise ValueError(
            f"interactions=True needs at least probes={least} to tell pairs of {tokens} tokens apart in "
            f"groups={groups}, got probes={probes}; groups=None needs no more than one"
        )


def pairs_of_groups(products: GroupedProducts) -> Pairs:
    """Of all pairs of tokens, each from the probes whose groups set the two apart; at least two of these."""
    tokens = products.energies.shape[2]
    total, squares, count = torch.zeros(3, tokens, tokens, dtype=torch.float64)
    for groups, energies in zip(products.groups, products.energies.cpu().double(), strict=True):
        apart = _apart(groups)
        shown = torch.where(apart, _shown(groups, energies), 0)
        total, squares, count = total + shown, squares + shown.square(), count + apart
    mean = total / count
    spread = (squares / count - mean.square()).clamp(min=0) / (count - 1)
    sizes, errors = _roots(mean, spread.sqrt())
    return Pairs(sizes.to(products.energies), errors.to(products.energies))


def _apart(groups: Groups) -> Bool[Tensor, "pos pos"]:
    """Whether products show what two tokens have together; which of a token with itself they always do."""
    return (groups.of[:, None] != groups.of) | torch.eye(len(groups.of), dtype=torch.bool)


def _shown(groups: Groups, energies: Float[Tensor, "group pos"]) -> Float[Tensor, "pos pos"]:
    """``‖H_ij‖_F²`` of pairs that are apart, as one probe's products show them.

    At i, the group of j shows j's share and the others'; these have, on average over deals, as much of what all groups
    show there as there are of them. A token alone in its group shows its share itself: where only one of two does, that
    is taken, and else the mean of both.
    """
    own, elsewhere = own_and_elsewhere(groups, energies)
    others = (groups.sizes - 1).to(energies)[:, None] / (groups.elsewhere - 1).clamp(min=1)
    shown = (energies[groups.of] - others * elsewhere) / (1 - others)  # at the column, of the row's group
    better = (groups.shares[:, None] <= groups.shares).to(shown)  # the row is alone, or neither is, or both are
    taken = shown * better
    mirrored = (taken + taken.T) / (better + better.T)
    return torch.where(torch.eye(len(own), dtype=torch.bool), own - groups.expected_share() * elsewhere, mirrored)


def _roots(
    squares: Float[Tensor, "*pair"], errors: Float[Tensor, "*pair"]
) -> tuple[Float[Tensor, "*pair"], Float[Tensor, "*pair"]]:
    """Sizes from their mean squares, with the errors these have (by the delta method, where that can be)."""
    sizes = squares.clamp(min=0).sqrt()
    return sizes, torch.where(sizes > 0, errors / (2 * sizes), torch.inf).minimum(errors.sqrt())
