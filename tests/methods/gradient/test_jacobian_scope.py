"""Jacobian Scopes: identities of the Fisher scope, of its ranks, and of the temperature scope."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers import zoo
from helpers.asking import predict, relative
from heta_lens.methods.gradients import GradientNorm, JacobianScope, differentiable, fisher

N, TARGET, WIDTH = 7, 7, 8
FAMILIES = pytest.mark.parametrize("build", zoo.models("-(gpt2|llama|gemma2)$"))


def scores(model: Any, **options: Any) -> Tensor:
    return JacobianScope(**options)(predict(model, zoo.prompt(model, N), TARGET)).scores


def log_probs(model: Any) -> tuple[Tensor, Tensor]:
    prediction = predict(model, zoo.prompt(model, N), TARGET)
    leaf = prediction.embeddings.clone().requires_grad_()
    with prediction.running():
        return leaf, prediction.logits_from()(leaf[None])[0].log_softmax(-1)


@FAMILIES
def test_all_of_fisher_is_the_mean_square_of_every_log_probabilitys_gradient(build: Any) -> None:
    leaf, values = log_probs(build())
    squares = torch.zeros(N, dtype=leaf.dtype)
    for value in values:
        (gradient,) = torch.autograd.grad(value, leaf, retain_graph=True)
        squares += value.detach().exp() * gradient.square().sum(-1)
    assert relative(scores(build(), rank=None), squares) < 1e-6


@FAMILIES
def test_scores_grow_with_the_rank_up_to_all(build: Any) -> None:
    model = build()
    every = [scores(model, rank=rank) for rank in (1, 2, 4, WIDTH)]
    assert all((more >= less).all() for less, more in pairwise(every))
    assert relative(every[-1], scores(model, rank=None)) < 1e-12
    assert torch.equal(every[0], scores(model))


@FAMILIES
def test_temperature_is_the_gradient_of_the_length_of_what_is_read(build: Any) -> None:
    prediction = predict(build(), zoo.prompt(build(), N), TARGET)
    with prediction.running(), differentiable(prediction) as run:
        (gradient,) = torch.autograd.grad(run.y.norm(), run.leaf, retain_graph=True)
        jacobian = [torch.autograd.grad(entry, run.leaf, retain_graph=True)[0] for entry in run.y]
    found = JacobianScope(scope="temperature")(prediction).scores
    assert relative(found, gradient.norm(dim=-1)) < 1e-12
    assert (found.square() <= torch.stack(jacobian).square().sum((0, 2))).all()


@FAMILIES
def test_the_run_that_is_differentiated_is_the_model_s(build: Any) -> None:
    prediction = predict(build(), zoo.prompt(build(), N), TARGET)
    with prediction.running(), differentiable(prediction) as run:
        assert relative(run.logits.detach(), prediction.logits) < 1e-9
        logit = run.logits[TARGET]
        (by_y,) = torch.autograd.grad(logit, run.y, retain_graph=True)
        (pulled,) = torch.autograd.grad(run.y, run.leaf, by_y)
    semantic = GradientNorm(scale="logit")(prediction).scores
    assert relative(pulled.norm(dim=-1), semantic) < 1e-9


def test_fisher_information_of_two_words_is_that_of_a_coin() -> None:
    weights = torch.randn(2, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y = torch.linspace(-1, 1, 5, dtype=torch.float64).requires_grad_()
    logits = weights @ y
    p = logits.detach().softmax(-1)
    between = weights[0] - weights[1]
    assert relative(fisher(logits, y), p.prod() * between[:, None] * between) < 1e-12


def test_fisher_information_of_many_words() -> None:
    weights = torch.randn(40, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    y = torch.linspace(-1, 1, 5, dtype=torch.float64).requires_grad_()
    p = (weights @ y).detach().softmax(-1)
    plain = weights.T @ (p.diag() - p[:, None] * p) @ weights
    assert relative(fisher(weights @ y, y), plain) < 1e-12


def test_folded_weights_leave_the_length_without_a_meaning() -> None:
    folded = zoo.bridge.__wrapped__("gpt2")
    folded.enable_compatibility_mode(disable_warnings=True)
    with pytest.raises(ValueError, match=r"scope='temperature' reads how long .* choose scope='fisher'"):
        scores(folded, scope="temperature")
    assert relative(scores(folded, rank=None), scores(zoo.bridge("gpt2"), rank=None)) < 1e-6


def test_costs_are_what_was_run() -> None:
    found = JacobianScope(rank=3)(predict(zoo.bridge("gpt2"), zoo.prompt(zoo.bridge("gpt2"), N), TARGET))
    assert (found.diagnostics["forwards"], found.diagnostics["backwards"]) == (1, 3)
    assert len(found.diagnostics["eigenvalues"]) == 3
