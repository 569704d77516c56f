"""The parts of a model that are put in closed form: which they are, and that derivatives stay what they were."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers import oracles, zoo
from helpers.asking import explain, plain_embeddings, plain_log_probs, predict, relative
from heta_lens.methods.heta.curvature import whole_segment
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.batching import Batches
from heta_lens.model.closed_form_hooks import closed_form_hooks
from heta_lens.model.closed_forms import in_closed_form

N = 6
ROUNDING = 1e-12  # relative, in float64: of the models that are float64 throughout
SAME_PARTS = {"Normalised": 5, "Rotated": 4, "Softmax": 2, "Pointwise": 2}  # of two layers
PARTS = {
    "hooked-gpt2": {"Normalised": 5, "Softmax": 2, "Pointwise": 2},
    "hooked-gptj": SAME_PARTS,
    "hooked-llama": SAME_PARTS,
    "hooked-phi3": SAME_PARTS,
    "hooked-qwen2": SAME_PARTS,
    "hooked-standard": {"Normalised": 5, "Softmax": 2, "Pointwise": 2},
    "hooked-rotary_gqa": SAME_PARTS,
    "hooked-parallel": SAME_PARTS,
    "hooked-alibi": {"Normalised": 5, "Softmax": 2, "Pointwise": 2},
    "hooked-shortformer": {"Normalised": 5, "Softmax": 2, "Pointwise": 2},
    "hooked-attn_only": {"Normalised": 3, "Softmax": 2},
    "hooked-local": {"Normalised": 5, "Softmax": 2, "Pointwise": 2},
    "hooked-sinks": SAME_PARTS,
    "hooked-relu": {"Normalised": 5, "Softmax": 2, "Pointwise": 2},
    "hooked-post_norm": {**SAME_PARTS, "Normalised": 9},
}


def hessian(model: Any, monkeypatch: pytest.MonkeyPatch, *, plain: bool, place: int = 0) -> Tensor:
    """All of it, through the library's graph."""
    with monkeypatch.context() as patch:
        if plain:
            patch.setattr("heta_lens.methods.heta.curvature.closed_form_hooks", lambda _: [])
        prediction = predict(model, zoo.prompt(model, N), 7)
        with prediction.running():
            operator = whole_segment(prediction).hessian_from(Batches(8), lambda _: None, place)
            units = torch.eye(operator.like.numel()).to(operator.like)
            return operator.matmat(units.reshape(-1, *operator.like.shape))


def parts_in_closed_form(model: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How many parts of which kind get a closed form while a graph is built."""
    counts = Counter[str]()

    def counted(form: Any, *rest: Any) -> Tensor:
        counts[type(form).__name__] += 1
        return in_closed_form(form, *rest)

    with monkeypatch.context() as patch:
        patch.setattr("heta_lens.model.closed_form_hooks.in_closed_form", counted)
        adapter = ModelAdapter(model)
        with torch.enable_grad(), adapter.hooked(closed_form_hooks(adapter), every=False):
            adapter.run(zoo.prompt(model, N))
    return dict(counts)


@pytest.mark.parametrize(("name", "build"), zoo.named(""))
@pytest.mark.parametrize("place", [0, 3])
def test_the_hessian_is_that_of_the_model_as_it_is(
    name: str, build: Any, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, found = (hessian(build(), monkeypatch, plain=own, place=place) for own in (True, False))
    assert relative(found, plain) < (ROUNDING if zoo.tolerance(name) == zoo.EXACT else zoo.FLOAT32_NORMS)


@pytest.mark.parametrize(("name", "build"), zoo.named("gpt2|llama|alibi|local|parallel|sinks|gemma2"))
@pytest.mark.parametrize("options", [{}, {"variant": "win", "window": 12}, {"groups": None, "probes": 2}])
def test_runs_that_continue_kept_keys_have_the_same_curvature(
    name: str, build: Any, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, length = build(), 40  # long enough for late tokens to have a graph of their own
    found = explain(model, zoo.prompt(model, length), 7, gamma=0, **options)
    assert found.diagnostics["prefix_reuse"] == "on"
    monkeypatch.setattr("heta_lens.methods.heta.curvature.closed_form_hooks", lambda _: [])
    plain = explain(model, zoo.prompt(model, length), 7, gamma=0, **options)
    close = ROUNDING if zoo.tolerance(name) == zoo.EXACT else zoo.FLOAT32_NORMS
    assert relative(found.parts["curvature"], plain.parts["curvature"]) < close


@pytest.mark.skipif(not zoo.HAS_HOOKED, reason="HookedTransformer was removed in TransformerLens 4")
@pytest.mark.parametrize("name", PARTS)
def test_which_parts_have_a_closed_form(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert parts_in_closed_form(dict(zoo.KINDS)[name](), monkeypatch) == PARTS[name]


@pytest.mark.parametrize("family", ["gpt2", "llama", "bloom"])
def test_on_a_bridge_activations_have_a_closed_form(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert parts_in_closed_form(zoo.bridge(family), monkeypatch) == {"Pointwise": 2}


def test_a_mixture_of_experts_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parts_in_closed_form(zoo.bridge("gptoss"), monkeypatch) == {}
    monkeypatch.setattr(zoo.bridge("gptoss").cfg, "num_experts", None)  # even if it does not say that it is one
    assert parts_in_closed_form(zoo.bridge("gptoss"), monkeypatch) == {}


@pytest.mark.parametrize("build", zoo.models("gpt2|llama"))
def test_values_stay_as_they_are(build: Any) -> None:
    model = build()
    adapter, ids = ModelAdapter(model), zoo.prompt(model, N)
    plain = adapter.run(ids)
    with adapter.hooked(closed_form_hooks(adapter), every=False):
        assert torch.equal(adapter.run(ids), plain)


@pytest.mark.skipif(not zoo.HAS_HOOKED, reason="HookedTransformer was removed in TransformerLens 4")
def test_a_part_that_is_not_what_its_hook_points_say_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model = zoo.NEW["hooked"]()
    plain = parts_in_closed_form(model, monkeypatch)
    model.cfg.eps = 0.5  # not what its norms add
    assert parts_in_closed_form(model, monkeypatch) == {
        kind: count for kind, count in plain.items() if kind != "Normalised"
    }
    for block in model.blocks:
        block.mlp.act_fn = lambda x: x * x.softmax(-1)  # not what its configuration says
    assert "Pointwise" not in parts_in_closed_form(model, monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(
            torch.nn.functional, "softmax", lambda scores, dim: scores.exp() / (1 + scores.exp().sum(dim, True))
        )
        assert "Softmax" not in parts_in_closed_form(model, monkeypatch)


@pytest.mark.skipif(not zoo.HAS_HOOKED, reason="HookedTransformer was removed in TransformerLens 4")
def test_a_norm_that_is_left_alone_keeps_its_derivatives(monkeypatch: pytest.MonkeyPatch) -> None:
    model = zoo.NEW["hooked"]()
    model.cfg.eps = 0.5
    ids = zoo.prompt(model, N)
    log_probs = plain_log_probs(model, ids)
    expected = oracles.dense_hessian(lambda e: log_probs(e)[7], plain_embeddings(model, ids))
    found = hessian(model, monkeypatch, plain=False)
    assert relative(found.reshape(expected.shape), expected.detach()) < ROUNDING


@pytest.mark.parametrize("build", zoo.models("gpt2$"))
def test_half_precision_is_left_alone_where_it_rounds_too_much(build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not parts_in_closed_form(build(torch.bfloat16), monkeypatch).keys() - {"Normalised"}  # which is float32


@pytest.mark.parametrize("build", zoo.models("gpt2$"))
def test_hooks_of_the_users_are_differentiated_as_they_are(build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build()
    monkeypatch.setattr("heta_lens.methods.heta.curvature.closed_form_hooks", pytest.fail)
    with model.hooks(fwd_hooks=[("blocks.0.mlp.hook_post", lambda value, hook: value * 2)]):  # noqa: ARG005
        prediction = predict(model, zoo.prompt(model, N), 7)
        with prediction.running():
            whole_segment(prediction).hessian_from(Batches(8), lambda _: None, 0)
