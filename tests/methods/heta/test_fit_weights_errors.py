"""Held-out errors of fitted weights, by hand and by the oracle."""

from typing import Any

import numpy as np
import pytest

from helpers import zoo
from helpers.asking import doubts_allowed, predict
from helpers.fitting import Array, enumerated, method, tables
from heta_lens import Prediction, fit_weights
from heta_lens.methods.heta.fit_weights import MODELS, folds_of, held_out_errors, interval

LENGTHS = (3, 5, 4)
FEATURES = {name for names in MODELS.values() for name in names}


@pytest.fixture
def model() -> Any:
    return zoo.bridge("gpt2")


@pytest.fixture
def asked(model: Any) -> list[Prediction]:
    return [predict(model, zoo.prompt(model, n, seed=n)) for n in LENGTHS]


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    with doubts_allowed():
        yield


def by_hand(table: dict[str, Array], fold: Array) -> dict[str, list[float]]:
    """Each prediction's error under every model, fitted to the other folds by the oracle; sets' own of a single one."""
    found: dict[str, list[float]] = {}
    single = len(set(table["prediction"])) == 1
    units = np.arange(len(fold)) if single else table["prediction"]
    for name in (*MODELS, "half", "nothing"):
        errors: dict[float, list[float]] = {}
        for row, unit in enumerate(units):
            features = MODELS.get(name, ())
            weights = enumerated(table, features, fold != fold[row]) if features else []
            guess = sum(w * table[feature][row] for w, feature in zip(weights, features, strict=True))
            guess = table["half"][row] if name == "half" else guess
            errors.setdefault(float(unit), []).append(abs(table["drop"][row] - guess))
        found[name] = [float(np.mean(group)) for group in errors.values()]
    return found


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize(("count", "folds"), [(3, 2), (3, 5), (2, 2), (1, 3)])
def test_held_out_errors_equal_those_by_hand(asked: list[Prediction], count: int, folds: int) -> None:
    some = asked[:count]
    fit = fit_weights(some, method(), folds=folds)
    table = tables(some, method())
    expected = by_hand(table, folds_of(table["prediction"], folds, 0))
    assert set(fit.held_out.index) == expected.keys()
    assert list(fit.held_out.columns) == ["error", "low", "high"]
    for name, errors in expected.items():
        assert fit.held_out.error[name] == pytest.approx(np.mean(errors), rel=1e-6), name
        low, high = fit.held_out.low[name], fit.held_out.high[name]
        assert min(errors) - 1e-9 <= low <= fit.held_out.error[name] <= high <= max(errors) + 1e-9


def test_a_part_that_only_holds_in_its_own_fold_is_not_believed() -> None:
    """One prediction says the opposite of the others: its error is that of their weights, not of its own."""
    x = np.tile(np.arange(1.0, 5.0), 3)
    owner = np.repeat([0.0, 1.0, 2.0], 4)
    table = {**dict.fromkeys(FEATURES, x), "drop": np.where(owner == 0, 5 * x, x), "prediction": owner}
    found = held_out_errors(table, owner.astype(int))
    sizes = x[:4]
    alone = sizes.mean() * 4  # fitted to 1 and 2 only, 0 is missed by 4 x
    others = sizes.mean() * 2  # fitted to 0 and one of the others, 1 and 2 are missed by 2 x
    assert found.error["gate"] == pytest.approx((alone + 2 * others) / 3)
    assert found.error["nothing"] == pytest.approx((5 + 1 + 1) * sizes.mean() / 3)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("folds", [2, 3, 5, 50])
def test_whole_predictions_are_held_out_together(folds: int, seed: int) -> None:
    owner = np.repeat([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [33, 34, 40, 35, 33, 37, 52])
    fold = folds_of(owner, folds, seed)
    of = {float(one): set(fold[owner == one].tolist()) for one in np.unique(owner)}
    assert all(len(found) == 1 for found in of.values())
    sizes = np.bincount([next(iter(found)) for found in of.values()], minlength=min(folds, 7))
    assert len(sizes) == min(folds, 7)
    assert sizes.max() - sizes.min() <= 1
    assert (folds_of(owner, folds, seed) == fold).all()


def test_which_predictions_go_together_depends_on_the_seed() -> None:
    owner = np.repeat(np.arange(8.0), 2)
    assert len({tuple(folds_of(owner, 3, seed)) for seed in range(6)}) > 1


@pytest.mark.parametrize("folds", [2, 5])
def test_sets_of_a_single_prediction_are_held_out_one_by_one(folds: int) -> None:
    fold = folds_of(np.zeros(37), folds, 0)
    sizes = np.bincount(fold, minlength=folds)
    assert sizes.max() - sizes.min() <= 1
    assert sorted(fold[: 37 // folds * folds].tolist()) != fold[: 37 // folds * folds].tolist()  # shuffled


def test_an_interval_holds_what_it_should() -> None:
    generator = np.random.default_rng(0)
    hits = 0
    for _ in range(60):
        found = interval(generator.exponential(size=40))
        hits += found["low"] <= 1 <= found["high"]
        assert found["low"] < found["error"] < found["high"]
    assert 48 <= hits < 60
    assert interval(np.array([2.0])) == {"error": 2.0, "low": 2.0, "high": 2.0}
    assert interval(np.full(5, 0.25)) == {"error": 0.25, "low": 0.25, "high": 0.25}


def test_folds_change_the_judgement_and_not_the_fit(asked: list[Prediction]) -> None:
    two, many = fit_weights(asked, method(), folds=2), fit_weights(asked, method(), folds=99)
    assert (two.beta, two.gamma) == (many.beta, many.gamma)
    assert two.held_out.error["fitted"] != many.held_out.error["fitted"]
    for name in ("half", "nothing"):
        assert two.held_out.error[name] == many.held_out.error[name]
