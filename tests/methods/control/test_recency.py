"""Recency by hand."""

import pytest

from helpers import zoo
from helpers.asking import predict
from heta_lens.methods.controls import Recency


def test_the_last_token_gets_1_and_each_before_it_less() -> None:
    model = zoo.bridge("gpt2")
    attribution = Recency()(predict(model, zoo.prompt(model, 4)))
    assert attribution.scores.tolist() == pytest.approx([1 / 4, 1 / 3, 1 / 2, 1])
    assert attribution.diagnostics["forwards"] == 0
