"""Cheaper variants against the oracles of what they stand for, and all variants against what must not matter."""

from dataclasses import fields
from typing import Any

import pytest
import torch

import heta_lens
import heta_lens.prediction.prediction
from helpers import zoo
from helpers.asking import (
    doubts_allowed,
    predict,
    relative,
    start_together,
)
from helpers.variants import OWN, TARGET, N, found
from heta_lens import Heta
from heta_lens.methods.heta.options import VARIANTS, Variant
from heta_lens.model.adapter import ModelAdapter
from heta_lens.prediction.activations import Activations
from heta_lens.prediction.prediction import predictions

CHEAPER = [name for name, terms in VARIANTS.items() if terms.approximate]


def test_every_variant_is_tested_here() -> None:
    assert OWN.keys() == VARIANTS.keys()
    assert CHEAPER == ["lr", "ls", "win", "lr+win", "ls+win", "gs", "gn"]


def test_information_and_gate_know_nothing_of_the_last_layers() -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, N)
    full, last = found(model, ids, "full"), found(model, ids, "ls")
    for name in ("gate", "information"):
        assert torch.equal(last.parts[name], full.parts[name])


# ---------------------------------------------------------------------------------------------- identities of Eq. 4
@pytest.mark.parametrize("build", zoo.models("bridge-(gpt2|llama|native)|hooked-rotary_gqa"))
def test_without_a_gate_and_with_a_uniform_one_everything_ranks_alike(build: Any) -> None:
    model = build()
    ids = zoo.prompt(model, 6)
    free, uniform = (found(model, ids, variant).scores for variant in ("no_gate", "uniform_gate"))
    assert torch.equal(free.argsort(), uniform.argsort())
    torch.testing.assert_close(free / free.sum(), uniform / uniform.sum(), rtol=1e-12, atol=0)


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("variant", [name for name, terms in VARIANTS.items() if terms.weights is None])
def test_scaling_both_weights_scales_the_score_of_every_variant(variant: str) -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, 6)
    once, thrice = found(model, ids, variant, beta=0.2, gamma=0.6), found(model, ids, variant, beta=0.6, gamma=1.8)
    torch.testing.assert_close(3 * once.scores, thrice.scores, rtol=1e-12, atol=0)
    gate, curvature, information = (once.parts[part] for part in ("gate", "curvature", "information"))
    torch.testing.assert_close(once.scores, gate * (0.2 * curvature + 0.6 * information), rtol=1e-12, atol=0)


# ------------------------------------------------------------------------------------------- what must not matter
@pytest.mark.sample(quick=1, test=6)
@pytest.mark.parametrize("build", zoo.models("bridge-(gpt2|native)"))
@pytest.mark.parametrize("variant", CHEAPER)
@pytest.mark.usefixtures("unchecked")
def test_neither_batch_nor_chunk_nor_reuse_matters_to_any_variant(
    build: Any, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build()
    ids = zoo.prompt(model, 7)
    monkeypatch.setattr(heta_lens.prediction.prediction, "TAIL", 2)
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


@pytest.mark.sample(quick=1, test=6)
@pytest.mark.parametrize("variant", CHEAPER)
@pytest.mark.parametrize("build", zoo.models("bridge-(gpt2|llama)"))
def test_coarser_weights_give_finite_scores_near_those_of_finer_ones(build: Any, variant: str) -> None:
    ids = zoo.prompt(build(), 6)
    exact = found(build(), ids, variant)
    for dtype, close in ((torch.float32, 1e-3), (torch.bfloat16, 0.5)):
        coarse = found(build(dtype), ids, variant)
        assert coarse.scores.dtype == torch.float32
        assert coarse.scores.isfinite().all() and (coarse.scores >= 0).all() and coarse.scores.any()
        assert relative(coarse.scores, exact.scores) < close


@pytest.mark.sample(quick=2)
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_single_token_can_be_explained_by_every_variant(variant: Variant) -> None:
    model = zoo.bridge("gpt2")
    one = found(model, zoo.prompt(model, 1), variant)
    assert one.scores.shape == (1,) and one.scores.isfinite().all() and one.scores.all()
    if not VARIANTS[variant].approximate or "lr" in variant or variant == "win":
        rank = {"rank": 8} if "lr" in variant else {}
        whole = found(model, zoo.prompt(model, 1), "full").parts
        for name, part in found(model, zoo.prompt(model, 1), variant, **rank).parts.items():
            assert relative(part, whole[name]) < 1e-9, name


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("variant", CHEAPER)
def test_what_comes_after_the_position_does_not_matter_to_any_variant(variant: str) -> None:
    model = zoo.bridge("gpt2")
    ids, other = zoo.prompt(model, 8), zoo.prompt(model, 8, seed=1)
    other[0, :5] = ids[0, :5]
    target = TARGET if variant == "gn" else (7, 9)
    alone = found(model, ids[:, :5], variant, target)
    for prompt in (ids, other):
        assert relative(found(model, prompt, variant, target, position=5).scores, alone.scores) < 1e-9


@pytest.mark.sample(quick=1, test=6)
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_target_of_a_prompt_is_explained_as_if_it_were_alone(variant: Variant) -> None:
    model = zoo.hooked("gpt2") if zoo.HAS_HOOKED else zoo.bridge("gpt2")
    ids = zoo.prompt(model, 7)
    cache = model.run_with_cache(ids)[1]
    adapter = ModelAdapter.of(cache)
    with adapter.undisturbed():
        cached = Activations.of(cache)
        asked = predictions(adapter, cached, {3: 7, 6: 9}, tokens=ids, follow=True)
    with doubts_allowed():
        results = Heta(variant=variant, **OWN[variant]).each(asked)
    for result, n, target in zip(results, (3, 6), (7, 9), strict=True):
        alone = found(model, ids[:, :n], variant, target)
        assert relative(result.scores, alone.scores) < 1e-9
        assert result.parts.keys() == alone.parts.keys()


# ------------------------------------------------------------------------------------------------------- presets
def test_the_papers_preset_is_what_is_done_without_one() -> None:
    paper, plain = Heta.preset("paper"), Heta()
    for field in fields(Heta):
        assert getattr(paper, field.name) == getattr(plain, field.name), field.name


def test_the_released_preset_is_the_released_code() -> None:
    released, plain = Heta.preset("released"), Heta()
    expected = {"variant": "win", "flow": "prefix_head", "window_mode": "chunk", "window_gate": "per_window"}
    for field in fields(Heta):
        assert getattr(released, field.name) == expected.get(field.name, getattr(plain, field.name)), field.name


def test_a_preset_explains_as_its_options_do() -> None:
    model = zoo.bridge("gpt2")
    prediction = predict(model, zoo.prompt(model, 6), TARGET)
    with doubts_allowed():
        preset = Heta.preset("released", window=4, probes=2)(prediction)
        spelled = Heta(
            variant="win", flow="prefix_head", window_mode="chunk", window_gate="per_window", window=4, probes=2
        )(prediction)
    assert torch.equal(preset.scores, spelled.scores)
    assert preset.options["window_mode"] == "chunk"
