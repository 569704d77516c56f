"""Sizes of pairs from products that tokens share, against the blocks of dense Hessians."""

import pytest
import torch
from torch import Tensor

from helpers.group_oracles import every_deal, pair_energies
from helpers.hessians import from_dense, random_hessian
from heta_lens.methods.heta.probes import (
    Groups,
    Pairs,
    check_separable,
    drawn_groups,
    grouped_products,
    pairs_of_groups,
)
from heta_lens.methods.heta.probes import _apart as apart
from heta_lens.methods.heta.probes import _shown as shown

N, WIDTH, GROUPS = 14, 5, 6


def uneven_hessian() -> Tensor:
    """A random one whose first tokens disturb the others most."""
    weights = torch.tensor([4.0, 3.0, *[1.0] * (N - 2)], dtype=torch.float64)
    return random_hessian(N, WIDTH) * weights[:, None, None, None] * weights[:, None]


def found(hessian: Tensor, probes: int, seed: int = 0, groups: int = GROUPS) -> Pairs:
    wanted = dict.fromkeys(range(len(hessian)), range(probes))
    return pairs_of_groups(grouped_products(from_dense(hessian), seed, wanted, groups, 64))


def expected_energies(pairs: Tensor, groups: Groups) -> Tensor:
    """What each group shows at each token, on average over the signs."""
    return torch.stack([pairs[groups.of == group].sum(0) for group in range(groups.count)])


@pytest.mark.parametrize("alone", [0, 1, 2])
def test_over_all_deals_a_pair_that_is_apart_shows_its_block(alone: int) -> None:
    tokens, count = 6, 3 + alone
    pairs = pair_energies(random_hessian(tokens + alone, 2))
    total, often = torch.zeros(2, tokens + alone, tokens + alone, dtype=torch.float64)
    for of in every_deal(tokens, 3):
        groups = Groups(torch.cat([torch.arange(alone), of + alone]), alone, count)
        separate = apart(groups)
        total += torch.where(separate, shown(groups, expected_energies(pairs, groups)), 0)
        often += separate
    torch.testing.assert_close(total / often, pairs)


def test_a_token_alone_shows_its_pairs_without_the_others() -> None:
    pairs = pair_energies(uneven_hessian())
    groups = drawn_groups(pairs.sum(1), torch.ones(N, dtype=torch.bool), GROUPS, [0, 0], 0)
    assert groups.of[:2].tolist() == [0, 1] and groups.alone < N
    one = shown(groups, expected_energies(pairs, groups))
    torch.testing.assert_close(one[:2], pairs[:2])
    torch.testing.assert_close(one, one.T)


def test_with_a_group_a_token_pairs_are_the_mean_of_both_readings() -> None:
    hessian = random_hessian(4, WIDTH)
    products = grouped_products(from_dense(hessian), 0, dict.fromkeys(range(4), range(3)), 4, 64)
    squares = products.energies.transpose(1, 2)  # of H_ij r_j, by i and j
    both = (squares + squares.transpose(1, 2)) / 2
    pairs = pairs_of_groups(products)
    torch.testing.assert_close(pairs.sizes, both.mean(0).sqrt())
    torch.testing.assert_close(pairs.standard_errors, both.std(0) / 3**0.5 / (2 * both.mean(0).sqrt()))


@pytest.mark.slow
def test_many_probes_come_near_every_block() -> None:
    hessian = uneven_hessian()
    pairs, exact = found(hessian, 3000), pair_energies(hessian).sqrt()
    assert pairs.standard_errors is not None
    assert torch.equal(pairs.sizes, pairs.sizes.T) and torch.equal(pairs.standard_errors, pairs.standard_errors.T)
    assert ((pairs.sizes - exact).abs() < 4.5 * pairs.standard_errors).all()
    assert (pairs.standard_errors < 0.15 * exact).all()


@pytest.mark.slow
def test_standard_errors_equal_the_spread_over_seeds() -> None:
    hessian, exact = uneven_hessian(), pair_energies(uneven_hessian()).sqrt()
    several = [found(hessian, 60, seed) for seed in range(100)]
    spread = torch.stack([one.sizes for one in several]).std(0)
    claimed = torch.stack([one.standard_errors for one in several if one.standard_errors is not None])
    ratio = claimed.square().mean(0).sqrt() / spread
    large = exact > exact.median()  # of others, some draws are below zero
    assert len(claimed) == 100
    assert 0.9 < ratio[large].mean() < 1.15 and ratio[large].min() > 0.6


def test_tokens_that_do_not_meet_have_a_size_within_its_error_of_zero() -> None:
    hessian = uneven_hessian()
    hessian[3, :, 9] = hessian[9, :, 3] = 0
    pairs = found(hessian, 200)
    assert pairs.standard_errors is not None
    assert float(pairs.sizes[3, 9]) < 3 * float(pairs.standard_errors[3, 9])
    assert float(pairs.standard_errors[3, 9]) > 0 and pairs.standard_errors.isfinite().all()


@pytest.mark.parametrize(("tokens", "groups", "probes"), [(14, 6, 6), (50, 16, 4), (512, 16, 6), (17, 5, 6)])
def test_the_fewest_probes_that_are_let_through_set_all_pairs_apart_twice(
    tokens: int, groups: int, probes: int
) -> None:
    check_separable(tokens, groups, probes)
    with pytest.raises(
        ValueError, match=f"interactions=True needs at least probes={probes} .* got probes={probes - 1}"
    ):
        check_separable(tokens, groups, probes - 1)
    energies = torch.ones(tokens, dtype=torch.float64)
    energies[:groups] = 1e6
    drawn = [drawn_groups(energies, energies > 0, groups, [0, 0], probe) for probe in range(probes)]
    assert torch.stack([apart(own) for own in drawn]).sum(0).min() >= 2


def test_too_few_groups_are_refused() -> None:
    with pytest.raises(ValueError, match="tell pairs of 20 tokens apart in groups=4: it needs groups=5 or more"):
        check_separable(20, 4, 100)
