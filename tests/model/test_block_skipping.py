"""Runs of some blocks only."""

from typing import Any

import pytest
import torch
from torch import Tensor

from helpers import zoo
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.hooks import note, put

LAYERS = 4


def entered(adapter: ModelAdapter, ids: Tensor) -> dict[int, Tensor]:
    return adapter.streams(ids, range(LAYERS + 1))


@pytest.mark.parametrize("build", zoo.models())
def test_a_block_that_runs_alone_does_what_it_does_in_the_model(build: Any) -> None:
    model = build(n_layers=LAYERS)
    adapter, ids = ModelAdapter(model), zoo.prompt(model, 9)
    streams = entered(adapter, ids)
    with torch.no_grad():
        logits = adapter.run(ids)
        for layer in range(LAYERS):
            left: dict[int, Tensor] = {}
            end = f"blocks.{layer}.hook_resid_post"
            hooks = {end: note(left, layer + 1)} if layer < LAYERS - 1 else {}  # where unread positions are dropped
            last = adapter.run_block(layer, ids, streams[layer], hooks)
            assert all(torch.equal(left[above], streams[above]) for above in left)
        assert torch.equal(last, logits)
        above = adapter.run(ids, {adapter.stream_name(2): put(streams[2])}, first=2)
    assert torch.equal(above, logits)


@pytest.mark.parametrize("build", zoo.models("bridge-(gpt2|gptj|native)|hooked-gpt2"))
def test_blocks_are_whole_again_after_a_run_and_after_an_error(build: Any) -> None:
    model = build(n_layers=LAYERS)
    adapter, ids = ModelAdapter(model), zoo.prompt(model, 5)
    streams = entered(adapter, ids)
    before = [{**vars(block)} for block in model.blocks]

    def fail(_: Tensor) -> None:
        raise KeyboardInterrupt

    with torch.no_grad():
        adapter.run_block(1, ids, streams[1])
        with pytest.raises(KeyboardInterrupt):
            adapter.run_block(1, ids, streams[1], {"blocks.1.attn.hook_v": fail})
    for block, attributes in zip(model.blocks, before, strict=True):
        assert vars(block).keys() == attributes.keys()
    assert not adapter.user_hooks()


def test_a_forward_that_somebody_put_on_a_block_comes_back() -> None:
    model = zoo.NEW["gpt2"]()
    adapter, ids = ModelAdapter(model), zoo.prompt(model, 5)
    block, calls = model.blocks[0], []
    plain = block.forward
    mine = lambda *args, **kwargs: (calls.append(1), plain(*args, **kwargs))[1]  # noqa: E731
    vars(block)["forward"] = mine
    streams = adapter.streams(ids, [1])
    with torch.no_grad():
        adapter.run_block(1, ids, streams[1])
    assert vars(block)["forward"] is mine and len(calls) == 1


@pytest.mark.parametrize("build", zoo.models("bridge-(gpt2|native)|hooked-gpt2"))
def test_no_graph_is_recorded_of_skipped_blocks(build: Any) -> None:
    model = build(n_layers=LAYERS)
    adapter, ids = ModelAdapter(model), zoo.prompt(model, 5)
    leaf = entered(adapter, ids)[2].clone().requires_grad_()
    with adapter.undisturbed():
        logits = adapter.run(ids, {adapter.stream_name(2): put(leaf)}, first=2)
        (gradient,) = torch.autograd.grad(logits.square().sum(), leaf)
    assert gradient.abs().max() > 0
