"""Grad-CAM against a worked example and plain hooks."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers import zoo
from helpers.asking import predict, relative
from helpers.gradients import TARGET, N, on, slope
from heta_lens.methods.gradients import GradCam, evidence

MODEL = pytest.mark.parametrize("build", zoo.models("-(gpt2|llama|gptj)$"))


def test_grad_cam_of_a_worked_example() -> None:
    """The mean gradient is (1, 1); its own gradient is what tells the second token's two features apart."""
    states = torch.tensor([[1.0, 2.0], [3.0, -4.0]])
    gradient = torch.tensor([[2.0, 0.0], [0.0, 2.0]])
    assert evidence(states, gradient, elementwise=False).tolist() == [3, -1]
    assert evidence(states, gradient, elementwise=True).tolist() == [2, -8]


@MODEL
@pytest.mark.parametrize("layer", [None, 0, 1])
def test_grad_cam_is_what_hooks_find(build: Callable[..., Any], layer: int | None) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    name = f"blocks.{1 if layer is None else layer}.hook_resid_post"
    clean = model.run_with_cache(ids, names_filter=[name])[1][name][0]

    def g(states: Tensor) -> Tensor:
        replace = [(name, lambda live, hook: states[None].to(live.dtype))]  # noqa: ARG005
        return on(model.run_with_hooks(ids, fwd_hooks=replace)[0, -1], TARGET, "prob")

    gradient = slope(g, clean)
    asked = predict(model, ids, TARGET)
    found = GradCam(layer=layer, scale="prob")(asked)
    assert relative(found.scores, (clean @ gradient.mean(0)).relu()) < 1e-6
    assert found.diagnostics["layer"] == (1 if layer is None else layer)
    own = GradCam(layer=layer, scale="prob", elementwise=True)(asked)
    expected = (clean * gradient).sum(-1).relu()
    assert torch.allclose(own.scores, expected, rtol=1e-6, atol=1e-9)


def test_what_leaves_the_last_block_matters_at_the_last_token_only() -> None:
    model = zoo.bridge("gpt2", n_layers=3)
    asked = predict(model, zoo.prompt(model, N), None)
    last = GradCam(layer=2, elementwise=True, scale="logit")(asked).scores
    assert (last[:-1] == 0).all()
    middle = GradCam(elementwise=True, scale="logit")(asked)
    assert middle.diagnostics["layer"] == 1 and (middle.scores[:-1] > 0).any()
