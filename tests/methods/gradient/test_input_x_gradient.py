"""Input × gradient against captum, and against one point of integrated gradients."""

from collections.abc import Callable
from typing import Any

import pytest

from helpers import zoo
from helpers.asking import explain, plain_embeddings, predict, relative
from helpers.gradients import N, every, plain, scores
from heta_lens.methods.gradients import InputXGradient
from heta_lens.methods.integrated_gradients import IntegratedGradients

ONE_EACH = pytest.mark.parametrize("build", zoo.models("-gpt2$"))


@ONE_EACH
def test_input_x_gradient_is_captums_and_one_point_of_integrated_gradients(build: Callable[..., Any]) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    found = scores(InputXGradient(), model, ids)
    right = IntegratedGradients(steps=1, rule="right", keep_bos=False)
    assert relative(scores(right, model, ids), found) < 1e-9
    captum = pytest.importorskip("captum.attr")
    embeddings = plain_embeddings(model, ids)[None].requires_grad_()
    theirs = captum.InputXGradient(every(plain(model, ids))).attribute(embeddings)
    assert relative(found, theirs[0].sum(-1).detach()) < 1e-9


@ONE_EACH
def test_its_work_is_one_forward_and_one_backward(build: Callable[..., Any]) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    cost = explain(model, ids, 7, method="input_x_gradient").diagnostics
    assert InputXGradient().work(predict(model, ids, 7)) == {kind: cost[kind] for kind in ("forwards", "backwards")}
