"""Coalitions of players: drawn, run and fitted to."""

from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import Lasso, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from heta_lens.prediction.coalitions import (
    every_coalition,
    kernel,
    lasso,
    random_coalitions,
    ridge,
    shapley,
)


def test_random_coalitions_come_near_the_truth_and_pairs_nearer() -> None:
    table, ends = np.random.default_rng(3).normal(size=2**7), [np.zeros(7, dtype=bool), np.ones(7, dtype=bool)]
    empty, full = (float(table[end @ (1 << np.arange(7))]) for end in ends)

    def values(masks: np.ndarray, weights: np.ndarray) -> np.ndarray:
        return shapley(masks, table[masks @ (1 << np.arange(7))], weights, empty, full)

    every = every_coalition(7)
    exact = values(every, kernel(every.sum(1), 7))

    def error(count: int, paired: bool) -> float:
        drawn = [random_coalitions(np.random.default_rng([s, 7]), 7, count, paired=paired) for s in range(20)]
        return float(np.mean([np.abs(values(masks, np.ones(len(masks))) - exact).max() for masks in drawn]))

    assert error(2000, True) < 0.4 * error(110, True) and error(2000, True) < error(2000, False)
    assert error(440, True) < 0.9 * error(440, False)


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
    masks, values, _ = problem(3)
    found, spread = lasso(masks, values, penalty), masks.std(0)
    coefficients, intercept = descended(masks / spread, values, everyone(masks), penalty)
    close(found.weights, coefficients / spread, 1e-7)
    close(found.intercept, intercept, 1e-7)


def official(masks: np.ndarray, values: np.ndarray, alpha: float = 0.01) -> tuple[np.ndarray, float]:
    """ContextCite's fit: a LASSO behind a scaler, carried back to what was scaled."""
    scaler, model = StandardScaler(), Lasso(alpha=alpha, random_state=0, fit_intercept=True, tol=1e-12, max_iter=10**6)
    make_pipeline(scaler, model).fit(masks.astype(float), values)
    return model.coef_ / scaler.scale_, float(model.intercept_ - (scaler.mean_ / scaler.scale_) @ model.coef_.T)


@pytest.mark.parametrize("samples", [40, 8])
def test_lasso_is_the_one_of_contextcite(samples: int) -> None:
    masks, values, _ = problem(4, samples, 12)
    masks[:, 2] = True  # a column that never changes
    found, (weights, intercept) = lasso(masks, values, 0.01), official(masks, values)
    close(found.weights, weights, 1e-6)
    close(found.intercept, intercept, 1e-6)
    assert found.weights[2] == 0


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
