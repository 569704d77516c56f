"""Which tokens share HVPs: the groups of one probe.

Tokens that disturb others most, by the rows of H, have groups of their own. The others are dealt anew for every probe,
at random and evenly, and so that each of a few probes in a row sets other tokens apart.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

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
