"""Models without second derivatives are found, and others are not taken for them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from helpers import zoo
from helpers.asking import explain
from helpers.sure_models import sure
from heta_lens.methods.heta.hessian import check_twice_differentiable
from heta_lens.model.batching import Batches


def check_one(objective: Callable[[Tensor], Tensor], compare: bool = True) -> None:
    at = torch.linspace(1, 2, 4, dtype=torch.float64)[None]
    direction = torch.tensor([[1, -1, 1, 1]], dtype=torch.float64)
    check_twice_differentiable(objective, at, direction, compare, Batches(4))


class Once(torch.autograd.Function):
    """A cube that says itself that it has no second derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 3 * x**2 * gradient


def test_what_is_affine_or_bent_has_second_derivatives() -> None:
    weights = torch.ones(1, 4, dtype=torch.float64)
    check_one(lambda e: (weights * e).sum((1, 2)))
    check_one(lambda e: (e**3).sum((1, 2)))
    check_one(lambda e: (weights.clone().requires_grad_() * e).sum((1, 2)))


def test_a_kink_beside_the_embeddings_is_not_taken_for_a_missing_derivative() -> None:
    """Steps of finite differences cross it, and disagree on what they find."""
    check_one(lambda e: (e**2).sum((1, 2)) + 5 * (e - 1 - 1e-6).relu().sum((1, 2)))


def test_what_autograd_leaves_out_is_noticed_where_it_is_compared() -> None:
    with pytest.raises(ValueError, match="not as autograd says"):
        check_one(lambda e: (e * e.detach()).sum((1, 2)))
    check_one(lambda e: (e * e.detach()).sum((1, 2)), compare=False)


@pytest.mark.parametrize("compare", [False, True])
def test_a_layer_that_refuses_a_second_derivative_is_heard_also_where_nothing_is_compared(compare: bool) -> None:
    with pytest.raises(ValueError, match=r"cannot be differentiated twice.*not differentiable"):
        check_one(lambda e: Once.apply(e).square().sum((1, 2)), compare)


@pytest.mark.parametrize(("family", "certainty", "seed"), [("gpt2", 50, 10), ("neox", 55, 2)])
def test_a_sure_prediction_is_not_taken_for_a_missing_derivative(family: str, certainty: float, seed: int) -> None:
    """Its gradient is too small for finite differences in float32."""
    model = sure(family, torch.float32, certainty)
    assert explain(model, zoo.prompt(model, 8, seed), probes=1).diagnostics["target_log_prob"] > -1e-6
