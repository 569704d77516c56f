"""Fitted weights: the nonnegative least squares solution, its error on what had no part in it, and refusals."""

import re
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

import heta_lens.methods.heta.fit_weights
from helpers import oracles, zoo
from helpers.asking import doubts_allowed, plain_embeddings, plain_log_probs, predict
from heta_lens import Heta, Prediction, fit_weights
from heta_lens._util.options import settings
from heta_lens.methods.heta.diagnostics import SUBSETS, subsets
from heta_lens.methods.heta.fit_weights import MODELS, Fit, factors, folds_of, measured
from heta_lens.prediction.prediction import prompt_generator

Array = np.ndarray


def method(**options: Any) -> Heta:
    return Heta(**{"support": "row", "probes": 2} | options)


def tables(predictions: list[Prediction], how: Heta, seed: int = 0) -> dict[str, Array]:
    """The rows that `fit_weights` fits to."""
    found = [measured(how, prediction, number, seed) for number, prediction in enumerate(predictions)]
    return {name: np.concatenate([table[name] for table in found]) for name in found[0]}


def enumerated(table: Any, features: Any, rows: Any = slice(None)) -> list[float]:
    """The oracle's weights, of two features; of one, its best scale."""
    columns = [torch.tensor(table[name][rows]) for name in features]
    drops = torch.tensor(table["drop"][rows])
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


def planted(monkeypatch: pytest.MonkeyPatch, weights: dict[str, float], noise: float = 0.0) -> None:
    """Let sets of tokens do exactly what these features say (or nearly)."""

    def drops(prediction: Prediction, mask: Any, members: Tensor, batch: Any, done: Any) -> Tensor:  # noqa: ARG001
        parts = method()(prediction).parts
        parts = {**parts, **{f"gated_{name}": parts["gate"] * part for name, part in parts.items()}}
        total = sum((weight * parts[name] for name, weight in weights.items()), torch.zeros(len(prediction)))
        generator = torch.Generator().manual_seed(len(prediction))
        found = members.to(torch.float64) @ total.double()
        return found + noise * torch.randn(len(found), generator=generator, dtype=torch.float64)

    monkeypatch.setattr(heta_lens.methods.heta.fit_weights, "drops", drops)


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
    table = plain | {"gated_curvature": sizes[0] * one, "gated_information": sizes[1] * other}
    for features, scale in ((BOTH, sizes), (BOTH[:1], sizes[:1])):
        found = factors(table, features)
        assert (found >= 0).all()
        assert found * scale == pytest.approx(np.array(enumerated(plain, features)), rel=1e-6, abs=1e-9)


def test_a_feature_that_is_nothing_weighs_nothing() -> None:
    table = {"gated_curvature": np.zeros(3), "gated_information": np.ones(3), "drop": np.full(3, 2.0)}
    assert factors(table, BOTH).tolist() == pytest.approx([0, 2])
    assert factors(table, BOTH[:1]).tolist() == [0]
    assert factors(table | {"drop": -table["drop"]}, BOTH).tolist() == [0, 0]


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("build", zoo.models("bridge-(gpt2|llama)$|hooked-rotary_gqa"))
@pytest.mark.parametrize("target", [None, (7, 9)], ids=["token", "contrast"])
def test_a_row_is_what_masking_a_set_really_does_and_what_its_tokens_score(build: Any, target: Any) -> None:
    model = build()
    ids = zoo.prompt(model, 5)
    prediction, how = predict(model, ids, target), method(mask=5, beta=3, gamma=0.25)
    table = measured(how, prediction, 4, seed=2)
    log_probs, embeddings = plain_log_probs(model, ids), plain_embeddings(model, ids)
    mask = plain_embeddings(model, torch.full_like(ids, 5))[0]
    members = subsets(prompt_generator(2, ids[0]), 5).tolist()
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
    assert table.keys() == {*per_token, "drop", "prediction"}
    assert table.keys() >= FEATURES
    assert table["prediction"].tolist() == [4.0] * (5 + SUBSETS)
    with torch.no_grad():
        for row, inside in enumerate(members):
            chosen = [i for i, member in enumerate(inside) if member]
            drop = oracles.drop(lambda e: prediction.objective(log_probs(e)), embeddings, mask, chosen)
            assert table["drop"][row] == pytest.approx(float(drop), rel=1e-6, abs=1e-9)
            for name, feature in per_token.items():
                assert table[name][row] == pytest.approx(float(feature[chosen].sum()), rel=1e-9), name


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("options", [{"balance": "sum"}, {"balance": "max"}, {"mask": "mean"}, {"variant": "no_gate"}])
def test_features_are_what_the_method_would_add_up(model: Any, options: dict[str, Any]) -> None:
    prediction = predict(model, zoo.prompt(model, 5))
    table = measured(method(**options), prediction, 0, seed=0)
    for beta, gamma in ((0.5, 0.5), (2, 0.125)):
        scores = method(**options, beta=beta, gamma=gamma)(prediction).scores
        found = beta * table["gated_curvature"] + gamma * table["gated_information"]
        np.testing.assert_allclose(found[:5], scores.numpy(), rtol=1e-9)
    np.testing.assert_allclose(table["half"][:5], method(**options)(prediction).scores.numpy(), rtol=1e-9)


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("options", [{}, {"balance": "sum"}, {"mask": "mean"}, {"variant": "gn"}, {"variant": "gs"}])
def test_fitted_weights_equal_the_oracles(asked: list[Prediction], options: dict[str, Any]) -> None:
    how = Heta(**options) if options.get("variant") == "gs" else method(**options)
    fit = fit_weights(asked, how)
    assert [fit.beta, fit.gamma] == pytest.approx(enumerated(tables(asked, how), BOTH), rel=1e-6, abs=1e-12)
    assert (fit.predictions, fit.subsets) == (3, sum(LENGTHS) + 3 * SUBSETS)


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("weights", [(0.3, 0.7), (2.0, 0.0), (0.0, 5.0)])
def test_planted_weights_are_found(
    asked: list[Prediction], weights: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    planted(monkeypatch, dict(zip(BOTH, weights, strict=True)))
    fit = fit_weights(asked, method())
    assert (fit.beta, fit.gamma) == pytest.approx(weights, rel=1e-9, abs=1e-9)
    assert fit.held_out.error["fitted"] < 1e-9
    assert fit.held_out.error["half"] > 1e-3
    found = fit.heta
    for prediction in asked[:1]:
        expected = torch.tensor(measured(method(), prediction, 0, 0)["drop"][: len(prediction)])
        torch.testing.assert_close(found(prediction).scores.double(), expected, rtol=1e-6, atol=1e-9)


def test_the_method_comes_back_with_its_weights(asked: list[Prediction]) -> None:
    how = method(balance="sum", kl="js", beta=9, gamma=9)
    fit = fit_weights(asked, how)
    assert fit.method is how
    assert settings(fit.heta) == settings(how) | {"beta": fit.beta, "gamma": fit.gamma}
    other = fit_weights(asked, replace(how, beta=0.1))
    assert (other.beta, other.gamma) == (fit.beta, fit.gamma)
    pd.testing.assert_frame_equal(other.held_out, fit.held_out)


@pytest.mark.slow
def test_the_seed_decides_and_nothing_else_does(asked: list[Prediction]) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        one = fit_weights(asked, method(), seed=3)
        torch.manual_seed(2)
        again, other = fit_weights(tuple(asked), method(), seed=3), fit_weights(asked, method(), seed=4)
    assert (one.beta, one.gamma) == (again.beta, again.gamma)
    pd.testing.assert_frame_equal(one.held_out, again.held_out)
    assert (one.beta, one.gamma) != (other.beta, other.gamma)


@pytest.mark.slow
def test_predictions_may_be_of_several_models_and_kinds() -> None:
    builds = [zoo.bridge("gpt2"), zoo.bridge("llama", torch.float32), *([zoo.hooked("gpt2")] if zoo.HAS_HOOKED else [])]
    asked = [predict(model, zoo.prompt(model, 5), target) for model in builds for target in (7, (7, 9))]
    fit = fit_weights(asked, method())
    assert fit.predictions == len(asked)
    assert [fit.beta, fit.gamma] == pytest.approx(enumerated(tables(asked, method()), BOTH), rel=1e-6, abs=1e-12)


def test_hooks_on_the_model_stay_at_work(model: Any) -> None:
    ids = zoo.prompt(model, 5)
    bare = fit_weights([predict(model, ids)], method())
    with model.hooks(fwd_hooks=[("blocks.0.hook_resid_post", lambda live, hook: live.roll(1, -1))]):  # noqa: ARG005
        prediction = predict(model, ids)
        hooked = fit_weights([prediction], method())
        assert [hooked.beta, hooked.gamma] == pytest.approx(enumerated(tables([prediction], method()), BOTH), abs=1e-12)
    assert hooked.held_out.error["nothing"] != pytest.approx(bare.held_out.error["nothing"])
    with pytest.raises(RuntimeError, match="hooks were added to or removed"):
        fit_weights([prediction], method())


def test_what_a_fit_does_not_use_is_not_computed(model: Any, forwards: Any) -> None:
    prediction = predict(model, zoo.prompt(model, 4))
    runs = forwards(model)
    plain = fit_weights([prediction], method(support="block"))
    once = len(runs)
    full = fit_weights([prediction], method(support="block", audit=True, interactions=True))
    assert len(runs) <= 2 * once
    assert (full.beta, full.gamma) == (plain.beta, plain.gamma)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"folds": 1}, ValueError, "folds=1 must be at least 2"),
        ({"folds": 0}, ValueError, "folds=0 must be at least 2"),
        ({"folds": 2.0}, TypeError, "folds=2.0 must be a whole number"),
        ({"folds": True}, TypeError, "folds=True must be a whole number"),
        ({"folds": "5"}, TypeError, "folds='5' must be a whole number"),
        ({"seed": -1}, ValueError, "seed=-1 must be at least 0"),
        ({"seed": 0.5}, TypeError, "seed=0.5 must be a whole number"),
        *(
            ({"method": weightless}, ValueError, "needs a method with both parts")
            for weightless in (
                *(Heta(variant="kl_only"), Heta(variant="hessian_only"), Heta(variant="transition_only")),
                *(Heta(beta=0), Heta(gamma=0.0)),
            )
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


def test_there_has_to_be_something_to_fit_to() -> None:
    with pytest.raises(ValueError, match="at least one prediction"):
        fit_weights([])


@pytest.mark.usefixtures("unchecked")
def test_what_is_no_prediction_or_no_method_is_called_by_name(asked: list[Prediction]) -> None:
    for given in (None, 5, asked[0], ["x"], [*asked, None], [method()(asked[0])]):
        with pytest.raises(TypeError, match="Prediction"):
            fit_weights(given)  # type: ignore[arg-type]
    for given in ("heta", Heta, {}, 0.5):
        with pytest.raises(TypeError, match=r"method=.*Heta"):
            fit_weights(asked, given)  # type: ignore[arg-type]


@pytest.mark.usefixtures("unchecked")
def test_a_last_prediction_that_cannot_be_explained_is_found_before_any_work(
    model: Any, asked: list[Prediction], forwards: Any
) -> None:
    contrast = predict(model, zoo.prompt(model, 5), (7, 9))
    runs = forwards(model)
    with pytest.raises(ValueError, match="cannot explain the contrast"):
        fit_weights([*asked, contrast], method(variant="gn"))
    assert runs == []


def test_a_fit_is_frozen(asked: list[Prediction]) -> None:
    fit = fit_weights(asked[:1], method())
    assert isinstance(fit, Fit)
    with pytest.raises(AttributeError):
        fit.beta = 1.0  # type: ignore[misc]


def test_few_predictions_are_warned_of(asked: list[Prediction], monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch, {"gated_curvature": 2.0, "gated_information": 3.0})
    with pytest.warns(UserWarning, match="was given 3 predictions.* use 20 or more"):
        fit_weights(asked, method())
    monkeypatch.setattr(heta_lens.methods.heta.fit_weights, "FEW", 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit_weights(asked, method())


@pytest.mark.parametrize(
    ("best", "advice"),
    [
        ("half_scaled", "β = γ by 0.25: keep β = γ"),
        ("information", "the information alone by 0.25: use variant='kl_only'"),
        ("nothing", "scores of 0 by 0.25: do not read these scores as effects of masking"),
    ],
)
def test_weights_that_are_worse_than_something_simpler_are_warned_of(
    best: str, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = dict.fromkeys(("half_scaled", "curvature", "information", "nothing"), 0.75) | {"fitted": 0.5, best: 0.25}
    monkeypatch.setattr(heta_lens.methods.heta.fit_weights, "FEW", 0)
    with pytest.warns(UserWarning, match=f"off by 0.5 nats, and {re.escape(advice)}"):
        heta_lens.methods.heta.fit_weights._warn_of_doubts(pd.DataFrame({"error": errors}), 3)


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


def test_folds_change_the_judgement_and_not_the_fit(asked: list[Prediction]) -> None:
    two, many = fit_weights(asked, method(), folds=2), fit_weights(asked, method(), folds=99)
    assert (two.beta, two.gamma) == (many.beta, many.gamma)
    assert two.held_out.error["fitted"] != many.held_out.error["fitted"]
    for name in ("half", "nothing"):
        assert two.held_out.error[name] == many.held_out.error[name]
