"""The gate against explicit path enumeration, and against two layers worked out by hand."""

from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from helpers import oracles, zoo
from helpers.asking import cache_of, explain, predict, relative
from heta_lens.methods.heta.gate import Flow, gate, transport, value_norms

FLOWS = get_args(Flow)


def random_patterns(layers: int, heads: int, n: int, *, kept: float = 1.0, seed: int = 0) -> list[Tensor]:
    """Causal patterns whose rows sum to ``kept`` (below 1: an attention sink swallowed the rest)."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(layers, heads, n, n, generator=generator, dtype=torch.float64)
    future = torch.ones(n, n, dtype=torch.bool).triu(1)
    return list(kept * scores.masked_fill(future, -torch.inf).softmax(-1))


def random_writes(layers: int, groups: int, heads: int, n: int, seed: int = 1) -> tuple[list[Tensor], list[Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(layers, n, groups, 3, generator=generator, dtype=torch.float64)
    outputs = torch.randn(layers, heads, 3, 5, generator=generator, dtype=torch.float64)
    return list(values), list(outputs)


@pytest.mark.parametrize("flow", FLOWS)
@pytest.mark.parametrize("kept", [1.0, 0.6])
def test_transport_equals_the_sum_over_all_paths(flow: Flow, kept: float) -> None:
    patterns = random_patterns(3, 2, 4, kept=kept)
    torch.testing.assert_close(transport(patterns, flow), oracles.phi_by_paths(patterns, flow), rtol=1e-10, atol=0)


@pytest.mark.parametrize("flow", FLOWS)
@pytest.mark.parametrize("order", [1, 2])
def test_gate_equals_the_sum_over_all_paths(flow: Flow, order: int) -> None:
    patterns = random_patterns(3, 4, 4)
    values, outputs = random_writes(3, 2, 4, 4)
    norms = value_norms(values, outputs, order)
    expected = oracles.gate_by_paths(patterns, values, outputs, order, flow)
    torch.testing.assert_close(gate(patterns, norms, flow)[0], expected, rtol=1e-10, atol=0)


def test_the_gate_is_uniform_and_says_so_where_no_value_flows() -> None:
    found, total = gate(random_patterns(2, 1, 4), [torch.zeros(1, 4, dtype=torch.float64)] * 2)
    assert total == 0
    assert found.tolist() == [0.25] * 4


@pytest.mark.parametrize("build", zoo.models())
def test_values_and_output_weights_add_up_to_what_attention_writes(build: Any) -> None:
    """What the gate takes norms of, weighted by the pattern, is the attention layer's own output before any norm."""
    model = build()
    ids = zoo.prompt(model, 6)
    own = "hook_attn_out" if type(model).__name__ == "HookedTransformer" else "attn.hook_out"
    _, cache = model.run_with_cache(ids)
    prediction = predict(model, ids)
    for layer, (pattern, values, output) in enumerate(
        zip(prediction.patterns, prediction.values, prediction.output_weights, strict=True)
    ):
        shared = values.repeat_interleave(len(output) // values.shape[1], dim=1)
        mixed = torch.einsum("hqk,khd->qhd", pattern, shared)
        torch.testing.assert_close(mixed, cache["z", layer][0].double(), rtol=1e-6, atol=1e-9)
        if getattr(model.cfg, "use_normalization_before_and_after", False) and own == "hook_attn_out":
            continue  # this hook is after the norm
        if "BloomForCausalLM" in str(getattr(model.cfg, "architecture", "")):
            continue  # this one has the residual stream added already
        bias = getattr(model.blocks[layer].attn, "b_O", None)
        written = torch.einsum("qhd,hdm->qm", mixed, output) + (0 if bias is None else bias.detach().double())
        torch.testing.assert_close(written, cache[f"blocks.{layer}.{own}"][0].double(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("flow", FLOWS)
@pytest.mark.parametrize("build", zoo.models("gpt2|llama|gptj"))
def test_every_flow_from_a_cache_equals_the_paths(build: Any, flow: Flow) -> None:
    model = build()
    ids = zoo.prompt(model, 5)
    cache = cache_of(model, ids)
    outputs = [model.blocks[layer].attn.W_O.detach().double() for layer in range(2)]
    patterns = [cache["pattern", layer][0] for layer in range(2)]
    expected = oracles.gate_by_paths(patterns, [cache["v", layer][0] for layer in range(2)], outputs, 2, flow)
    found = explain(model, ids, variant="transition_only", flow=flow, value_norm=2)
    assert relative(found.scores, expected) < 1e-10
