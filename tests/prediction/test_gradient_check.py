"""Gradients through quantised layers."""

from typing import Any

import pytest
import torch

import heta_lens
from helpers import quantised, zoo
from helpers.quantised import QuantisedLinear, Staircase
from heta_lens.data import recall
from heta_lens.prediction import prediction
from heta_lens.prediction.prediction import Prediction
from heta_lens.prediction.gradients import gradient_error

STORY = next(recall.stories("test", facts=2)).text


def cached(kind: type[QuantisedLinear]) -> tuple[Any, torch.Tensor]:
    model = quantised.demo(kind)
    ids = model.to_tokens(STORY)
    return model.run_with_cache(ids, names_filter=heta_lens.names_filter)[1], ids


@pytest.fixture(autouse=True)
def unchecked_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prediction, "_passed", set())


def test_right_gradients_pass_and_are_checked_once() -> None:
    cache, ids = cached(QuantisedLinear)
    first, second = (heta_lens.attribute(cache, tokens=ids, method="input_x_gradient") for _ in range(2))
    assert first.diagnostics.checks["gradients"]["backwards"] == 1
    assert "gradients" not in second.diagnostics.checks


def test_a_model_of_ordinary_weights_is_not_checked() -> None:
    model = zoo.bridge("llama", torch.float32)
    ids = zoo.prompt(model)
    cache = model.run_with_cache(ids)[1]
    assert "gradients" not in heta_lens.attribute(cache, tokens=ids, method="input_x_gradient").diagnostics.checks


def test_how_far_they_are_off_is_said() -> None:
    cache, ids = cached(Staircase)
    assert gradient_error(Prediction.from_cache(cache, tokens=ids)) == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("method", ["heta", "input_x_gradient", "integrated_gradients", "attn_lrp", "grad_cam"])
def test_missing_gradients_are_refused(method: str) -> None:
    cache, ids = cached(Staircase)
    with pytest.raises(ValueError, match=r"quantised layers \(model\.layers\.0\.self_attn\.q_proj …\) are not how"):
        heta_lens.attribute(cache, tokens=ids, method=method)


@pytest.mark.parametrize("method", ["kl_only", "leave_one_out", "attention_rollout", "attention_norm", "random"])
def test_methods_without_gradients_go_on(method: str) -> None:
    cache, ids = cached(Staircase)
    options = {"variant": method} if method == "kl_only" else {"method": method}
    assert heta_lens.attribute(cache, tokens=ids, **options).scores.isfinite().all()
