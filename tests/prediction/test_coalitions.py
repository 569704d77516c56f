"""Coalitions of players: drawn, run and fitted to."""

from collections.abc import Callable
from itertools import permutations
from math import comb, factorial, isnan
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from sklearn.linear_model import Lasso, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from helpers import zoo
from helpers.asking import predict
from heta_lens.model.batching import Batches
from heta_lens.prediction.coalitions import (
    each_token,
    every_coalition,
    explained,
    kernel,
    lasso,
    placed,
    random_coalitions,
    read_everywhere,
    removed,
    ridge,
    shapley,
    sizes,
    still_there,
    worths,
)

MEMBERS = np.array([[1, 1, 0, 0], [0, 0, 0, 1]], dtype=bool)


def test_tokens_of_no_player_stay() -> None:
    masks = np.array([[True, False], [False, False]])
    assert still_there(MEMBERS, masks).tolist() == [[True, True, True, False], [False, False, True, False]]


def test_a_repeated_coalition_is_run_once() -> None:
    runs: list[int] = []

    def with_present(present: Tensor) -> Tensor:
        runs.append(len(present))
        return present.sum(1).double()

    masks = np.array([[True, False], [False, True], [True, False]])
    assert worths(MEMBERS, masks, with_present).tolist() == [3, 2, 3]
    assert runs == [2]


def test_players_values_are_at_their_tokens() -> None:
    prediction = predict(zoo.bridge("gpt2"), zoo.prompt(zoo.bridge("gpt2"), 4))
    assert placed(prediction, MEMBERS, np.array([1.0, 2.0])).tolist() == [1, 1, 0, 2]
    assert len(each_token(prediction, keep_bos=False)) == 4
    assert len(each_token(prediction, keep_bos=True)) == 4 - prediction.begins


def test_with_every_token_the_prediction_is_the_clean_one() -> None:
    model = zoo.bridge("gpt2")
    prediction = predict(model, zoo.prompt(model, 4), 7)
    present = torch.ones(1, 4, dtype=torch.bool)
    with prediction.running():
        alone = removed(prediction, present, None, "log_prob", Batches(1), lambda _: None)
        everywhere = read_everywhere(prediction, prediction.embeddings[None], "log_prob", lambda _: None)
    torch.testing.assert_close(alone[0], prediction.log_probs[7])
    torch.testing.assert_close(everywhere[0, -1], prediction.log_probs[7])


@pytest.mark.parametrize("players", [1, 2, 5, 9])
def test_every_coalition_is_there_once(players: int) -> None:
    rows = {tuple(row) for row in every_coalition(players)}
    assert len(rows) == len(every_coalition(players)) == 2**players - 2
    assert not rows & {(False,) * players, (True,) * players}


@pytest.mark.parametrize("players", [2, 3, 7, 12])
def test_sizes_weigh_what_their_coalitions_do_together(players: int) -> None:
    mass = [comb(players, k) * (players - 1) / (comb(players, k) * k * (players - k)) for k in range(1, players)]
    assert_allclose(sizes(players), np.array(mass) / sum(mass))
    alone = kernel(np.arange(1, players), players)
    assert_allclose(alone * [comb(players, k) for k in range(1, players)], mass)


@pytest.mark.parametrize("count", [8, 7])
def test_pairs_are_a_coalition_and_its_opponents(count: int) -> None:
    drawn = random_coalitions(np.random.default_rng(0), 5, count, paired=True)
    assert drawn.shape == (count, 5)
    assert (drawn[4:] == ~drawn[: count - 4]).all()


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


def test_a_fit_leaves_numpys_own_chance_alone() -> None:
    np.random.seed(0)  # noqa: NPY002
    before = np.random.get_state()[2]  # noqa: NPY002
    lasso(*problem(), 0.1)
    assert np.random.get_state()[2] == before  # noqa: NPY002


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


def test_how_much_of_the_variance_is_explained() -> None:
    values, weights = np.array([0.0, 1, 2, 5]), np.array([1.0, 1, 1, 3])
    assert explained(values, values) == 1
    close(explained(np.full(4, 2.0), values), 0)
    close(explained(np.full(4, 3.0), values, weights), 0)
    close(explained(np.array([0.0, 1, 2, 4]), values, weights), 1 - 3 / (9 + 4 + 1 + 3 * 4))
    assert isnan(explained(values, np.ones(4))) and isnan(explained(values[:0], values[:0]))


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
