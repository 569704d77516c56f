"""Scores under shuffled weights, which come back afterwards."""

from typing import Any

import pytest
import torch

import heta_lens
from helpers import quantised, zoo
from helpers.asking import relative
from helpers.metric_inputs import MODEL, prediction_of
from heta_lens.methods.leave_one_out import LeaveOneOut
from heta_lens.metrics import cascade
from heta_lens.metrics.robustness import shuffled
from heta_lens.model.adapter import ModelAdapter


@MODEL
def test_a_method_that_reads_the_model_changes_with_its_weights(build: Any) -> None:
    model = build()
    asked = prediction_of(model)
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    own = LeaveOneOut(effect="log_prob")
    found = cascade(asked, own, own(asked).scores)
    assert list(found) == [1, 2] and all(value < 0.999 for value in found.values())
    blind = heta_lens.METHODS["recency"]()
    assert cascade(asked, blind, blind(asked).scores) == pytest.approx({1: 1.0, 2: 1.0})
    assert all(torch.equal(weight, before[name]) for name, weight in model.named_parameters())


def test_weights_that_are_quantised_are_not_shuffled() -> None:
    packed, _ = quantised.pair()
    with (
        pytest.raises(ValueError, match="quantised or offloaded cannot be shuffled: load the model in 16 or 32 bits"),
        shuffled(ModelAdapter(packed), 1),
    ):
        pass


def test_weights_come_back_whatever_happens() -> None:
    model = zoo.bridge("gpt2")
    asked = prediction_of(model)
    clean = asked.log_probs

    def stopped() -> None:
        with shuffled(asked.adapter, 1):
            assert relative(prediction_of(model).log_probs, clean) > 1e-3
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        stopped()
    assert torch.equal(prediction_of(model).log_probs, clean)
    for wrong in (0, 3):
        with (
            pytest.raises(ValueError, match=f"{wrong} layers cannot be shuffled: the model has 2"),
            shuffled(asked.adapter, wrong),
        ):
            pass
