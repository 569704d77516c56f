"""Products with H: those of dense matrices, of a whole graph and block by block; and models that have no H."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers import oracles, zoo
from helpers.asking import explain, predict
from helpers.heta import Dense, hessian_from, random_hessian
from helpers.odd_models import sure
from heta_lens import Heta
from heta_lens.methods.heta.curvature import LowRank
from heta_lens.methods.heta.hessian import (
    ExactHessian,
    GaussNewton,
    HessianOperator,
    check_twice_differentiable,
    gauss_newton,
    hessian,
)
from heta_lens.model.batching import Batches

N, D = 3, 4


def quadratic(matrix: torch.Tensor) -> HessianOperator:
    at = torch.randn(N, D, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    return hessian_from(oracles.quadratic(matrix), at)(0)


def rank_two(matrix: torch.Tensor) -> tuple[LowRank, torch.Tensor]:
    values, vectors = torch.linalg.eigh(matrix.reshape(N * D, N * D))
    low = LowRank(vectors[:, -2:].reshape(N, D, 2), values[-2:], 0.0)
    return low, (vectors[:, -2:] * values[-2:] @ vectors[:, -2:].T).reshape(N, D, N, D)


@pytest.mark.parametrize("places", [slice(None), slice(1, 3), 1])
def test_products_with_the_hessian_are_those_of_the_dense_one(places: Any) -> None:
    matrix = random_hessian(N, D)
    directions = torch.randn(5, N, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64)[:, places]
    low, kept = rank_two(matrix)
    for operator, dense in ((quadratic(matrix), matrix), (low, kept)):
        torch.testing.assert_close(operator.matmat(directions, places), Dense(dense).matmat(directions, places))


@pytest.mark.parametrize("name", ["gpt2"])
def test_the_operators_of_a_model_are_the_dense_hessian_and_gauss_newton_matrix(name: str) -> None:
    model = zoo.bridge(name)
    prediction = predict(model, zoo.prompt(model, N), 9)
    with prediction.running():
        states, log_probs = prediction.embeddings, prediction.rerun().log_probs
        exact = hessian(prediction.rerun(), Batches(4))
        newton = gauss_newton(prediction.rerun(), Batches(4))
        assert isinstance(exact, ExactHessian) and isinstance(newton, GaussNewton)
        dense = (
            torch.autograd.functional.hessian(lambda e: prediction.rerun().g(e[None])[0], states)
            .flatten(2)
            .flatten(0, 1)
        )
        square = oracles.gauss_newton(lambda e: log_probs(e[None])[0], states).flatten(2).flatten(0, 1)
        for operator, matrix in ((exact, dense), (newton, square)):
            assert isinstance(matrix, torch.Tensor)
            found = operator.matmat(torch.eye(states.numel()).to(states).unflatten(1, states.shape)).flatten(1)
            torch.testing.assert_close(found, matrix, rtol=0, atol=1e-9 * float(matrix.abs().max()))


@pytest.mark.thorough
@pytest.mark.parametrize("build", zoo.models("bridge-gpt2|hooked-llama"))
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"groups": 3},
        {"support": "row"},
        {"norm": "entrywise"},
        {"interactions": True, "groups": None},
        {"variant": "ls", "layers": 2},
        {"variant": "lr", "rank": 4},
        {"variant": "win", "window": 4, "window_mode": "restrict"},
        {"variant": "win", "window": 4, "window_mode": "chunk"},
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:probes=10 were too few:UserWarning")
def test_scores_are_the_same(build: Any, options: dict[str, Any]) -> None:
    model = build()
    prediction = predict(model, zoo.prompt(model, 9), 7)
    whole, blockwise = Heta(**options)(prediction), Heta(**options, checkpoint=True)(prediction)
    torch.testing.assert_close(blockwise.scores, whole.scores, rtol=1e-6, atol=0)
    assert blockwise.options["checkpoint"] and blockwise.diagnostics["hvps"] == whole.diagnostics["hvps"]


def test_the_states_that_enter_all_blocks_come_from_one_run() -> None:
    model = zoo.bridge("gpt2", n_layers=6)
    method = Heta(gamma=0, probes=1, checkpoint=True)
    prediction = predict(model, zoo.prompt(model, 9), 7)
    assert method(prediction).diagnostics["forwards"] <= method.work(prediction).forwards


@pytest.mark.parametrize("build", zoo.models("bridge-gpt2"))
def test_what_it_does_not_go_with_is_refused(build: Any) -> None:
    with pytest.raises(ValueError, match="does not go with variant='gn'"):
        Heta(variant="gn", checkpoint=True)
    with pytest.raises(ValueError, match="does not go with window_mode='frozen'"):
        Heta(variant="win", checkpoint=True)
    model = build()
    with model.hooks([("blocks.0.hook_resid_post", lambda value, hook: 1.0 * value)]):  # noqa: ARG005
        prediction = predict(model, zoo.prompt(model, 5), 7)
        with pytest.raises(ValueError, match="checkpoint=True runs blocks one at a time, but hooks on the model"):
            Heta(checkpoint=True)(prediction)


def check_one(objective: Callable[[Tensor], Tensor], compare: bool = True) -> None:
    at = torch.linspace(1, 2, 4, dtype=torch.float64)[None]
    direction = torch.tensor([[1, -1, 1, 1]], dtype=torch.float64)
    check_twice_differentiable(objective, at, direction, compare, batches=Batches(4))


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


@pytest.mark.parametrize(("family", "certainty", "seed"), [("gpt2", 50, 10), ("neox", 55, 2)])
def test_a_sure_prediction_is_not_taken_for_a_missing_derivative(family: str, certainty: float, seed: int) -> None:
    """Its gradient is too small for finite differences in float32."""
    model = sure(family, torch.float32, certainty)
    assert explain(model, zoo.prompt(model, 8, seed), probes=1).diagnostics["target_log_prob"] > -1e-6
