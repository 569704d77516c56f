"""Gradients that hold one block's graph at a time: the scores of the whole graph, and less memory."""

from collections import Counter
from typing import Any

import pytest
import torch

import heta_lens
from helpers import zoo
from helpers.asking import explain, relative
from heta_lens._util.work import Allocations, counting
from heta_lens.methods.registry import method_of
from heta_lens.model import adapter as adapter_module
from heta_lens.model.adapter import ModelAdapter
from heta_lens.prediction import prediction as prediction_module
from heta_lens.prediction.prediction import Prediction

TARGET, N = 7, 7
METHODS: list[tuple[str, dict[str, Any]]] = [
    ("input_x_gradient", {}),
    ("gradient_norm", {"scale": "logit"}),
    *(("attn_lrp", {"rule": rule}) for rule in ("attn_lrp", "cp_lrp", "relp")),
    ("gim", {}),
    ("jacobian_scope", {"rank": None}),
    ("jacobian_scope", {"scope": "temperature"}),
    ("grad_cam", {"layer": 0}),
]


@pytest.fixture
def short_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter_module, "available", lambda _: 2**10)


@pytest.mark.sample(quick=2, test=6)
@pytest.mark.parametrize(("name", "build"), zoo.named(""))
def test_the_scores_are_those_of_the_whole_graph(name: str, build: Any) -> None:
    model = build()
    ids, compared = zoo.prompt(model, N), 0
    for method, options in METHODS:
        try:
            whole = explain(model, ids, TARGET, method=method, checkpoint=False, **options)
        except ValueError:  # no rule for such a model, which other tests are about
            continue
        by_block = explain(model, ids, TARGET, method=method, checkpoint=True, **options)
        if whole.scores.any():
            assert relative(by_block.scores, whole.scores) < 1e-7, (name, method, options)
            compared += 1
    assert compared >= 4, name


@pytest.mark.parametrize("build", zoo.models("bridge-llama|hooked-gpt2"))
def test_targets_of_every_kind_and_spans_have_the_same_scores(build: Any) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    cache = model.run_with_cache(ids)[1]
    state = heta_lens.activation("blocks.1.hook_resid_post", index=3)
    for target in (TARGET, {3, 4}, (TARGET, 3), lambda logits: logits[..., 2] ** 2, state):
        one, other = (explain(model, ids, target, method="input_x_gradient", checkpoint=own) for own in (False, True))
        assert relative(other.scores, one.scores) < 1e-7
    for method in ("gradient_norm", "attn_lrp"):
        one, other = (
            heta_lens.attribute_span(cache, 3, tokens=ids, method=method, checkpoint=own) for own in (False, True)
        )
        assert relative(other.matrix.nan_to_num(), one.matrix.nan_to_num()) < 1e-7


@pytest.mark.usefixtures("short_of_memory")
@pytest.mark.parametrize("method", ["gradient_norm", "fast", heta_lens.Heta(variant="gs", gamma=0)], ids=str)
def test_a_graph_that_would_not_fit_is_never_made(method: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = zoo.bridge("llama", torch.float32, n_layers=8)
    ids = zoo.prompt(model, 40)
    cache = model.run_with_cache(ids, names_filter=heta_lens.lean_names_filter)[1]

    def peak() -> tuple[float, torch.Tensor]:
        with Allocations() as held:
            scores = heta_lens.attribute(cache, TARGET, tokens=ids, method=method).scores
        return held.most, scores

    by_block, own = peak()
    monkeypatch.setattr(adapter_module, "available", lambda _: 2**40)
    whole, expected = peak()
    assert relative(own, expected) < 1e-5
    assert by_block < 0.6 * whole


@pytest.mark.usefixtures("short_of_memory")
def test_the_check_keeps_no_graph_that_would_not_fit() -> None:
    model = zoo.bridge("llama")
    ids = zoo.prompt(model, N)
    cache = model.run_with_cache(ids)[1]
    prediction = Prediction.from_cache(cache, TARGET, tokens=ids, rules=heta_lens.METHODS["gradient_norm"]().rules)
    assert prediction.prompt.clean_run is None


def test_a_graph_that_the_check_holds_is_used_however_little_memory_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    model = zoo.bridge("llama")
    ids, method = zoo.prompt(model, N), heta_lens.METHODS["gradient_norm"]()
    cache = model.run_with_cache(ids)[1]
    prediction = Prediction.from_cache(cache, TARGET, tokens=ids, rules=method.rules)
    monkeypatch.setattr(adapter_module, "available", lambda _: 2**10)
    assert method(prediction).diagnostics["forwards"] == 1
    assert method(prediction).diagnostics["forwards"] == 3


def louder(value: torch.Tensor, hook: Any) -> torch.Tensor:  # noqa: ARG001
    return 1.5 * value


def test_hooks_of_a_user_would_run_twice() -> None:
    model = zoo.bridge("llama")
    ids = zoo.prompt(model, N)
    with model.hooks([("blocks.0.hook_attn_out", louder)]):
        with pytest.raises(ValueError, match="checkpoint=True runs blocks one at a time, but hooks on the model"):
            explain(model, ids, TARGET, method="gradient_norm", checkpoint=True)
        explain(model, ids, TARGET, method="gradient_norm")


def test_half_precision_stays_within_its_rounding() -> None:
    model = zoo.bridge("llama", torch.bfloat16)
    ids = zoo.prompt(model, N)
    one, other = (explain(model, ids, TARGET, method="attn_lrp", checkpoint=own) for own in (False, True))
    assert relative(other.scores, one.scores) < 0.05


@pytest.mark.usefixtures("short_of_memory")
@pytest.mark.parametrize("method", ["careful", "gradient_norm", "grad_cam"])
def test_a_graph_is_refused_before_any_run(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = zoo.bridge("llama", n_layers=8)
    ids = zoo.prompt(model, N)
    monkeypatch.setattr(prediction_module, "available", lambda _: 2**10)
    with model.hooks([("blocks.0.hook_attn_out", louder)]):  # so that blocks cannot run alone
        cache = model.run_with_cache(ids)[1]
        prediction, counts = Prediction.from_cache(cache, TARGET, tokens=ids), Counter[str]()
        with pytest.raises(ValueError, match="one block's graph"), counting(counts):
            method_of(method, {"progress": False})(prediction)
    assert counts["forwards"] <= 1  # of Grad-CAM's states


@pytest.mark.usefixtures("short_of_memory")
@pytest.mark.parametrize("method", ["gradient_norm", "grad_cam", "jacobian_scope"])
def test_the_runs_of_blocks_are_counted_before_they_are_made(method: str) -> None:
    model = zoo.bridge("llama", n_layers=8)
    ids = zoo.prompt(model, N)
    cache = model.run_with_cache(ids)[1]
    expected = heta_lens.estimate(cache, tokens=ids, target=TARGET, method=method)
    found = heta_lens.attribute(cache, TARGET, tokens=ids, method=method).diagnostics.cost
    assert (expected.forwards, expected.backwards) == (found.forwards, found.backwards) and found.forwards >= 3


@pytest.mark.parametrize("method", ["integrated_gradients", "smooth_grad", "heta"])
def test_a_graph_that_memory_cannot_hold_is_refused_with_the_length_that_fits(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = zoo.bridge("gpt2")
    sizes = ModelAdapter(model).sizes
    room = (sizes.graph if method == "heta" else sizes.gradient)(5, 5)
    monkeypatch.setattr(prediction_module, "available", lambda _: room)
    with pytest.raises(ValueError, match=r"up to 5 tokens fit; .* one block's graph"):
        explain(model, zoo.prompt(model, N), TARGET, method=method)
    assert explain(model, zoo.prompt(model, 5), TARGET, method=method).scores.any()
