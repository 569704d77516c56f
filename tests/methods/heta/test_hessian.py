"""The operators that multiply with H, against the dense Hessian, and as SciPy sees them."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse.linalg import eigsh
from torch import Tensor

from helpers import oracles, variant_oracles, zoo
from helpers import variant_oracles as variants
from helpers.asking import (
    predict,
    relative,
)
from helpers.hessians import Dense, hessian_from, random_hessian
from heta_lens.methods.heta.curvature import LowRank
from heta_lens.methods.heta.hessian import ExactHessian, GaussNewton, HessianOperator, gauss_newton, hessian
from heta_lens.model.batching import Batches

N, D = 3, 4


def ignored(units: int) -> None:
    pass


def quadratic(matrix: torch.Tensor) -> HessianOperator:
    at = torch.randn(N, D, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    return hessian_from(lambda _: oracles.quadratic(matrix), at)(0)


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


def test_one_product_is_a_row_of_several() -> None:
    operator = quadratic(random_hessian(N, D))
    directions = torch.randn(2, N, D, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    torch.testing.assert_close(operator.matvec(directions[1]), operator.matmat(directions)[1])


def test_scipy_sees_the_dense_matrix() -> None:
    matrix = random_hessian(N, D)
    linear, dense = quadratic(matrix).as_linear_operator(), matrix.reshape(N * D, N * D).numpy()
    assert linear.shape == dense.shape and linear.dtype == np.float64
    np.testing.assert_allclose(linear @ np.eye(N * D), dense, atol=1e-12)
    vector = np.arange(N * D, dtype=np.float64)
    np.testing.assert_allclose(linear @ vector, dense @ vector)
    np.testing.assert_allclose(linear.rmatvec(vector), dense.T @ vector)
    largest = eigsh(linear, k=2, which="LM", return_eigenvectors=False)
    every = np.linalg.eigvalsh(dense)
    np.testing.assert_allclose(sorted(largest), sorted(every[np.abs(every).argsort()[-2:]]))


def test_scipy_sees_the_type_of_the_states() -> None:
    low, kept = rank_two(random_hessian(N, D))
    single = LowRank(low.vectors.float(), low.values.float(), 0.0).as_linear_operator()
    assert single.dtype == np.float32
    expected = kept.reshape(N * D, N * D).numpy() @ np.ones(N * D)
    np.testing.assert_allclose(single @ np.ones(N * D, np.float32), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["gpt2"])
def test_the_operators_of_a_model_are_the_dense_hessian_and_gauss_newton_matrix(name: str) -> None:
    model = zoo.bridge(name)
    prediction = predict(model, zoo.prompt(model, N), 9)
    with prediction.running():
        states, log_probs = prediction.embeddings, prediction.log_probs_from(0)
        exact = hessian(prediction.objective_from(0), states, Batches(4), ignored)
        newton = gauss_newton(lambda leaf: log_probs(leaf[None])[0], states, Batches(4), ignored)
        assert isinstance(exact, ExactHessian) and isinstance(newton, GaussNewton)
        dense = torch.autograd.functional.hessian(prediction.objective_from(0), states).flatten(2).flatten(0, 1)
        square = variant_oracles.gauss_newton(lambda e: log_probs(e[None])[0], states).flatten(2).flatten(0, 1)
        for operator, matrix in ((exact, dense), (newton, square)):
            assert isinstance(matrix, torch.Tensor)
            found = operator.as_linear_operator() @ np.eye(states.numel())
            np.testing.assert_allclose(found, matrix.numpy(), atol=1e-9 * float(matrix.abs().max()))


def operator(kind: Any, log_probs: Any, at: Tensor, start: int = 0, batch: int = 4) -> HessianOperator:
    if kind is hessian:
        return hessian(lambda e: log_probs(e)[2], at[start:], Batches(batch), lambda _: None)
    return gauss_newton(log_probs, at[start:], Batches(batch), lambda _: None)


@pytest.mark.parametrize("batch", [1, 2, 99])
def test_gauss_newton_is_the_hessian_of_affine_logits(batch: int) -> None:
    generator = torch.Generator().manual_seed(0)
    slope, at = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((12, 5), (3, 4)))
    every = torch.eye(12, dtype=torch.float64).reshape(12, 3, 4)

    def affine(e: Tensor) -> Tensor:
        return (e.flatten() @ slope + torch.arange(5)).log_softmax(-1)

    def bent(e: Tensor) -> Tensor:
        return ((e.flatten() @ slope).tanh() + torch.arange(5)).log_softmax(-1)

    newton, exact = (operator(kind, affine, at, batch=batch).matmat(every) for kind in (gauss_newton, hessian))
    torch.testing.assert_close(newton, exact, rtol=1e-10, atol=1e-13)
    newton, exact = (operator(kind, bent, at, batch=batch).matmat(every) for kind in (gauss_newton, hessian))
    assert relative(newton, exact) > 0.1
    torch.testing.assert_close(newton.reshape(12, 3, 4), variants.gauss_newton(bent, at).reshape(12, 3, 4))
    assert torch.linalg.eigvalsh(newton.reshape(12, 12)).max() < 1e-12  # a maximum wherever it is one
    one = operator(gauss_newton, bent, at, batch=batch).matmat(every[4:8, 1], 1)
    torch.testing.assert_close(one, newton[4:8])


def test_gauss_newton_counts_each_product_once_and_no_more_than_a_batch_at_a_time() -> None:
    counted: list[int] = []
    at = torch.ones(2, 3, dtype=torch.float64)
    products = gauss_newton(lambda e: e.flatten().sin().log_softmax(-1), at, Batches(2), counted.append)
    products.matmat(torch.eye(3, dtype=torch.float64), 0)
    assert counted == [2, 1]
    constant = gauss_newton(lambda e: (0 * e.flatten()).log_softmax(-1), at, Batches(2), counted.append)
    assert not constant.matmat(torch.ones(1, 2, 3, dtype=torch.float64)).any()
