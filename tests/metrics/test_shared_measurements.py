"""Shared measurements are those of their prediction, and made once."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from helpers import zoo
from helpers.asking import predict
from heta_lens.metrics import Drops
from heta_lens.metrics.metric_case import SharedMeasurements
from heta_lens.prediction.patching import effects


@pytest.mark.parametrize("build", zoo.models("-gpt2$"))
def test_what_is_measured_is_measured_once(build: Any, forwards: Callable[[Any], list[Any]]) -> None:
    model = build()
    prediction = predict(model, zoo.prompt(model, 6), 3)
    shared = SharedMeasurements(prediction)
    torch.testing.assert_close(shared.edge_effects, effects(prediction).cpu().double())
    assert shared.drops.whole == Drops.of(prediction).whole
    seen = forwards(model)
    assert shared.edge_effects is shared.edge_effects and shared.drops is shared.drops and not seen
