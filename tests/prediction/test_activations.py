"""Patterns and values that a cache does not have."""

from typing import Any

import pytest
import torch
from torch import Tensor

import heta_lens
from helpers import zoo
from helpers.asking import cache_of, hooked
from helpers.odd_models import with_side_channel
from heta_lens._util.work import Allocations
from heta_lens.methods.heta.gate import gate, value_norms
from heta_lens.prediction.prompt import LivePatterns

N, LAYERS = 12, 4
ORDERS = {"down": (3, 2, 1, 0), "up": (0, 1, 2, 3), "mixed": (2, 0, 3, 1, 2)}


def own_patterns(model: Any, ids: Tensor) -> list[Tensor]:
    _, cache = model.run_with_cache(ids, names_filter=heta_lens.names_filter)
    return [cache["pattern", layer][0] for layer in range(model.cfg.n_layers)]


def lean(model: Any, ids: Tensor) -> Any:
    return model.run_with_cache(ids, names_filter=heta_lens.lean_names_filter)[1]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("build", zoo.models())
def test_patterns_are_the_models_own(build: Any, dtype: torch.dtype) -> None:
    model = build(dtype, n_layers=LAYERS)
    ids = zoo.prompt(model, N)
    own = own_patterns(model, ids)
    for order in ORDERS.values():
        prompt = heta_lens.Prediction.from_cache(lean(model, ids), tokens=ids).prompt
        patterns = LivePatterns(prompt)
        for layer in order:
            assert torch.equal(patterns(layer), own[layer])
        assert not prompt.why_not_alone()


def test_a_block_that_does_something_else_alone_is_not_believed() -> None:
    model = with_side_channel()
    ids = zoo.prompt(model, N)
    own = own_patterns(model, ids)
    prompt = heta_lens.Prediction.from_cache(lean(model, ids), tokens=ids).prompt
    for layer in (0, 1, 0):
        torch.testing.assert_close(LivePatterns(prompt)(layer), own[layer])
    assert prompt.why_not_alone()


@pytest.mark.parametrize("build", zoo.models("bridge-(gpt2|llama|native)|hooked-gpt2"))
def test_the_gate_of_a_lean_cache_never_holds_all_patterns(build: Any) -> None:
    """What it holds at once hardly grows with the number of layers."""
    most: dict[int, float] = {}
    for layers in (4, 12):
        model = build(torch.float32, n_layers=layers)
        ids = zoo.prompt(model, 48)
        prediction = heta_lens.Prediction.from_cache(lean(model, ids), tokens=ids)
        norms = value_norms(prediction.values, prediction.output_weights)
        with Allocations() as held:
            found, _ = gate(prediction.patterns, norms)
        most[layers] = held.most / (model.cfg.n_heads * 48**2 * 4)
        whole = heta_lens.Prediction.from_cache(cache_of(model, ids), tokens=ids)
        torch.testing.assert_close(found, gate(whole.patterns, norms)[0])
    assert most[4] > 1 and most[12] - most[4] < 2, most


@pytest.mark.usefixtures("unchecked")
def test_a_model_that_looks_ahead_is_refused_without_its_patterns_too() -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, N)
    ahead = ("blocks.1.attn.hook_pattern", lambda live, hook: live.flip(-1))  # noqa: ARG005
    with hooked(model, ahead):
        for names in (heta_lens.names_filter, heta_lens.lean_names_filter):
            _, cache = model.run_with_cache(ids, names_filter=names)
            with pytest.raises(ValueError, match="is not a decoder-only language model: its layer 1 attends to later"):
                heta_lens.attribute(cache, tokens=ids, variant="transition_only")
