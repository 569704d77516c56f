"""Estimates of memory."""

import torch

from helpers import zoo
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.batching import Sizes, available


def test_more_positions_take_more_memory() -> None:
    sizes = Sizes(layers=2, d_model=8, d_mlp=32, heads=2, vocabulary=10, itemsize=4)
    for estimate in (sizes.widest, sizes.forward, sizes.graph, sizes.product):
        assert 0 < estimate(5, 10) < estimate(10, 10) < estimate(10, 100)
    assert sizes.forward(5, 10, read=5) == sizes.forward(5, 10) + 4 * 4 * 4 * 10


def test_the_sizes_of_a_model_are_read_from_its_configuration() -> None:
    adapter = ModelAdapter(zoo.bridge("gpt2"))
    config = adapter.model.cfg
    assert adapter.sizes[:4] == (config.n_layers, config.d_model, config.d_mlp, config.n_heads)
    assert adapter.sizes.vocabulary == adapter.vocabulary


def test_some_memory_is_free() -> None:
    assert available(torch.device("cpu")) > 0
