"""Settings of a sampler, and how much figures change with them."""

from math import isnan

import pytest
import torch

from helpers import zoo
from helpers.asking import predict
from helpers.metric_inputs import prediction_of
from heta_lens.metrics import GRID, Setting, first_token, relative_change


def test_there_are_as_many_settings_as_the_paper_has() -> None:
    assert len(set(GRID)) == 54


def test_a_setting_chooses_by_what_it_says() -> None:
    asked = prediction_of(zoo.bridge("gpt2"))
    best = int(asked.log_probs.argmax())
    assert first_token(asked, Setting()) == best == first_token(asked, Setting(temperature=5.0, top_k=1))
    assert first_token(asked, Setting(temperature=5.0, top_p=1e-6)) == best
    hot = {first_token(asked, Setting(temperature=50.0), seed) for seed in range(20)}
    assert len(hot) > 5
    few = {first_token(asked, Setting(temperature=50.0, top_k=3), seed) for seed in range(60)}
    assert few == {*asked.log_probs.topk(3).indices.tolist()}
    said = predict(zoo.bridge("gpt2"), torch.tensor([[*asked.ids.tolist()[:-1], best]]))
    top = int(said.log_probs.argmax())
    strict = first_token(said, Setting(repetition=1e6))
    assert strict not in said.ids.tolist() and (top in said.ids.tolist()) == (strict != top)


def test_the_worked_example_of_relative_change() -> None:
    assert relative_change([2.0, 2.1, 1.9], [0.0] * 3) == pytest.approx(10)
    assert relative_change([2.0, 2.1, 1.9], [0.0] * 3, reduce="mean") == pytest.approx(10 / 3)
    assert relative_change([2.0, 2.1, 1.8], [0.0] * 3, reference=2.0) == pytest.approx(10)
    assert relative_change([2.0, 2.0], [0.0, 0.0]) == 0
    assert isnan(relative_change([0.1, -0.1, 0.02], [0.05] * 3))
    with pytest.raises(ValueError, match="1 figures with 1 standard errors"):
        relative_change([1.0], [0.0])
