"""Numbers: divergences, samples, tolerances, shares of tokens, and scores that are passed on."""

from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from helpers import oracles
from helpers.asking import relative
from heta_lens._util.numerics import DIVERGENCES, Direction, js, kl


def random_log_probs(rows: int, vocab: int, *, spread: float = 1.0, seed: int = 0) -> Tensor:
    logits = torch.randn(rows, vocab, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return (spread * logits).log_softmax(-1)


DIRECTIONS = get_args(Direction)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_divergences_equal_their_definitions(direction: Direction) -> None:
    p, q = random_log_probs(5, 40), random_log_probs(5, 40, spread=3, seed=1)
    slow = torch.stack([oracles.divergence(one, other, direction) for one, other in zip(p, q, strict=True)])
    torch.testing.assert_close(DIVERGENCES[direction](p, q), slow, rtol=1e-12, atol=0)


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
