"""How strongly two tokens act together: the size ``‖H_ij‖`` of every pair's block, from HVPs.

Probes give the Frobenius norm, on which, unlike Eq. 2's, a block and its transpose agree: ``E‖H_ji r‖₂² = ‖H_ij‖_F²``.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from heta_lens.methods.heta.grouped_probes import GroupedProducts, own_and_elsewhere
from heta_lens.methods.heta.token_groups import Groups, most_alone, rounds

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
