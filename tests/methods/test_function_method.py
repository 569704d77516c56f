"""A plain function as a method."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import heta_lens
from helpers import zoo
from helpers.asking import cache_of, explain, predict

N, TARGET = 6, 7


def lengths(prediction: heta_lens.Prediction) -> list[float]:
    """How long each token's embedding is."""
    return prediction.embeddings.norm(dim=-1).tolist()


def test_a_function_is_a_method() -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, N)
    attribution = explain(model, ids, TARGET, method=lengths)
    assert attribution.method == "lengths" and len(attribution) == N
    assert attribution.scores.tolist() == lengths(predict(model, ids, TARGET))
    assert attribution.diagnostics["sink_mass"] > 0


@pytest.mark.parametrize(("sign", "signed"), [(1, False), (-1, True)])
def test_scores_of_a_function_are_signed_where_one_is_below_0(sign: int, signed: bool) -> None:
    model = zoo.bridge("gpt2")
    found = explain(model, zoo.prompt(model, N), TARGET, method=lambda asked: sign * asked.embeddings.norm(dim=-1))
    assert found.signed == signed


@pytest.mark.parametrize("kind", [torch.tensor, np.array, list, tuple])
def test_scores_may_be_of_any_kind(kind: Callable[..., Any]) -> None:
    model = zoo.bridge("gpt2")
    attribution = explain(model, zoo.prompt(model, N), TARGET, method=lambda _: kind([1, 2, 3, 4, 5, 6]))
    assert attribution.scores.tolist() == [1, 2, 3, 4, 5, 6] and attribution.scores.is_floating_point()


def test_a_function_may_take_gradients() -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, N)

    def slopes(prediction: heta_lens.Prediction) -> torch.Tensor:
        leaf = prediction.embeddings.detach().clone().requires_grad_()
        return torch.autograd.grad(prediction.rerun().g(leaf[None])[0], leaf)[0].norm(dim=-1)

    expected = explain(model, ids, TARGET, method="gradient_norm").scores
    assert torch.allclose(explain(model, ids, TARGET, method=slopes).scores, expected)


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ([1.0, float("nan"), 1.0, 1.0, 1.0, 1.0], "the score is nan at position 1, token"),
        ([1.0, 2.0], "returned scores of shape \\(2,\\) for 6 tokens: return one number per token"),
        (np.ones((6, 2)), "returned scores of shape \\(6, 2\\) for 6 tokens"),
        ("scores", "returned 'scores': return one number per token"),
        (None, "returned"),
        (torch.ones(6, dtype=torch.complex64), "complex scores"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_other_scores_are_refused(scores: Any, message: str) -> None:
    model = zoo.bridge("gpt2")
    with pytest.raises((TypeError, ValueError), match=message):
        explain(model, zoo.prompt(model, N), TARGET, method=lambda _: scores)


def test_a_function_takes_no_options() -> None:
    model = zoo.bridge("gpt2")
    with pytest.raises(TypeError, match="steps: options go with a method's name"):
        heta_lens.attribute(cache_of(model, zoo.prompt(model, N)), TARGET, method=lengths, steps=3)
