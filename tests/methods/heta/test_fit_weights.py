"""Fitted weights: the nonnegative least squares solution, its error on what had no part in it, and refusals."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import heta_lens.methods.heta.fit_weights
from helpers import oracles, zoo
from helpers.asking import doubts_allowed, plain_embeddings, plain_log_probs, predict
from heta_lens import Heta, Prediction, fit_weights
from heta_lens.methods.heta.fit_weights import MODELS, factors, folds_of, measured
from heta_lens.prediction.masking import SUBSETS, random_sets
from heta_lens.prediction.prediction import prompt_generator

Array = np.ndarray


def method(**options: Any) -> Heta:
    return Heta(**{"support": "row", "probes": 2} | options)


def tables(predictions: list[Prediction], how: Heta, seed: int = 0) -> pd.DataFrame:
    """The rows that `fit_weights` fits to."""
    found = [measured(how, prediction, number, seed) for number, prediction in enumerate(predictions)]
    return pd.concat(found, ignore_index=True)


def enumerated(table: Any, features: Any, rows: Any = slice(None)) -> list[float]:
    """The oracle's weights, of two features; of one, its best scale."""
    columns = [torch.tensor(np.array(table[name])[rows]) for name in features]
    drops = torch.tensor(np.array(table["drop"])[rows])
    if len(columns) == 1:
        return [float(oracles.best_scale(drops, columns[0]))]
    return [*oracles.nnls_by_enumeration(torch.stack(columns, 1), drops)]


LENGTHS = (3, 5, 4)
FEATURES = {name for names in MODELS.values() for name in names}
BOTH = ["gated_curvature", "gated_information"]


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


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("sizes", [(1.0, 1.0), (1e9, 1e-9), (1e-9, 1.0)])
def test_weights_are_the_best_of_all_that_are_not_negative(seed: int, sizes: tuple[float, float]) -> None:
    generator = np.random.default_rng(seed)
    one, other, drop = generator.normal(size=(3, 20)) + generator.normal(size=(3, 1))
    plain = {"gated_curvature": one, "gated_information": other, "drop": drop}
    table = pd.DataFrame(plain | {"gated_curvature": sizes[0] * one, "gated_information": sizes[1] * other})
    for features, scale in ((BOTH, sizes), (BOTH[:1], sizes[:1])):
        found = factors(table, features)
        assert (found >= 0).all()
        assert found * scale == pytest.approx(np.array(enumerated(plain, features)), rel=1e-6, abs=1e-9)


@pytest.mark.thorough
@pytest.mark.parametrize("build", zoo.models("bridge-(gpt2|llama)$|hooked-rotary_gqa"))
@pytest.mark.parametrize("target", [None, (7, 9)], ids=["token", "contrast"])
def test_a_row_is_what_masking_a_set_really_does_and_what_its_tokens_score(build: Any, target: Any) -> None:
    model = build()
    ids = zoo.prompt(model, 5)
    prediction, how = predict(model, ids, target), method(mask=5, beta=3, gamma=0.25)
    table = measured(how, prediction, 4, seed=2)
    log_probs, embeddings = plain_log_probs(model, ids), plain_embeddings(model, ids)
    mask = plain_embeddings(model, torch.full_like(ids, 5))[0]
    members = random_sets(prompt_generator(2, ids[0]), 5).tolist()
    parts = how(prediction).parts
    gate, curvature, information = (parts[name] for name in ("gate", "curvature", "information"))
    per_token = {
        "gate": gate,
        "curvature": curvature,
        "information": information,
        "gated_curvature": gate * curvature,
        "gated_information": gate * information,
        "half": gate * (curvature + information) / 2,
    }
    assert {*table} == {*per_token, "drop", "prediction"} >= FEATURES
    assert table["prediction"].tolist() == [4.0] * (5 + SUBSETS)
    with torch.no_grad():
        for row, inside in enumerate(members):
            chosen = [i for i, member in enumerate(inside) if member]
            drop = oracles.drop(lambda e: prediction.objective(log_probs(e)), embeddings, mask, chosen)
            assert table["drop"][row] == pytest.approx(float(drop), rel=1e-6, abs=1e-9)
            for name, feature in per_token.items():
                assert table[name][row] == pytest.approx(float(feature[chosen].sum()), rel=1e-9), name


@pytest.mark.sample(quick=1, test=3)
@pytest.mark.parametrize("options", [{}, {"balance": "sum"}, {"mask": "mean"}, {"variant": "gn"}, {"variant": "gs"}])
def test_fitted_weights_equal_the_oracles(asked: list[Prediction], options: dict[str, Any]) -> None:
    how = Heta(**options) if options.get("variant") == "gs" else method(**options)
    fit = fit_weights(asked, how)
    assert [fit.beta, fit.gamma] == pytest.approx(enumerated(tables(asked, how), BOTH), rel=1e-6, abs=1e-12)
    assert (fit.predictions, fit.subsets) == (3, sum(LENGTHS) + 3 * SUBSETS)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"folds": 1}, ValueError, "folds=1 must be at least 2"),
        ({"seed": -1}, ValueError, "seed=-1 must be at least 0"),
        *(
            ({"method": how}, ValueError, "needs a method with both parts")
            for how in (Heta(variant="kl_only"), Heta(beta=0))
        ),
    ],
    ids=str,
)
@pytest.mark.usefixtures("unchecked")
def test_what_cannot_be_fitted_is_refused_before_the_model_is_run(
    model: Any, asked: list[Prediction], options: dict[str, Any], error: Any, words: str, forwards: Any
) -> None:
    runs = forwards(model)
    with pytest.raises(error, match=words):
        fit_weights(asked, **options)
    assert runs == []


@pytest.mark.parametrize("best", ["half_scaled", "information", "nothing"])
def test_weights_that_are_worse_than_something_simpler_are_warned_of(
    best: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = dict.fromkeys(("half_scaled", "curvature", "information", "nothing"), 0.75) | {"fitted": 0.5, best: 0.25}
    monkeypatch.setattr(heta_lens.methods.heta.fit_weights, "FEW", 0)
    with pytest.warns(UserWarning, match=f"off by 0.5 nats, and '{best}' by 0.25: keep the weights you had, or"):
        heta_lens.methods.heta.fit_weights._warn_of_doubts(pd.DataFrame({"error": errors}), 3)


def by_hand(table: pd.DataFrame, fold: Array) -> dict[str, list[float]]:
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


@pytest.mark.thorough
@pytest.mark.parametrize(("count", "folds"), [(3, 2), (3, 5), (2, 2), (1, 3)])
def test_held_out_errors_equal_those_by_hand(asked: list[Prediction], count: int, folds: int) -> None:
    some = asked[:count]
    fit = fit_weights(some, method(), folds=folds)
    table = tables(some, method())
    expected = by_hand(table, folds_of(table["prediction"].to_numpy(), folds, 0))
    assert set(fit.held_out.index) == expected.keys()
    assert list(fit.held_out.columns) == ["error", "low", "high"]
    for name, errors in expected.items():
        assert fit.held_out.error[name] == pytest.approx(np.mean(errors), rel=1e-6), name
        low, high = fit.held_out.low[name], fit.held_out.high[name]
        assert min(errors) - 1e-9 <= low <= fit.held_out.error[name] <= high <= max(errors) + 1e-9


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("folds", [2, 3, 5, 50])
def test_whole_predictions_are_held_out_together(folds: int, seed: int) -> None:
    owner = np.repeat(range(7), [33, 34, 40, 35, 33, 37, 52])
    fold = folds_of(owner, folds, seed)
    of = {int(one): set(fold[owner == one].tolist()) for one in np.unique(owner)}
    assert all(len(found) == 1 for found in of.values())
    sizes = np.bincount([next(iter(found)) for found in of.values()], minlength=min(folds, 7))
    assert len(sizes) == min(folds, 7)
    assert sizes.max() - sizes.min() <= 1
    assert (folds_of(owner, folds, seed) == fold).all()
