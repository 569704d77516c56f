"""Estimators of the curvature against oracles of what they stand for."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import heta_lens
import heta_lens.prediction.prediction
from helpers import oracles, zoo
from helpers import variant_oracles as variants
from helpers.asking import (
    explain,
    plain_embeddings,
    plain_log_probs,
    relative,
    signs,
)
from helpers.variants import PROBES, TARGET, D, N, found
from heta_lens.methods.heta.options import VARIANTS
from heta_lens.model.adapter import ModelAdapter

CHEAPER = [name for name, terms in VARIANTS.items() if terms.approximate]
SEVERAL = "bridge-(gpt2|llama|native)|hooked-(rotary_gqa|parallel)"


def dense(log_probs: Callable[[Tensor], Tensor], at: Tensor) -> oracles.Hessian:
    return oracles.dense_hessian(lambda e: log_probs(e)[TARGET], at, functional=True)


def check_norms(bent: Tensor, close: float, curvature: Callable[..., Tensor]) -> None:
    """``curvature`` by every norm and support, against the dense matrix it should be of."""
    probes = signs(0, PROBES, *bent.shape[:2])
    for options, expected in (
        ({"probes": PROBES}, oracles.block_l1(bent, probes).mean(0)),
        ({"probes": PROBES, "support": "row"}, oracles.row_l1(bent, probes).mean(0)),
        ({"norm": "entrywise"}, oracles.entrywise_block(bent)),
        ({"norm": "entrywise", "support": "row"}, oracles.entrywise_row(bent)),
    ):
        assert relative(curvature(**options), expected) < close, options


@contextmanager
def forbidding(model: Any, token: int) -> Iterator[None]:
    """A hook that makes one token impossible."""

    def forbid(live: Tensor, hook: Any) -> Tensor:  # noqa: ARG001
        return live.index_fill(-1, torch.tensor([token]), -torch.inf)

    with model.hooks(fwd_hooks=[("unembed.hook_out", forbid)]):
        yield


# -------------------------------------------------------------------------------------------------- the last layers
@pytest.mark.parametrize(("name", "build"), zoo.named(""))
def test_the_last_layers_equal_the_hessian_of_the_stream_that_enters_them(name: str, build: Any) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    log_probs, at = variants.log_probs_of_stream(model, ids, 1), variants.stream(model, ids, 1)
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
        bent = dense(variants.log_probs_of_stream(model, ids, stream), variants.stream(model, ids, stream))
        last = partial(explain, model, ids, TARGET, variant="ls", gamma=0, layers=layers)
        check_norms(bent, zoo.tolerance(name), lambda last=last, **how: last(**how).parts["curvature"])


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("build", zoo.models("bridge-gpt2|hooked-rotary_gqa"))
@pytest.mark.parametrize("variant", ["ls", "ls+win"])
@pytest.mark.parametrize("hooked", [False, True])
def test_no_graph_is_built_below_the_last_layers(
    build: Any, variant: str, hooked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, layers = build(n_layers=3), 2
    ids = zoo.prompt(model, 6)
    run, graphs = ModelAdapter.run, {layer: set() for layer in range(3)}
    monkeypatch.setattr(heta_lens.prediction.prediction, "TAIL", 1)

    def watched(adapter: ModelAdapter, given: Any, hooks: Any = None, **how: Any) -> Any:
        hooks = dict(hooks or {})
        for layer in graphs:
            if layer >= how.get("first", 0) and adapter.stream_name(layer) not in hooks:
                hooks[adapter.stream_name(layer)] = lambda live, layer=layer: graphs[layer].add(live.requires_grad)
        return run(adapter, given, hooks, **how)

    monkeypatch.setattr(ModelAdapter, "run", watched)
    identity = [("unembed.hook_out", lambda live, hook: live)]  # noqa: ARG005
    with model.hooks(fwd_hooks=identity) if hooked else nullcontext():
        for mode in ("frozen", "chunk") if variant == "ls+win" and not hooked else ("frozen",):
            own = {"layers": layers} | ({"window": 3, "window_mode": mode} if "win" in variant else {})
            explain(model, ids, TARGET, variant=variant, probes=2, **own)
    assert graphs[0] == graphs[1] == {False}
    assert True in graphs[2]


# ------------------------------------------------------------------------------------ Gauss–Newton, squared gradient
@pytest.mark.parametrize(("name", "build"), zoo.named(SEVERAL))
def test_gauss_newton_equals_the_oracle(name: str, build: Any) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    bent = variants.gauss_newton(plain_log_probs(model, ids), plain_embeddings(model, ids))
    asked = partial(explain, model, ids, TARGET, variant="gn", gamma=0)
    check_norms(bent, zoo.tolerance(name), lambda **how: asked(**how).parts["curvature"])
    assert relative(bent, dense(plain_log_probs(model, ids), plain_embeddings(model, ids))) > 1e-2


def test_gauss_newton_does_not_know_the_target() -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, N)
    one, other = (found(model, ids, "gn", target).parts for target in (7, 9))
    torch.testing.assert_close(one["curvature"], other["curvature"], rtol=1e-12, atol=0)


@pytest.mark.slow
def test_an_impossible_token_does_not_bend_anything() -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, N)
    with forbidding(model, 11):
        newton = explain(model, ids, TARGET, variant="gn", norm="entrywise")
        bent = variants.gauss_newton(plain_log_probs(model, ids), plain_embeddings(model, ids))
        assert relative(newton.parts["curvature"], oracles.entrywise_block(bent)) < 1e-8
        for variant in VARIANTS:
            own = {"window_mode": "frozen"} if "win" in variant else {}
            scores = found(model, ids, variant, **own).scores
            assert scores.isfinite().all() and scores.any(), variant
        for variant in CHEAPER:
            own = {"window_mode": "frozen"} if "win" in variant else {}
            for target in (11, (7, 11))[: 1 if variant == "gn" else 2]:
                with pytest.raises(ValueError, match=r"log p of the target .* is -inf"):
                    found(model, ids, variant, target, **own)


@pytest.mark.parametrize(("name", "build"), zoo.named(""))
def test_the_squared_gradient_equals_the_oracle(name: str, build: Any) -> None:
    model = build()
    ids, log_probs = zoo.prompt(model, 6), plain_log_probs(build(), zoo.prompt(build(), 6))
    expected = variants.squared_gradient(lambda e: log_probs(e)[TARGET], plain_embeddings(model, ids))
    squared = found(model, ids, "gs", gamma=0)
    assert relative(squared.parts["curvature"], expected) < (
        1e-10 if zoo.tolerance(name) < 1e-6 else zoo.tolerance(name)
    )
    assert set(squared.standard_errors.values()) == {None}


def test_the_squared_gradient_of_a_contrast_and_a_position() -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, 7)
    log_probs, at = plain_log_probs(model, ids[:, :5]), plain_embeddings(model, ids[:, :5])
    expected = variants.squared_gradient(lambda e: log_probs(e)[7] - log_probs(e)[9], at)
    assert relative(found(model, ids, "gs", (7, 9), position=5).parts["curvature"], expected) < 1e-10
