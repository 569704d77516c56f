"""Equation 4 and its balanced forms against the oracle, and how sure a score is."""

from typing import get_args

import pytest
import torch

from helpers import oracles
from helpers.asking import relative
from heta_lens._util.sample_statistics import Samples
from heta_lens.methods.heta.score import Balance, Parts


def parts(seed: int = 0, n: int = 6, samples: int = 5, beta: float = 0.5, gamma: float = 0.25) -> Parts:
    """Random parts, of very different sizes."""
    generator = torch.Generator().manual_seed(seed)
    gate, information = torch.rand(2, n, generator=generator, dtype=torch.float64)
    curvature = 100 * torch.rand(samples, n, generator=generator, dtype=torch.float64)
    return Parts(gate / gate.sum(), Samples.even(curvature), information, beta, gamma)


def test_eq4_and_its_balanced_forms_equal_the_oracle() -> None:
    own = parts()
    arguments = own.gate, own.curvature.mean, own.information, 0.5, 0.25
    torch.testing.assert_close(own.score("none"), oracles.eq4(*arguments), rtol=1e-14, atol=0)
    for by in ("sum", "max"):
        torch.testing.assert_close(own.score(by), oracles.balanced(*arguments, by=by), rtol=1e-14, atol=0)


def test_a_part_that_is_zero_everywhere_stays_zero_when_balanced() -> None:
    own = Parts(torch.tensor([0.5, 0.5]), Samples.even(torch.zeros(3, 2)), torch.tensor([1.0, 3.0]), 1.0, 1.0)
    assert own.score("sum").tolist() == [0.125, 0.375]
    assert own.score("max").tolist() == pytest.approx([1 / 6, 0.5])


@pytest.mark.sample(quick=1, test=3)
@pytest.mark.parametrize("balance", get_args(Balance))
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.usefixtures("unchecked")
def test_standard_errors_equal_the_spread_over_repeats(balance: Balance, shared: bool) -> None:
    """Whether each token has its own probes or (row support) all share them, and whatever they are divided by."""
    generator = torch.Generator().manual_seed(0)
    size = torch.tensor([1, 2, 3, 4, 5, 9], dtype=torch.float64)

    def draw() -> Parts:
        noise = torch.randn(10, 1 if shared else 6, generator=generator, dtype=torch.float64)
        own = torch.randn(10, 6, generator=generator, dtype=torch.float64)
        curvature = size * (4 + 0.5 * noise + 0.2 * own)
        return Parts(torch.full((6,), 1 / 6, dtype=torch.float64), Samples.even(curvature), size / 9, 0.5, 0.5)

    repeats = [draw() for _ in range(250)]
    spread = torch.stack([repeat.score(balance) for repeat in repeats]).std(0)
    claimed = torch.stack([repeat.standard_errors(balance)["scores"] for repeat in repeats]).square().mean(0).sqrt()
    steady = spread < 1e-3 * spread.max()  # the largest part divided by itself does not vary
    assert relative(claimed[~steady], spread[~steady]) < 0.1
