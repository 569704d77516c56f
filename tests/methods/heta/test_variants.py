"""Every variant against the oracle of what it stands for, the identities of Eq. 4, and what must not matter."""

from dataclasses import fields
from functools import partial
from typing import Any

import pytest
import torch

import heta_lens
import heta_lens.prediction.rerun
from helpers import oracles, zoo
from helpers.asking import explain, plain_embeddings, plain_log_probs, relative, signs, start_together
from helpers.heta import OWN, TARGET, D, N, check_norms, dense, found
from heta_lens import Heta
from heta_lens.methods.heta.options import VARIANTS

CHEAPER = ["lr", "ls", "win", "lr+win", "ls+win", "gs", "gn"]


def test_every_variant_is_tested_here() -> None:
    assert OWN.keys() == VARIANTS.keys()


@pytest.mark.sample(quick=1, test=6)
@pytest.mark.parametrize("build", zoo.models("bridge-(gpt2|native)"))
@pytest.mark.parametrize("variant", CHEAPER)
@pytest.mark.usefixtures("unchecked")
def test_neither_batch_nor_chunk_nor_reuse_matters_to_any_variant(
    build: Any, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build()
    ids = zoo.prompt(model, 7)
    monkeypatch.setattr(heta_lens.prediction.rerun, "TAIL", 2)
    own = {"window_mode": "frozen"} if "win" in variant else {}
    expected = found(model, ids, variant, **own)
    identity = [("unembed.hook_out", lambda live, hook: live)]  # noqa: ARG005
    with model.hooks(fwd_hooks=identity):
        whole = found(model, ids, variant, **own)
    assert whole.diagnostics["prefix_reuse"].startswith("off")
    assert relative(whole.scores, expected.scores) < 1e-5
    for batch, chunk in ((1, 1000), (1000, 2)):
        start_together(monkeypatch, chunk)
        assert relative(found(model, ids, variant, batch=batch, **own).scores, expected.scores) < 1e-5


def test_the_released_preset_is_the_released_code() -> None:
    released, plain = Heta.preset("released"), Heta()
    expected = {"variant": "win", "flow": "prefix_head", "window_mode": "chunk", "window_gate": "per_window"}
    for field in fields(Heta):
        assert getattr(released, field.name) == expected.get(field.name, getattr(plain, field.name)), field.name


SEVERAL = "bridge-(gpt2|llama|native)|hooked-(rotary_gqa|parallel)"


@pytest.mark.parametrize(("name", "build"), zoo.named(""))
def test_the_last_layers_equal_the_hessian_of_the_stream_that_enters_them(name: str, build: Any) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    log_probs, at = oracles.log_probs_of_stream(model, ids, 1), oracles.stream(model, ids, 1)
    direction = signs(0, 1, N, D)[0]
    product = torch.as_tensor(torch.autograd.functional.hvp(lambda e: log_probs(e)[TARGET], at, direction)[1])
    how = {"gamma": 0, "support": "row", "probes": 1}
    last = explain(model, ids, TARGET, variant="ls", layers=1, **how)
    assert relative(last.parts["curvature"], product.abs().sum(1)) < zoo.tolerance(name)
    full, every = (explain(model, ids, TARGET, **how, **own) for own in ({}, {"variant": "ls", "layers": 2}))
    assert relative(every.scores, full.scores) < 1e-9
    assert relative(last.scores, full.scores) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(("name", "build"), zoo.named("bridge-(gpt2|llama)|hooked-rotary_gqa"))
def test_any_of_the_last_layers_and_any_norm_equal_the_oracle(name: str, build: Any) -> None:
    model = build(n_layers=3)
    ids = zoo.prompt(model, N)
    for layers in (1, 2):
        stream = 3 - layers
        log_probs = oracles.log_probs_of_stream(model, ids, stream)
        at = oracles.stream(model, ids, stream)
        bent = oracles.dense_hessian(lambda e, log_probs=log_probs: log_probs(e)[TARGET], at, functional=True)
        last = partial(explain, model, ids, TARGET, variant="ls", gamma=0, layers=layers)
        check_norms(bent, zoo.tolerance(name), lambda last=last, **how: last(**how).parts["curvature"])


@pytest.mark.parametrize(("name", "build"), zoo.named(SEVERAL))
def test_gauss_newton_equals_the_oracle(name: str, build: Any) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    bent = oracles.gauss_newton(plain_log_probs(model, ids), plain_embeddings(model, ids))
    asked = partial(explain, model, ids, TARGET, variant="gn", gamma=0)
    check_norms(bent, zoo.tolerance(name), lambda **how: asked(**how).parts["curvature"])
    assert relative(bent, dense(model, ids)) > 1e-2


@pytest.mark.parametrize(("name", "build"), zoo.named(""))
def test_the_squared_gradient_equals_the_oracle(name: str, build: Any) -> None:
    model = build()
    ids, log_probs = zoo.prompt(model, 6), plain_log_probs(build(), zoo.prompt(build(), 6))
    expected = oracles.squared_gradient(lambda e: log_probs(e)[TARGET], plain_embeddings(model, ids))
    squared = found(model, ids, "gs", gamma=0)
    assert relative(squared.parts["curvature"], expected) < (
        1e-10 if zoo.tolerance(name) < 1e-6 else zoo.tolerance(name)
    )
    assert set(squared.standard_errors.values()) == {None}
