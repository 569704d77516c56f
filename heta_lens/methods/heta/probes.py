"""Probes: random directions, the groups of tokens that share products with H, and the interactions of pairs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from heta_lens.methods.heta.hessian import HessianOperator


def rademacher(seed: int, position: int, probes: int, d: int) -> Float[Tensor, "probe d"]:
    """Draw random signs for one token, with a generator for each (seed, position), so nothing else can change them."""
    bits = np.random.default_rng([seed, position]).integers(2, size=(probes, d))
    return torch.from_numpy(2.0 * bits - 1.0)


def gaussian(seed: int, start: int, count: int, n: int, d: int) -> Float[Tensor, "count n d"]:
    """Draw random directions over the ``n`` positions from ``start`` on."""
    return torch.from_numpy(np.random.default_rng([seed, start, n]).standard_normal((count, n, d)))


# -------------------------------------------------------------------------------------------------------- token groups
# Which tokens share HVPs: the groups of one probe.
#
# Tokens that disturb others most, by the rows of H, have groups of their own. The others are dealt anew for every
# probe, at random and evenly, and so that each of a few probes in a row sets other tokens apart.
DEALS = 1  # so that their random numbers are not those of signs and directions


@dataclass(frozen=True, eq=False)
class Groups:
    """The groups of tokens; the first ``singles`` groups have a single token."""

    of: Int[Tensor, "token"]
    singles: int
    count: int

    @property
    def shares(self) -> Bool[Tensor, "token"]:
        """Tokens in groups that may have several members."""
        return self.of >= self.singles

    @property
    def sizes(self) -> Int[Tensor, "token"]:
        """The number of tokens in a token's group."""
        return torch.bincount(self.of, minlength=self.count)[self.of]

    @property
    def elsewhere(self) -> Int[Tensor, "token"]:
        """The number of tokens in the shared groups without a token."""
        return self.shares.sum() - torch.where(self.shares, self.sizes, 0)

    def expected_share(self) -> Float64[Tensor, "token"]:
        """Return the cross-talk to expect at a token, relative to the energy of the other shared groups there.

        Every token of a shared group is equally likely to be in the token's group.
        """
        return torch.where(self.shares, (self.sizes - 1).double() / self.elsewhere.clamp(min=1), 0.0)

    def own_and_elsewhere(
        self, energies: Float[Tensor, "group token"]
    ) -> tuple[Float[Tensor, "token"], Float[Tensor, "token"]]:
        """Return the energy at every token: in its group's product, and in the products of the other shared groups."""
        own = energies.gather(0, self.of[None].to(energies.device))[0]
        shared = energies[self.singles : self.count].sum(0)
        return own, shared - torch.where(self.shares.to(own.device), own, 0)


def drawn_groups(energies: Float[Tensor, "token"], groups: int, seed: Sequence[int], probe: int) -> Groups:
    """Draw groups of tokens: a group for each of the tokens with most energy, and random groups for the others."""
    singles, ordered = count_singles(energies, groups), energies.argsort(descending=True, stable=True)
    of = torch.empty_like(ordered)
    of[ordered[:singles]] = torch.arange(singles)
    of[ordered[singles:]] = singles + dealt(len(energies) - singles, groups - singles, seed, probe)
    return Groups(of, singles, groups)


def dealt(tokens: int, groups: int, seed: Sequence[int], probe: int) -> Int[Tensor, "token"]:
    """Deal tokens at random to groups of nearly equal size, so that `rounds` deals in a row separate every pair.

    A token has a random rank, whose digits to the base ``groups`` are its groups in turn: first the last digit, then
    the sums of the last digit with each of the others, which are as evenly spread.
    """
    turn, digit = divmod(probe, rounds(tokens, groups))
    ranks = torch.from_numpy(np.random.default_rng([*seed, turn, DEALS]).permutation(tokens))
    return (ranks + (ranks // groups**digit if digit else 0)) % groups


def most_singles(groups: int) -> int:
    """Return the most groups of a single token: two shared groups must be left to measure cross-talk."""
    return min(groups // 2, groups - 2)


def rounds(tokens: int, groups: int) -> int:
    """Return the number of deals in a row that separate every pair of tokens at least once."""
    needed = 1
    while groups**needed < tokens:
        needed += 1
    return needed


def count_singles(energies: Float[Tensor, "token"], groups: int) -> int:
    """Return the best number of tokens with a group of their own: the tokens with the largest energies.

    With blocks ``‖H_ij‖² ∝ e_i e_j``, the cross-talk of the rest is the sum over pairs, divided by the number of groups
    that are left.
    """
    ordered = energies.double().sort().values
    both = torch.stack([ordered, ordered.square()]).cumsum(1)
    every = torch.nn.functional.pad(both, (1, 0)).flip(1)
    sums, squares = every[:, : most_singles(groups) + 1]  # without the largest 0, 1, 2, …
    expected = (sums.square() - squares) / (groups - torch.arange(len(sums)))
    return int(expected.argmin())


# ------------------------------------------------------------------------------------------------------ grouped probes
# Tokens share HVPs, so that the number of HVPs does not grow with the context.
#
# For every probe, each token i belongs to one of a few groups. The product of H with the signs r of a group, read at i,
#
#     y_i = H_ii r_i + Σ_j H_ij r_j      over the other tokens of the group,
#
# is the token's own product plus cross-talk, which is independent of it: ``E y_i² = E (H_ii r_i)² + E (cross-talk)²``.
# Groups are drawn anew for every probe, so the products of other groups, read at i, tell how large the second term is,
# and the samples ``‖y_i‖₁`` are scaled down accordingly. Read at other tokens, the same products show pairs of tokens.
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
    """Products of every probe's groups: ‖y‖₁ at the group's own tokens, and ‖y‖² at all tokens."""

    groups: Sequence[Groups]
    sizes: Float[Tensor, "probe token"]
    energies: Float[Tensor, "probe group token"]

    def readings(self) -> list[Readings]:
        """Return the readings of every token, with an entry for every probe."""
        rows = []
        for groups, size, energies in zip(self.groups, self.sizes, self.energies, strict=True):
            own, elsewhere = groups.own_and_elsewhere(energies)
            rows.append(torch.stack([size, own, groups.expected_share().to(own) * elsewhere]))
        return [Readings(*kinds) for kinds in torch.stack(rows, -1).unbind(1)]


def grouped_products(
    operator: HessianOperator, seed: int, positions: Sequence[int], probes: int, groups: int, at_once: int
) -> GroupedProducts:
    """Multiply H with the signs of every group of tokens, for each of their probes.

    The operator begins with the first token. One more product, with a random direction at all tokens, tells which
    tokens get a group of their own.
    """
    first, like, width = min(positions), operator.like, operator.like.shape[1]
    places = torch.tensor([*positions]) - first

    def at_tokens(directions: Float[Tensor, "k token d"]) -> Float[Tensor, "k token d"]:
        """Return products with directions that have entries at the tokens, read at the tokens."""
        placed = like.new_zeros(len(directions), int(places[-1]) + 1, width)
        placed[:, places] = directions
        return operator.matmat(placed, slice(0, placed.shape[1]))[:, places]

    # ‖H_i‖_F², a token's influence on all tokens, is what the random direction estimates.
    influences = at_tokens(gaussian(seed, first, 1, len(places), width).to(like))[0].square().sum(-1).cpu()

    signs = torch.stack([rademacher(seed, position, probes, width).to(torch.int8) for position in positions], 1)
    drawn = [drawn_groups(influences, groups, [seed, first], number) for number in range(probes)]

    products = [(row, group) for row in range(probes) for group in range(groups)]
    sizes = like.new_zeros(probes, len(places))
    energies = like.new_zeros(probes, groups, len(places))
    group_of = torch.stack([own.of for own in drawn])
    for few in torch.tensor(products).split(at_once):
        row, group = few.T
        members = group_of[row] == group[:, None]
        read = at_tokens((signs[row] * members[..., None]).to(like))
        energies[row, group] = read.square().sum(-1)
        product, token = members.nonzero(as_tuple=True)
        sizes[row[product], token] = read.abs().sum(-1)[product, token]
    return GroupedProducts(drawn, sizes, energies)


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


def probed_sizes(products: Float[Tensor, "k later d"]) -> Sizes:
    """Return ``‖H_ij‖_F``, from products with random signs."""
    squares = products.square().sum(-1)
    if len(squares) < 2:
        return squares[0].sqrt(), None
    return _roots(squares.mean(0), squares.std(0) / len(squares) ** 0.5)


def pairs_of_rows(rows: Sequence[Sizes]) -> Pairs:
    """Make symmetric matrices from rows that begin at the diagonal."""

    def mirrored(rows: Sequence[Tensor]) -> Float[Tensor, "pos pos"]:
        upper = torch.stack([torch.nn.functional.pad(row, (len(rows) - len(row), 0)) for row in rows])
        return upper + upper.triu(1).T

    sizes, errors = zip(*rows, strict=True)
    return Pairs(mirrored(sizes), None if errors[0] is None else mirrored(errors))


def check_separable(tokens: int, groups: int, probes: int) -> None:
    """Refuse too few groups to separate pairs, or too few probes to separate every pair twice."""
    shared = groups - most_singles(groups)  # at least
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
    own, elsewhere = groups.own_and_elsewhere(energies)
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
