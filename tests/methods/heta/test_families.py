"""Every kind of model against the slow oracles, from end to end: gate, curvature, information and Eq. 4."""

from typing import Any

import pytest
import torch
from torch import Tensor

from helpers import oracles, zoo
from helpers.asking import explain, plain_embeddings, plain_log_probs, relative, signs

N, PROBES = 5, 3


def oracle_parts(model: Any, ids: Tensor, target: int) -> tuple[Tensor, Tensor, Tensor]:
    """M, S and I, each transcribed from the paper, on full runs of the model."""
    _, cache = model.run_with_cache(ids)
    layers = range(model.cfg.n_layers)
    patterns = [cache["pattern", layer][0].double() for layer in layers]
    values = [cache["v", layer][0].double() for layer in layers]
    outputs = [model.blocks[layer].attn.W_O.detach().double() for layer in layers]
    embeddings, log_probs = plain_embeddings(model, ids).double(), plain_log_probs(model, ids)
    hessian = oracles.dense_hessian(lambda e: log_probs(e)[target], embeddings, functional=True)
    probes = signs(0, PROBES, *embeddings.shape)
    with torch.no_grad():
        information = oracles.information(log_probs, embeddings, torch.zeros_like(embeddings[0]), "orig_masked")
    gate = oracles.gate_by_paths(patterns, values, outputs, p=1, flow="suffix")
    return gate, oracles.block_l1(hessian, probes).mean(0), information


@pytest.mark.parametrize("name", [name for name, _ in zoo.KINDS])
def test_attribution_equals_the_oracle(name: str) -> None:
    model = dict(zoo.KINDS)[name]()
    ids = zoo.prompt(model, N)
    attribution = explain(model, ids, target=7, probes=PROBES)
    gate, curvature, information = oracle_parts(model, ids, target=7)
    assert relative(attribution.parts["gate"], gate) < 1e-10
    assert relative(attribution.parts["curvature"], curvature) < zoo.tolerance(name)
    assert relative(attribution.parts["information"], information) < zoo.tolerance(name)
    assert relative(attribution.scores, oracles.eq4(gate, curvature, information, 0.5, 0.5)) < zoo.tolerance(name)


@pytest.mark.slow
@pytest.mark.parametrize("build", zoo.models("gpt2|llama|native"))
def test_float32_and_bfloat16_weights_stay_close_to_float64(build: Any) -> None:
    ids = zoo.prompt(build(), N)
    exact = explain(build(), ids, target=7)
    for dtype, close in ((torch.float32, 1e-3), (torch.bfloat16, 0.3)):
        attribution = explain(build(dtype), ids, target=7)
        assert attribution.scores.dtype == torch.float32
        assert relative(attribution.scores, exact.scores) < close


@pytest.mark.slow
@pytest.mark.skipif(not zoo.HAS_HOOKED, reason="HookedTransformer was removed in TransformerLens 4")
@pytest.mark.parametrize("family", zoo.HOOKED_FAMILIES)
def test_the_same_weights_give_the_same_attribution_in_both_kinds_of_model(family: str) -> None:
    hooked, bridge = zoo.hooked(family), zoo.bridge(family)
    ids = zoo.prompt(bridge, 10)
    one, other = explain(hooked, ids), explain(bridge, ids)
    assert one.target == other.target
    assert relative(one.scores, other.scores) < 1e-4
    for name, part in other.parts.items():
        assert relative(one.parts[name], part) < 1e-4, name


@pytest.mark.parametrize("build", zoo.models())
def test_prefixes_are_reused_wherever_a_model_keeps_keys_and_values(build: Any, request: Any) -> None:
    model = build()
    reuse = explain(model, zoo.prompt(model, 6), variant="kl_only").diagnostics["prefix_reuse"]
    if "native" in request.node.name:
        assert reuse.startswith("off: only 0 of this model")
    else:
        assert reuse == "on"
