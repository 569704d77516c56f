"""Coalitions of players: drawn, run and fitted to."""

from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import Lasso, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from heta_lens.prediction.coalitions import every_coalition, kernel, lasso, random_coalitions, ridge, shapley


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


@pytest.mark.parametrize("samples", [40, 8])
def test_lasso_is_the_one_of_contextcite(samples: int) -> None:
    """A LASSO behind a scaler, carried back to what was scaled."""
    masks, values, _ = problem(4, samples, 12)
    masks[:, 2] = True  # a column that never changes
    scaler, model = StandardScaler(), Lasso(alpha=0.01, random_state=0, fit_intercept=True, tol=1e-12, max_iter=10**6)
    make_pipeline(scaler, model).fit(masks.astype(float), values)
    found = lasso(masks, values, 0.01)
    close(found.weights, model.coef_ / scaler.scale_, 1e-6)
    close(found.intercept, model.intercept_ - (scaler.mean_ / scaler.scale_) @ model.coef_.T, 1e-6)
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
