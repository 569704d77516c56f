"""Probes: random directions, the groups of tokens that share products with H, and the interactions of pairs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int, Int8
from torch import Tensor

from heta_lens.methods.heta.hessian import HessianOperator
from heta_lens.model.batching import GRAPH, PRODUCT, SHORT

ProbesByToken: TypeAlias = Mapping[int, range]
"""Numbers of the probes to use, by the token's position in the context: ``range(3, 6)`` are three more after three."""

HessianFrom: TypeAlias = Callable[[int], HessianOperator]
"""H over the states from a place on, with all states before it held fixed."""


def rademacher(seed: int, position: int, probes: int, d: int) -> Float[Tensor, "probe d"]:
    """Draw random signs for one token, with a generator for each (seed, position), so nothing else can change them."""
    bits = np.random.default_rng([seed, position]).integers(2, size=(probes, d))
    return torch.from_numpy(2.0 * bits - 1.0)


def signs_of(seed: int, probes: ProbesByToken, d: int) -> list[Float[Tensor, "probe d"]]:
    """Draw the signs of every token's probes."""
    return [rademacher(seed, position, own.stop, d)[own.start :] for position, own in probes.items()]


def gaussian(seed: int, start: int, count: int, n: int, d: int) -> Float[Tensor, "count n d"]:
    """Draw random directions over the ``n`` positions from ``start`` on."""
    return torch.from_numpy(np.random.default_rng([seed, start, n]).standard_normal((count, n, d)))


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
    """The groups of tokens, or `NONE`; the first ``alone`` groups have a single token."""

    of: Int[Tensor, "token"]
    alone: int
    count: int

    @property
    def present(self) -> Bool[Tensor, "token"]:
        return self.of != NONE

    @property
    def shares(self) -> Bool[Tensor, "token"]:
        """Tokens in groups that may have several members."""
        return self.of >= self.alone

    @property
    def sizes(self) -> Int[Tensor, "token"]:
        """The number of tokens in a token's group; 0 without a group."""
        counts = torch.bincount(self.of[self.present], minlength=self.count)
        return torch.where(self.present, counts[self.of], 0)

    @property
    def elsewhere(self) -> Int[Tensor, "token"]:
        """The number of tokens in the shared groups without a token."""
        return self.shares.sum() - torch.where(self.shares, self.sizes, 0)

    def expected_share(self) -> Float64[Tensor, "token"]:
        """Return the cross-talk to expect at a token, relative to the energy of the other shared groups there.

        Every token of a shared group is equally likely to be in the token's group.
        """
        return torch.where(self.shares, (self.sizes - 1).double() / self.elsewhere.clamp(min=1), 0.0)


def drawn_groups(
    energies: Float[Tensor, "token"], present: Bool[Tensor, "token"], groups: int, seed: Sequence[int], probe: int
) -> Groups:
    """Draw groups of the ``present`` tokens: a group per token if possible, or else random groups for most tokens."""
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
    """Deal tokens at random to groups of nearly equal size, so that `rounds` deals in a row separate every pair.

    A token has a random rank, whose digits to the base ``groups`` are its groups in turn: first the last digit, then
    the sums of the last digit with each of the others, which are as evenly spread.
    """
    turn, digit = divmod(probe, rounds(tokens, groups))
    ranks = torch.from_numpy(np.random.default_rng([*seed, turn, DEALS]).permutation(tokens))
    return (ranks + (ranks // groups**digit if digit else 0)) % groups


def most_alone(groups: int) -> int:
    """Return the most groups of a single token: two shared groups must be left to measure cross-talk."""
    return min(groups // 2, groups - 2)


def rounds(tokens: int, groups: int) -> int:
    """Return the number of deals in a row that separate every pair of tokens at least once."""
    needed = 1
    while groups**needed < tokens:
        needed += 1
    return needed


def count_alone(energies: Float[Tensor, "token"], groups: int) -> int:
    """Return how many tokens with the largest energies should be alone in a group.

    With blocks ``‖H_ij‖² ∝ e_i e_j``, the cross-talk of the rest is the sum over pairs, divided by the number of groups
    that are left.
    """
    ordered = energies.double().sort(descending=True).values
    rest = torch.cat([ordered, ordered.new_zeros(1)]).flip(0).cumsum(0).flip(0)  # of the tokens from a rank on
    squares = torch.cat([ordered.square(), ordered.new_zeros(1)]).flip(0).cumsum(0).flip(0)
    candidates = range(most_alone(groups) + 1)
    expected = [float(rest[alone] ** 2 - squares[alone]) / (groups - alone) for alone in candidates]
    return min(candidates, key=expected.__getitem__)


# ------------------------------------------------------------------------------------------------------ grouped probes
# Tokens share HVPs, so that the number of HVPs does not grow with the context.
#
# For every probe, each token i belongs to one of a few groups. The product of H with the signs r of a group, read at i,
#
#     y_i = H_ii r_i + Σ_j H_ij r_j      over the other tokens of the group,
#
# is the token's own product plus cross-talk, which is independent of it: ``E y_i² = E (H_ii r_i)² + E (cross-talk)²``.
# Groups are drawn anew for every probe, so the products of other groups, read at i, tell how large the second term is,
# and the samples ``‖y_i‖₁`` are scaled down accordingly. Read at other tokens, the same products tell of `pairs`.
MOST_CROSS_TALK = 0.95  # of a token's energy: a larger estimate is chance


class Readings(NamedTuple):
    """Products with H, read at a token, with an entry per probe."""

    size: Float[Tensor, "probe"]  # ‖y‖₁
    energy: Float[Tensor, "probe"]  # ‖y‖²
    cross_talk: Float[Tensor, "probe"]  # the part of the energy that is expected to be cross-talk

    @classmethod
    def of_own(cls, size: Float[Tensor, "probe"]) -> "Readings":
        """Make readings of products with a single token's probes."""
        return cls(size, size.square(), torch.zeros_like(size))

    def followed_by(self, more: "Readings") -> "Readings":
        return Readings(*(torch.cat(pair) for pair in zip(self, more, strict=True)))

    @property
    def capped(self) -> bool:
        """Whether the correction stops short of the whole cross-talk: the samples are then too large."""
        return bool(self.cross_talk.sum() > MOST_CROSS_TALK * self.energy.sum())

    @property
    def samples(self) -> Float[Tensor, "probe"]:
        """Samples of ``‖H_ii r_i‖₁``.

        Their mean is ``mean ‖y‖₁ · sqrt(1 - cross-talk / energy)``, and their spread is that of this mean (by the delta
        method).
        """
        energy, cross_talk = self.energy.mean(), self.cross_talk.mean()
        if not self.cross_talk.any() or not energy:
            return self.size
        if self.capped:
            return (1 - MOST_CROSS_TALK) ** 0.5 * self.size
        share = cross_talk / energy
        kept = (1 - share).sqrt()
        share_deviations = ((self.cross_talk - cross_talk) - share * (self.energy - energy)) / energy
        return kept * self.size - self.size.mean() * share_deviations / (2 * kept)


@dataclass(frozen=True, eq=False)
class GroupedProducts:
    """Products of every probe's groups: ‖y‖₁ at the group's own tokens, and ‖y‖² at all tokens.

    A late token that is alone in its group may have been read only from the start of its graph on; before are zeros.
    """

    groups: Sequence[Groups]
    sizes: Float[Tensor, "probe token"]
    energies: Float[Tensor, "probe group token"]

    def readings(self) -> list[Readings]:
        """Return the readings of every token, with an entry for every probe in which it has a group."""
        own, elsewhere = map(torch.stack, zip(*map(own_and_elsewhere, self.groups, self.energies), strict=True))
        share = torch.stack([groups.expected_share() for groups in self.groups]).to(own)
        present = torch.stack([groups.present for groups in self.groups]).to(own.device)
        columns = zip(self.sizes.T, own.T, (share * elsewhere).T, present.T, strict=True)
        return [Readings(size[here], energy[here], cross[here]) for size, energy, cross, here in columns]


def own_and_elsewhere(
    groups: Groups, energies: Float[Tensor, "group token"]
) -> tuple[Float[Tensor, "token"], Float[Tensor, "token"]]:
    """Return the energy at every token: in the product of its group, and in the products of the other shared groups."""
    own = energies.gather(0, groups.of.clamp(min=0)[None].to(energies.device))[0]
    shared = energies[groups.alone : groups.count].sum(0)
    return own, shared - torch.where(groups.shares.to(own.device), own, 0)


class Product(NamedTuple):
    """A group in a probe, and the place of its token, if the group is a single token."""

    probe: int
    group: int
    alone: int | None

    def is_late(self, start: int) -> bool:
        return self.alone is not None and self.alone >= start


@dataclass(frozen=True, eq=False)
class ProbeBatch:
    """The groups of every probe, and the signs of every token (0 where a token has no group).

    ``places`` are the tokens' positions, counted from the first token.
    """

    places: Int[Tensor, "token"]
    signs: Int8[Tensor, "probe token d"]
    groups: Sequence[Groups]

    @property
    def of(self) -> Int[Tensor, "probe token"]:
        """The group numbers of tokens, by probe."""
        return torch.stack([groups.of for groups in self.groups])

    @property
    def products(self) -> list[Product]:
        """The products to take: a product per group and probe."""
        return [
            Product(probe, group, int(self.places[own.of == group]) if group < own.alone else None)
            for probe, own in enumerate(self.groups)
            for group in range(own.count)
        ]


def grouped_products(
    hessian_from: HessianFrom, seed: int, probes: ProbesByToken, groups: int, at_once: int, *, late: bool = False
) -> GroupedProducts:
    """Multiply H with the signs of every group of tokens, for each of their probes; ``hessian_from(0)`` begins with the
    first token.

    One more product, with a random direction at all tokens, tells which tokens get a group of their own. ``late``
    allows those of these tokens that are late a graph that begins later; they are then read from there on.
    """
    operator = hessian_from(0)
    batch = _probe_batch(operator, seed, probes, groups)
    like, (count, tokens) = operator.like, batch.of.shape
    most = max(own.count for own in batch.groups)
    found = GroupedProducts(batch.groups, like.new_zeros(count, tokens), like.new_zeros(count, most, tokens))
    products = batch.products
    alone = [each.alone for each in products if each.alone is not None]
    start = late_start(alone, len(like)) if late else len(like)
    _multiply(operator, batch, [each for each in products if not each.is_late(start)], 0, at_once, found)
    if later := [each for each in products if each.is_late(start)]:
        del operator  # and its graph, before the next is built
        _multiply(hessian_from(start), batch, later, start, at_once, found)
    return found


def _probe_batch(operator: HessianOperator, seed: int, probes: ProbesByToken, groups: int) -> ProbeBatch:
    """Draw the signs and the groups of every probe."""
    first, width = min(probes), operator.like.shape[1]
    places = torch.tensor([token - first for token in probes])
    numbers = sorted(set[int]().union(*probes.values()))
    present = torch.tensor([[number in own for own in probes.values()] for number in numbers])
    signs = torch.zeros(len(numbers), len(probes), width, dtype=torch.int8)
    for column, own in enumerate(signs_of(seed, probes, width)):
        signs[present[:, column], column] = own.to(torch.int8)
    energies = _row_energies(operator, places, gaussian(seed, first, 1, len(places), width))
    both = zip(numbers, present, strict=True)
    drawn = [drawn_groups(energies, here, groups, [seed, first], number) for number, here in both]
    return ProbeBatch(places, signs, drawn)


def _row_energies(
    operator: HessianOperator, places: Int[Tensor, "token"], direction: Float[Tensor, "1 token d"]
) -> Float[Tensor, "token"]:
    """Estimate ``Σ_j ‖H_ij‖_F²`` for every token i by a single product: the token's influence on all tokens."""
    placed = operator.like.new_zeros(1, int(places[-1]) + 1, operator.like.shape[1])
    placed[:, places] = direction.to(placed)
    return operator.matmat(placed, slice(0, placed.shape[1]))[0, places].square().sum(-1).cpu()


def late_start(alone: Sequence[int], length: int) -> int:
    """Choose where a second graph should begin, for the products of tokens that are alone at these places or later.

    The end of the context means no second graph: building it would take longer than it saves.
    """

    def saved(start: int) -> int:
        run = max(length - start, SHORT)
        return PRODUCT * sum(place >= start for place in alone) * (length - run) - GRAPH * run

    best = max(set(alone), key=saved, default=length)
    return best if alone and saved(best) > 0 else length


def _multiply(
    operator: HessianOperator,
    batch: ProbeBatch,
    products: Sequence[Product],
    start: int,
    at_once: int,
    found: GroupedProducts,
) -> None:
    """Take products with an operator that begins at ``start``, and enter the results into ``found``."""
    (tokens,) = (batch.places >= start).nonzero(as_tuple=True)
    places, of, signs = batch.places[tokens] - start, batch.of[:, tokens], batch.signs[:, tokens]
    for few in (products[at : at + at_once] for at in range(0, len(products), at_once)):
        probes, numbers = torch.tensor([(each.probe, each.group) for each in few]).T
        members = of[probes] == numbers[:, None]
        placed = operator.like.new_zeros(len(few), int(places[-1]) + 1, operator.like.shape[1])
        placed[:, places] = (signs[probes] * members[..., None]).to(placed)
        read = operator.matmat(placed, slice(0, placed.shape[1]))[:, places]
        found.energies[probes[:, None], numbers[:, None], tokens] = read.square().sum(-1)
        rows, columns = members.nonzero(as_tuple=True)
        found.sizes[probes[rows], tokens[columns]] = read.abs().sum(-1)[rows, columns]


# --------------------------------------------------------------------------------------------------------------- pairs
# How strongly two tokens act together: the size ``‖H_ij‖`` of every pair's block, from HVPs.
#
# Probes give the Frobenius norm, on which, unlike Eq. 2's, a block and its transpose agree: ``E‖H_ji r‖₂² =
# ‖H_ij‖_F²``.


LEAST_SHARED = 3  # groups: one's own, one that is read, and another that tells what the others in that one add

Sizes: TypeAlias = tuple[Float[Tensor, "_"], Float[Tensor, "_"] | None]
"""Block sizes of a token with itself and every later token, and standard errors if probes are random."""


class Pairs(NamedTuple):
    """Sizes of the blocks of all pairs of tokens, symmetric, with standard errors if probes are random."""

    sizes: Float[Tensor, "pos pos"]
    standard_errors: Float[Tensor, "pos pos"] | None


# ---------------------------------------------------------------------------------------- where tokens are probed alone
def entrywise_sizes(products: Float[Tensor, "k later d"]) -> Sizes:
    """Return ``Σ|H_ij|``, from products with all unit vectors."""
    return products.abs().sum((0, 2)), None


def frobenius_sizes(products: Float[Tensor, "k later d"]) -> Sizes:
    """Return ``‖H_ij‖_F``, from products with all unit vectors."""
    return products.square().sum((0, 2)).sqrt(), None


def probed_sizes(products: Float[Tensor, "k later d"]) -> Sizes:
    """Return ``‖H_ij‖_F``, from products with random signs."""
    squares = products.square().sum(-1)
    if len(squares) < 2:
        return squares[0].sqrt(), None
    return _roots(squares.mean(0), squares.std(0) / len(squares) ** 0.5)


def mirrored(rows: Sequence[Sizes]) -> Pairs:
    """Make symmetric matrices from rows that begin at the diagonal."""
    sizes, errors = zip(*rows, strict=True)
    chance = [error for error in errors if error is not None]
    return Pairs(_symmetric(sizes), _symmetric(chance) if chance else None)


def _symmetric(rows: Sequence[Tensor]) -> Float[Tensor, "pos pos"]:
    upper = torch.stack([torch.nn.functional.pad(row, (len(rows) - len(row), 0)) for row in rows])
    return upper + upper.triu(1).T


# ------------------------------------------------------------------------------------------ where tokens share HVPs
def check_separable(tokens: int, groups: int, probes: int) -> None:
    """Refuse too few groups to separate pairs, or too few probes to separate every pair twice."""
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
    """Estimate block sizes of all pairs, from the probes (two or more) whose groups separate the pair."""
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
    """Return the pairs of tokens in different groups, and every token with itself."""
    return (groups.of[:, None] != groups.of) | torch.eye(len(groups.of), dtype=torch.bool)


def _shown(groups: Groups, energies: Float[Tensor, "group pos"]) -> Float[Tensor, "pos pos"]:
    """Estimate ``‖H_ij‖_F²`` of separated pairs from the products of a single probe.

    At i, the product of j's group holds j's share and the shares of the group's other tokens, which are on average over
    deals proportional to their number. A token that is alone in its group gives its share directly: if only one token
    of a pair is alone, its reading is taken, and otherwise the mean of both readings.
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
    """Return sizes from mean squares, with standard errors by the delta method where sizes are above 0."""
    sizes = squares.clamp(min=0).sqrt()
    return sizes, torch.where(sizes > 0, errors / (2 * sizes), torch.inf).minimum(errors.sqrt())
