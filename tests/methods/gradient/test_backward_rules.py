"""Hooks of modified backward passes: every value stays, shares of gradients are passed on."""

from typing import Any

import pytest
import torch

from helpers import zoo
from helpers.asking import predict, relative
from heta_lens._util.work import Work
from heta_lens.methods.relevance import at_norms, live, modified_gradient, pass_on

ONE_EACH = pytest.mark.parametrize("build", zoo.models("-(gpt2|llama)$"))


def test_a_share_of_the_gradient_is_passed_on() -> None:
    value = torch.tensor([1.0, -2.0], requires_grad=True)
    passed = pass_on(0.25, value)
    assert passed.tolist() == value.tolist() and live(value).tolist() == [0, 0]
    (passed * torch.tensor([2.0, 4.0])).sum().backward()
    assert value.grad is not None and value.grad.tolist() == [0.5, 1.0]


@ONE_EACH
def test_without_hooks_it_is_the_gradient_of_the_logit(build: Any) -> None:
    prediction = predict(build(), zoo.prompt(build(), 6), 7)
    with prediction.running():
        logit, gradient = modified_gradient(prediction, [], Work())
        leaf = prediction.embeddings.clone().requires_grad_()
        plain = prediction.logits_from()(leaf[None])[0, 7]
    assert logit == pytest.approx(float(plain.detach()))
    assert relative(gradient, torch.autograd.grad(plain, leaf)[0]) < 1e-9


@ONE_EACH
def test_norms_that_divide_by_constants_change_the_gradient(build: Any) -> None:
    """A norm takes back what scales all of its input, and a constant passes it on."""
    prediction = predict(build(), zoo.prompt(build(), 6), 7)
    with prediction.running():
        _, plain = modified_gradient(prediction, [], Work())
        _, steady = modified_gradient(prediction, at_norms(prediction.adapter), Work())
    assert relative(plain, steady) > 0.01
