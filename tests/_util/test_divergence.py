"""Divergences against their definitions."""

from typing import Any, get_args

import pytest
import torch

from helpers import oracles
from helpers.asking import relative
from helpers.information import random_log_probs
from heta_lens._util.numerics import DIVERGENCES, Direction, js, kl

DIRECTIONS = get_args(Direction)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_divergences_equal_their_definitions(direction: Direction) -> None:
    p, q = random_log_probs(5, 40), random_log_probs(5, 40, spread=3, seed=1)
    slow = torch.stack([oracles.divergence(one, other, direction) for one, other in zip(p, q, strict=True)])
    torch.testing.assert_close(DIVERGENCES[direction](p, q), slow, rtol=1e-12, atol=0)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_coin_by_hand(direction: Direction) -> None:
    before, after = (oracles.coin_log_probs(torch.tensor([[bias]], dtype=torch.float64)) for bias in (1.0, 0.0))
    assert float(DIVERGENCES[direction](before, after)) == pytest.approx(oracles.COIN_INFORMATION[direction])


@pytest.mark.parametrize("divergence", DIVERGENCES.values())
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_divergence_is_never_negative_and_zero_only_where_nothing_moved(divergence: Any, dtype: torch.dtype) -> None:
    p = random_log_probs(50, 500, spread=4).to(dtype)
    nearly = (p + 1e-6 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1), dtype=dtype)).log_softmax(-1)
    assert (divergence(p, p) == 0).all()
    assert (divergence(p, nearly) >= 0).all()


def test_small_divergences_keep_their_digits_in_float32() -> None:
    p = random_log_probs(20, 300)
    q = (p + 1e-3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(2), dtype=p.dtype)).log_softmax(-1)
    assert relative(kl(p.float(), q.float()), kl(p, q)) < 1e-3


def test_impossible_tokens_are_no_trouble_until_they_are_needed() -> None:
    never = torch.tensor([[0.0, -torch.inf]])
    maybe = torch.tensor([[0.5, 0.5]]).log()
    assert float(kl(never, maybe)) == pytest.approx(float(torch.tensor(2.0).log()))
    assert float(kl(never, never)) == 0
    assert float(kl(maybe, never)) == torch.inf
    assert 0 < float(js(never, maybe)) < float(torch.tensor(2.0).log())
    assert float(js(never, never)) == 0


def test_pinsker_holds_for_random_distributions() -> None:
    p, q = random_log_probs(200, 30, spread=2), random_log_probs(200, 30, spread=2, seed=1)
    assert (kl(p, q) >= (p.exp() - q.exp()).abs().sum(-1).square() / 2).all()
