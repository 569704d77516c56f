"""Linear models of coalitions: ridge, LASSO and Shapley values, against what others make of the same formulas."""

from collections.abc import Callable
from itertools import permutations
from math import factorial, isnan
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import Lasso, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from heta_lens.prediction.coalitions import Linear, every_coalition, explained, kernel, lasso, ridge, shapley

Game = Callable[[frozenset[int]], float]


def problem(seed: int = 0, samples: int = 40, players: int = 5) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Coalitions, values that are not linear in them, and weights."""
    generator = np.random.default_rng(seed)
    masks = generator.random((samples, players)) < 0.6
    values = masks @ generator.normal(size=players) + 2 * masks[:, 0] * masks[:, 1] + generator.normal(size=samples)
    return masks, values, generator.random(samples) + 0.1


def close(found: Any, expected: Any, tolerance: float = 1e-9) -> None:
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=0, atol=tolerance)


def everyone(masks: np.ndarray) -> np.ndarray:
    return np.ones(len(masks))


# ------------------------------------------------------------------------------------------------------------- ridge
@pytest.mark.parametrize("penalty", [1, 0.3, 50.0])
@pytest.mark.parametrize("shape", [(40, 5), (4, 9), (3, 1)])
def test_ridge_is_the_weighted_one_with_a_free_intercept(penalty: float, shape: tuple[int, int]) -> None:
    masks, values, weights = (
        problem(1, *shape) if shape[1] > 1 else (np.array([[True], [False], [True]]), *problem(1, 3)[1:])
    )
    found, plain = (
        ridge(masks, values, weights, penalty),
        Ridge(alpha=penalty).fit(masks, values, sample_weight=weights),
    )
    close(found.weights, plain.coef_)
    close(found.intercept, plain.intercept_)
    close(found(masks), plain.predict(masks))


def test_without_a_penalty_what_is_linear_is_found() -> None:
    masks, _, weights = problem(2)
    exact = Linear(np.array([1.0, -2, 0, 3, 0.5]), -0.7)
    found = ridge(masks, exact(masks), weights, 0)
    close(found.weights, exact.weights)
    close(found.intercept, -0.7)


# ------------------------------------------------------------------------------------------------------------- LASSO
def soft(value: float, by: float) -> float:
    return max(abs(value) - by, 0.0) * (1 if value > 0 else -1)


def descended(columns: np.ndarray, values: np.ndarray, weights: np.ndarray, penalty: float) -> tuple[np.ndarray, float]:
    """One coefficient after the other set to its best, until nothing moves."""
    share, found, intercept = weights / weights.sum(), np.zeros(columns.shape[1]), 0.0
    for _ in range(3000):
        intercept = float(share @ (values - columns @ found))
        for k in range(len(found)):
            rest = values - intercept - columns @ found + columns[:, k] * found[k]
            size = float(share @ columns[:, k] ** 2)
            found[k] = soft(float(share @ (columns[:, k] * rest)), penalty) / size if size else 0.0
    return found, intercept


@pytest.mark.parametrize("penalty", [0.01, 0.2])
def test_lasso_is_where_no_coefficient_can_be_bettered(penalty: float) -> None:
    masks, values, weights = problem(3)
    found = lasso(masks, values, weights, penalty)
    coefficients, intercept = descended(masks.astype(float), values, weights, penalty)
    close(found.weights, coefficients, 1e-7)
    close(found.intercept, intercept, 1e-7)
    loose = Lasso(alpha=penalty, tol=1e-12).fit(masks, values, sample_weight=weights)
    close(found.weights, loose.coef_, 1e-7)


def official(masks: np.ndarray, values: np.ndarray, alpha: float = 0.01) -> tuple[np.ndarray, float]:
    """ContextCite's fit: a LASSO behind a scaler, carried back to what was scaled."""
    scaler, model = StandardScaler(), Lasso(alpha=alpha, random_state=0, fit_intercept=True, tol=1e-12, max_iter=10**6)
    make_pipeline(scaler, model).fit(masks.astype(float), values)
    return model.coef_ / scaler.scale_, float(model.intercept_ - (scaler.mean_ / scaler.scale_) @ model.coef_.T)


@pytest.mark.parametrize("samples", [40, 8])
def test_a_standardised_lasso_is_the_one_of_contextcite(samples: int) -> None:
    masks, values, _ = problem(4, samples, 12)
    masks[:, 2] = True  # a column that never changes
    found, (weights, intercept) = (
        lasso(masks, values, everyone(masks), 0.01, standardised=True),
        official(masks, values),
    )
    close(found.weights, weights, 1e-6)
    close(found.intercept, intercept, 1e-6)
    assert found.weights[2] == 0
    assert np.abs(lasso(masks, values, everyone(masks), 0.01).weights - weights).max() > 1e-3


def test_contextcites_worked_example() -> None:
    masks = np.array([[bool(number >> bit & 1) for bit in range(3)] for number in range(8)])
    found = lasso(masks, 2.0 * masks[:, 0] - masks[:, 2] + 0.5, everyone(masks), 0.01, standardised=True)
    close(found.weights, [1.98, 0, -0.98])
    close(found.intercept, 0.5)


def test_a_lasso_without_a_penalty_is_least_squares() -> None:
    masks, values, weights = problem(5)
    close(lasso(masks, values, weights, 0).weights, ridge(masks, values, weights, 0).weights)


def test_a_fit_leaves_numpys_own_chance_alone() -> None:
    np.random.seed(0)  # noqa: NPY002
    before = np.random.get_state()[2]  # noqa: NPY002
    lasso(*problem(), 0.1)
    assert np.random.get_state()[2] == before  # noqa: NPY002


@pytest.mark.parametrize("at_once", [1, 7, 40])
def test_samples_are_summed_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    masks, values, weights = problem(5)
    fits = [lambda: ridge(masks, values, weights, 0.3).weights, lambda: shapley(masks, values, weights, -1.0, 2.0, 0.3)]
    whole = [fit() for fit in fits]
    monkeypatch.setattr("heta_lens.prediction.coalitions.AT_ONCE", at_once)
    for fit, expected in zip(fits, whole, strict=True):
        close(fit(), expected)


# ---------------------------------------------------------------------------------------------------- Shapley values
def shapley_values(game: Game, players: int) -> list[float]:
    """What each adds to those before it, on average over all orders."""
    found = [0.0] * players
    for order in permutations(range(players)):
        for k, player in enumerate(order):
            found[player] += game(frozenset(order[: k + 1])) - game(frozenset(order[:k]))
    return [total / factorial(players) for total in found]


def by_least_squares(game: Game, players: int, penalty: float = 0.0) -> np.ndarray:
    masks = every_coalition(players)
    values = np.array([game(frozenset(row.nonzero()[0].tolist())) for row in masks], dtype=float)
    weights = kernel(masks.sum(1), players)
    return shapley(masks, values, weights, game(frozenset()), game(frozenset(range(players))), penalty)


def wild(coalition: frozenset[int]) -> float:
    return float(np.random.default_rng([7, sum(1 << player for player in coalition)]).normal())


TWO = {(): 0, (0,): 1, (1,): 2, (0, 1): 5}


def of_three(coalition: frozenset[int]) -> float:
    return (0 in coalition) + 2.0 * (1 in coalition) + 4 * ({0, 2} <= coalition)


def test_worked_examples() -> None:
    close(by_least_squares(lambda coalition: float(TWO[tuple(sorted(coalition))]), 2), [2, 3])
    close(by_least_squares(of_three, 3), [3, 2, 2])


@pytest.mark.parametrize("players", [1, 2, 3, 5, 6])
def test_over_all_coalitions_the_fit_is_the_average_over_all_orders(players: int) -> None:
    close(by_least_squares(wild, players), shapley_values(wild, players))


@pytest.mark.parametrize("penalty", [0, 1e-3, 2.0])
@pytest.mark.parametrize("samples", [3, 30])
def test_the_values_sum_to_what_there_is_to_share(samples: int, penalty: float) -> None:
    masks, values, weights = problem(6, samples, 6)
    close(shapley(masks, values, weights, 0.25, 1.5, penalty).sum(), 1.25, 1e-14)


@pytest.mark.parametrize("penalty", [0, 0.4])
def test_among_values_with_that_sum_these_fit_best(penalty: float) -> None:
    """The saddle point of the Lagrangian, with the constraint in it."""
    masks, values, weights = problem(8, 50, 6)
    z = masks.astype(float)
    saddle = np.block(
        [
            [2 * z.T @ np.diag(weights) @ z + 2 * penalty * np.eye(6), np.ones((6, 1))],
            [np.ones((1, 6)), np.zeros((1, 1))],
        ]
    )
    right = np.concatenate([2 * z.T @ (weights * (values - 0.25)), [1.25]])
    close(shapley(masks, values, weights, 0.25, 1.5, penalty), np.linalg.solve(saddle, right)[:-1])


def test_players_that_no_coalition_tells_apart_get_the_same() -> None:
    masks = np.array([[True, True, False], [False, False, True]])
    found = shapley(masks, np.array([2.0, 5.0]), np.ones(2), 0.0, 7.0)
    close(found, [1, 1, 5])


# ------------------------------------------------------------------------------------------------------- how it fits
def test_how_much_of_the_variance_is_explained() -> None:
    values, weights = np.array([0.0, 1, 2, 5]), np.array([1.0, 1, 1, 3])
    assert explained(values, values) == 1
    close(explained(np.full(4, 2.0), values), 0)
    close(explained(np.full(4, 3.0), values, weights), 0)
    close(explained(np.array([0.0, 1, 2, 4]), values, weights), 1 - 3 / (9 + 4 + 1 + 3 * 4))
    assert isnan(explained(values, np.ones(4))) and isnan(explained(values[:0], values[:0]))


# --------------------------------------------------------------------------------------------- against other programs
def test_captums_kernel_shap_fits_the_same() -> None:
    """On the coalitions it draws; it only nearly keeps to the sum."""
    captum = pytest.importorskip("captum.attr")
    seen: list[torch.Tensor] = []

    def forward(inputs: torch.Tensor) -> torch.Tensor:
        seen.append(inputs.bool()[0])
        return torch.tensor([wild(frozenset(inputs[0].nonzero()[:, 0].tolist()))])

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        theirs = captum.KernelShap(forward).attribute(torch.ones(1, 6), baselines=0, n_samples=100)
    masks = torch.stack(seen).numpy()
    values = np.array([wild(frozenset(row.nonzero()[0].tolist())) for row in masks])
    proper = masks.any(1) & ~masks.all(1)
    ends = wild(frozenset()), wild(frozenset(range(6)))
    close(shapley(masks[proper], values[proper], np.ones(proper.sum()), *ends), theirs[0], 1e-3)
