"""Heads of the gate, and predictions without a head."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers import oracles, zoo
from helpers.asking import cache_of, explain, predict
from heta_lens.causal import ablate_heads, gate_heads

N, TARGET = 6, 7
FAMILIES = pytest.mark.parametrize("build", zoo.models("-(gpt2|llama|gptj)$"))
ONE_EACH = pytest.mark.parametrize("build", zoo.models("-gpt2$"))
FLOWS = ["suffix", "prefix_head", "rollout", "direct"]


# --------------------------------------------------------------------------------------------------- heads of the gate
@FAMILIES
@pytest.mark.parametrize("flow", FLOWS)
def test_heads_together_are_the_gate(build: Callable[[], Any], flow: Any) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    whole = explain(model, ids, TARGET, variant="transition_only", flow=flow).parts["gate"]
    heads = gate_heads(cache_of(model, ids), flow=flow, tokens=ids)
    torch.testing.assert_close(heads.shares.sum((0, 1)), whole.cpu(), rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(heads.of(2).values, heads.shares[:, :, 2])
    layer, head, share = heads.of(2).top(1)[0]
    assert share == float(heads.of(2).values.max()) == float(heads.shares[layer, head, 2])
    assert f"most by L{heads.of().top(1)[0].layer}H" in repr(heads) and "layer 1" in heads.plot(2).fragment
    assert repr(heads.of().top(1)).startswith("[L") and heads.of(2).to_frame()["name"][1] == "L0H1"
    frame = heads.to_frame()
    assert frame["share"].sum() == pytest.approx(1)
    row = frame[(frame["layer"] == 1) & (frame["head"] == 1) & (frame["position"] == 3)]
    assert float(row["share"].iloc[0]) == float(heads.shares[1, 1, 3])


@ONE_EACH
def test_the_flow_of_a_head_is_that_of_its_paths(build: Callable[[], Any]) -> None:
    model = build()
    ids = zoo.prompt(model, 4)
    asked = predict(model, ids, TARGET)
    patterns = [pattern.double() for pattern in asked.patterns]
    flows = oracles.phi_by_paths(patterns, "suffix")
    norms = torch.stack(
        [
            torch.einsum("pgk,gkd->gpd", values.double(), output.double()).abs().sum(-1)
            for values, output in zip(asked.values, asked.output_weights, strict=True)
        ]
    )
    expected = flows * norms
    found = gate_heads(cache_of(model, ids), tokens=ids).shares
    torch.testing.assert_close(found.double(), expected / expected.sum(), rtol=1e-6, atol=1e-9)


# ------------------------------------------------------------------------------------------------------ without a head
@pytest.mark.slow
@FAMILIES
@pytest.mark.parametrize("fill", ["zero", "mean"])
@pytest.mark.parametrize("places", [None, [2, N - 1]])
def test_a_prediction_without_a_head_is_what_a_hook_makes_of_it(
    build: Callable[[], Any], fill: Any, places: list[int] | None
) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    found = ablate_heads(cache_of(model, ids), TARGET, fill=fill, positions=places, tokens=ids).values
    with torch.no_grad():
        full = model.run_with_cache(ids)[1]
        clean = model(ids)[0, -1].double().log_softmax(-1)[TARGET]
    for layer, row in enumerate(found):
        name = f"blocks.{layer}.attn.hook_z"
        for head, effect in enumerate(row):

            def empty(live: Tensor, hook: Any, head: int = head, name: str = name) -> Tensor:  # noqa: ARG001
                live = live.clone()
                instead = full[name][0, :, head].mean(0) if fill == "mean" else 0
                live[0, places if places else slice(None), head] = instead
                return live

            with torch.no_grad():
                left = model.run_with_hooks(ids, fwd_hooks=[(name, empty)])[0, -1].double().log_softmax(-1)[TARGET]
            assert float(effect) == pytest.approx(float(clean - left), rel=1e-5, abs=1e-9)
    one_by_one = ablate_heads(cache_of(model, ids), TARGET, fill=fill, positions=places, batch=1)
    torch.testing.assert_close(one_by_one.values, found)
    first, second = one_by_one.top(2)
    values = one_by_one.values
    assert first.value == float(values.max()) >= second.value == float(values[second.layer, second.head])
    assert len(one_by_one.to_frame()) == found.numel() and "layer 1" in one_by_one.plot().fragment
    assert f"most by L{first.layer}H{first.head} {first.value:.3g}" in repr(one_by_one)


@pytest.mark.usefixtures("unchecked")
def test_wrong_options_are_refused() -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, N)
    cache: Any = cache_of(model, ids)
    part = model.run_with_cache(ids, pos_slice=-1)[1]
    cases: list[tuple[Callable[[], Any], str]] = [
        (lambda: ablate_heads(cache, TARGET, positions=[]), "positions is empty"),
        (lambda: ablate_heads(cache, TARGET, positions=[9]), "position 9"),
        (lambda: ablate_heads(cache, TARGET, fill="noise"), "fill='noise'"),  # type: ignore[arg-type]
        (lambda: ablate_heads(part, TARGET, tokens=ids), "the cache holds 1 of the prompt's 6 positions"),
        (lambda: gate_heads(cache).of().top(0), "k=0"),
        (lambda: gate_heads(cache).of(9), "position 9"),
        (lambda: gate_heads(cache, flow="suffixes"), "flow='suffixes'"),  # type: ignore[arg-type]
    ]
    for ask, message in cases:
        with pytest.raises(ValueError, match=message):
            ask()
