"""Equation 4 and its balanced forms against the oracle, and how sure a score is."""

from dataclasses import replace
from itertools import product
from typing import get_args

import pytest
import torch

from helpers import oracles
from helpers.asking import relative
from heta_lens._util.numerics import Samples
from heta_lens.methods.heta.score import Balance, Combine, Parts


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


@pytest.mark.parametrize(("beta", "gamma"), [(0.5, 0.5), (3.0, 1.0), (0.2, 2.0)])
def test_the_geometric_score_equals_the_oracle_and_no_scale_changes_its_ranks(beta: float, gamma: float) -> None:
    own = replace(parts(beta=beta, gamma=gamma), combine="geometric")
    signs = torch.tensor([1, -1, 1, 0, -1, 1])
    own = replace(own, information=own.information * signs)
    expected = oracles.geometric(own.gate, own.curvature.mean, own.information, beta, gamma)
    torch.testing.assert_close(own.score("none"), expected, rtol=1e-14, atol=0)
    assert torch.equal(own.score("sum"), own.score("none"))
    scaled = replace(own, curvature=Samples.even(1e6 * own.curvature.values), information=1e-3 * own.information)
    assert scaled.score("none").argsort().tolist() == expected.argsort().tolist()


def test_a_geometric_score_of_0_has_an_error_of_0() -> None:
    curvature = torch.tensor([[0.0, 2.0, 2.0, 0.0], [0.0, 3.0, 4.0, 0.0]])
    own = Parts(torch.ones(4), Samples.even(curvature), torch.tensor([2.0, 0.0, 3.0, 0.0]), 1.0, 1.0, "geometric")
    assert own.score("none").tolist() == pytest.approx([0, 0, 3, 0])
    errors = own.standard_errors("none")
    # S of the third is 3 ± 1, of which the score's share is half
    assert errors["scores"].tolist() == pytest.approx([0, 0, 3 * 0.5 / 3, 0])
    assert own.diagnostics("none")["parts_correlation"] == pytest.approx(own.diagnostics("sum")["parts_correlation"])


@pytest.mark.sample(quick=1, test=3)
@pytest.mark.parametrize(("combine", "balance"), [*product(["sum"], get_args(Balance)), ("geometric", "none")])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.usefixtures("unchecked")
def test_standard_errors_equal_the_spread_over_repeats(combine: Combine, balance: Balance, shared: bool) -> None:
    """Whether each token has its own probes or (row support) all share them, and whatever they are divided by."""
    generator = torch.Generator().manual_seed(0)
    size = torch.tensor([1, 2, 3, 4, 5, 9], dtype=torch.float64)

    def draw() -> Parts:
        noise = torch.randn(10, 1 if shared else 6, generator=generator, dtype=torch.float64)
        own = torch.randn(10, 6, generator=generator, dtype=torch.float64)
        curvature = size * (4 + 0.5 * noise + 0.2 * own)
        return Parts(torch.full((6,), 1 / 6, dtype=torch.float64), Samples.even(curvature), size / 9, 0.5, 0.5)

    repeats = [replace(draw(), combine=combine) for _ in range(250)]
    spread = torch.stack([repeat.score(balance) for repeat in repeats]).std(0)
    claimed = torch.stack([repeat.standard_errors(balance)["scores"] for repeat in repeats]).square().mean(0).sqrt()
    steady = spread < 1e-3 * spread.max()  # the largest part divided by itself does not vary
    assert relative(claimed[~steady], spread[~steady]) < 0.1
