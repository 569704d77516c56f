"""Gradient norm against what autograd gives."""

from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor

from helpers import zoo
from helpers.asking import plain_embeddings, predict, relative
from helpers.gradients import OTHER, TARGET, N, plain, scores, slope
from heta_lens.methods.gradients import GradCam, GradientNorm, InputXGradient
from heta_lens.prediction.prediction import Prediction

MODEL = pytest.mark.parametrize("build", zoo.models("-(gpt2|llama|gptj)$"))


@MODEL
def test_one_gradient_is_what_autograd_says(build: Callable[..., Any]) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    asked = predict(model, ids, TARGET)
    for scale in ("log_prob", "prob", "logit", "log_odds"):
        check_one_gradient(model, ids, asked, scale)


def check_one_gradient(model: Any, ids: Tensor, asked: Prediction, scale: Any) -> None:
    embeddings = plain_embeddings(model, ids)
    gradient = slope(plain(model, ids, scale=scale), embeddings)
    assert relative(InputXGradient(scale=scale)(asked).scores, (gradient * embeddings).sum(-1)) < 1e-6
    assert relative(GradientNorm(scale=scale)(asked).scores, gradient.square().sum(-1).sqrt()) < 1e-6
    assert relative(GradientNorm(scale=scale, order=1)(asked).scores, gradient.abs().sum(-1)) < 1e-6


def test_a_contrast_of_what_is_not_linear_follows_the_difference_of_gradients() -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, N)
    embeddings = plain_embeddings(model, ids)
    gradient = slope(plain(model, ids), embeddings) - slope(plain(model, ids, OTHER), embeddings)
    assert relative(scores(GradientNorm(), model, ids, (TARGET, OTHER)), gradient.norm(dim=-1)) < 1e-9
    sides = [scores(GradCam(layer=0), model, ids, target) for target in ((TARGET, OTHER), (OTHER, TARGET))]
    assert (sides[0] * sides[1] == 0).all() and (sides[0] + sides[1] > 0).all()
