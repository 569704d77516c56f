"""Which tokens share products: who is alone, and how the others are dealt."""

import numpy as np
import pytest
import torch

from helpers.group_oracles import every_deal, pair_energies
from helpers.hessians import random_hessian
from heta_lens.methods.heta.probes import Groups, count_alone, dealt, drawn_groups, most_alone, rounds


@pytest.mark.parametrize(("tokens", "groups"), [(4, 2), (5, 2), (6, 3), (7, 3)])
def test_the_expected_cross_talk_is_that_of_all_deals(tokens: int, groups: int) -> None:
    energies = pair_energies(random_hessian(tokens, 2))
    real, expected = torch.zeros(2, tokens, dtype=torch.float64)
    deals = every_deal(tokens, groups)
    for of in deals:
        together = of[:, None] == of
        real += (energies * (together & ~torch.eye(tokens, dtype=torch.bool))).sum(1)
        expected += Groups(of, 0, groups).expected_share() * (energies * ~together).sum(1)
    torch.testing.assert_close(expected / len(deals), real / len(deals))


def test_every_token_is_in_one_group_and_groups_differ_by_one_at_most() -> None:
    energies, present = torch.rand(23, dtype=torch.float64), torch.ones(23, dtype=torch.bool)
    present[4] = False
    groups = drawn_groups(energies, present, 6, [0, 0], 0)
    counts = torch.bincount(groups.of[present], minlength=6)
    assert groups.of[4] == -1 and counts.sum() == 22
    assert (counts[: groups.alone] == 1).all() and int(counts[groups.alone :].max() - counts[groups.alone :].min()) <= 1
    other = drawn_groups(energies, present, 6, [0, 0], 1)
    assert torch.equal(other.of < groups.alone, groups.of < groups.alone) and not torch.equal(other.of, groups.of)


@pytest.mark.parametrize(
    ("energies", "groups", "alone"),
    [
        ([100.0, 1, 1, 1, 1, 1, 1, 1], 4, 1),  # one token disturbs all others
        ([1.0] * 40, 4, 0),  # all do alike: no group may be wasted
        ([50.0, 40, 30, 20, *[1] * 16], 8, 4),
        ([9.0, 8, 7, 6, 5], 2, 0),  # two groups are the least to be shared
        ([100.0, 1, 1, 1, 1], 2, 0),
        ([100.0, 1, 1, 1, 1], 3, 1),
        ([1e6] * 6 + [1.0] * 6, 8, 4),  # at most half may be of one token
        ([0.0] * 5, 4, 0),
    ],
)
def test_the_most_disturbing_tokens_get_groups_of_their_own(energies: list[float], groups: int, alone: int) -> None:
    assert count_alone(torch.tensor(energies), groups) == alone


def test_two_groups_are_dealt_whatever_a_token_disturbs() -> None:
    groups = drawn_groups(torch.tensor([1e6, 1, 1, 1, 1]), torch.ones(5, dtype=torch.bool), 2, [0, 0], 0)
    assert groups.alone == 0 and sorted(torch.bincount(groups.of).tolist()) == [2, 3]


def test_tokens_without_a_group_count_nowhere() -> None:
    present = torch.ones(30, dtype=torch.bool)
    present[::3] = False
    some = drawn_groups(torch.ones(30), present, 4, [0, 0], 0)
    same = drawn_groups(torch.ones(20), torch.ones(20, dtype=torch.bool), 4, [0, 0], 0)
    assert some.alone == same.alone == 0
    for of in ("of", "sizes", "elsewhere"):
        assert torch.equal(getattr(some, of)[present], getattr(same, of))
    assert torch.equal(some.expected_share()[present], same.expected_share())
    assert not some.sizes[~present].any() and not some.expected_share()[~present].any()


def test_the_number_alone_leaves_the_least_cross_talk() -> None:
    energies = torch.from_numpy(np.random.default_rng(0).pareto(1.0, 30))
    blocks = torch.outer(energies, energies)

    def rest(alone: int) -> float:
        light = energies.argsort(descending=True)[alone:]
        pairs = blocks[light][:, light]
        return float(pairs.sum() - pairs.diagonal().sum()) / (12 - alone)

    assert count_alone(energies, 12) == min(range(most_alone(12) + 1), key=rest)


# ------------------------------------------------------------------------------------------------------- the deals
@pytest.mark.parametrize(("tokens", "groups"), [(5, 8), (9, 8), (64, 8), (65, 8), (100, 3), (300, 8), (17, 2)])
def test_a_few_deals_in_a_row_set_any_two_tokens_apart(tokens: int, groups: int) -> None:
    needed = rounds(tokens, groups)
    assert groups**needed >= tokens > groups ** (needed - 1) or needed == 1
    for turn in range(3):
        deals = torch.stack([dealt(tokens, groups, [7], turn * needed + digit) for digit in range(needed)])
        together = (deals[:, :, None] == deals[:, None, :]).all(0)
        assert torch.equal(together, torch.eye(tokens, dtype=torch.bool))
        for deal in deals:
            sizes = torch.bincount(deal, minlength=groups)
            assert int(sizes.max() - sizes.min()) <= 1


def test_every_deal_puts_two_tokens_together_as_often() -> None:
    tokens, groups, draws = 10, 3, 6000
    deals = torch.stack([dealt(tokens, groups, [3], probe) for probe in range(draws)])
    often = (deals[:, :, None] == deals[:, None, :]).double().mean(0)[~torch.eye(tokens, dtype=torch.bool)]
    sizes = torch.bincount(deals[0], minlength=groups)
    expected = float((sizes * (sizes - 1)).sum()) / (tokens * (tokens - 1))
    assert (often - expected).abs().max() < 4 * (expected * (1 - expected) / draws) ** 0.5
    assert not torch.equal(dealt(tokens, groups, [3], 0), dealt(tokens, groups, [4], 0))
