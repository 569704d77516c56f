"""Patterns that a bridge would keep."""

from typing import Any

import pytest
import torch

from helpers import zoo
from heta_lens._util.work import Allocations
from heta_lens.model.adapter import ModelAdapter

N, LAYERS = 48, 6
FUSED = zoo.models("bridge-(gpt2|phi3|neox|bloom)")


@pytest.mark.parametrize("build", FUSED)
def test_a_run_keeps_no_pattern_and_never_holds_all(build: Any) -> None:
    model = build(torch.float32, n_layers=LAYERS)
    adapter, ids = ModelAdapter(model), zoo.prompt(model, N)
    pattern = model.cfg.n_heads * N**2 * 4
    with torch.no_grad(), Allocations() as held:
        adapter.run(ids)
    assert held.now < pattern and held.most < LAYERS * pattern


@pytest.mark.parametrize("build", FUSED)
def test_what_somebody_elses_run_left_is_dropped(build: Any) -> None:
    model = build(torch.float32, n_layers=LAYERS)
    ids = zoo.prompt(model, N)
    hooks = [dict(block.attn._forward_hooks) for block in model.blocks]
    model(ids)  # with its graph
    assert all(block.attn._pattern.grad_fn is not None for block in model.blocks), "or there is nothing to drop"
    ModelAdapter(model).run(ids)
    assert all(block.attn._pattern is None for block in model.blocks)
    assert [dict(block.attn._forward_hooks) for block in model.blocks] == hooks
