"""Weights that are quantised or elsewhere."""

import pytest
import torch
from einops import rearrange
from torch import nn

from helpers import quantised, zoo
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.weights import is_elsewhere, is_readable, output_weights, quantised_modules, read_output_weights


class Packed(torch.Tensor):
    """A tensor whose class may store its numbers as it likes."""


def test_weights_that_hold_their_own_numbers_are_readable() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        assert is_readable(torch.zeros(2, dtype=dtype)) and is_readable(nn.Parameter(torch.zeros(2, dtype=dtype)))
    for weight in (torch.zeros(2, dtype=torch.int8), torch.zeros(2).as_subclass(Packed), None, "mxfp4"):
        assert not is_readable(weight)
    assert not is_readable(torch.zeros(2).to(torch.float8_e4m3fn))
    assert not is_readable(torch.zeros(2, device="meta")) and is_elsewhere(torch.zeros(2, device="meta"))


@pytest.mark.parametrize("build", zoo.models())
def test_what_is_read_equals_what_the_model_shows(build) -> None:
    model = build()
    assert [*quantised_modules(model)] == []
    for layer, block in enumerate(model.blocks):
        shown = read_output_weights(block.attn)
        assert shown is not None and torch.equal(shown, block.attn.W_O)
        assert torch.equal(ModelAdapter(model).output_weights(layer), block.attn.W_O)


@pytest.mark.parametrize("family", ["llama", "gemma2", "qwen2", "olmo2"])
@pytest.mark.every_model
def test_quantised_weights_are_run(family: str) -> None:
    packed, plain = quantised.pair(family, torch.float64)
    assert "layers.0." in next(quantised_modules(packed))
    for block, other in zip(packed.blocks, plain.blocks, strict=True):
        assert read_output_weights(block.attn) is None
        found = output_weights(block.attn, packed.cfg.n_heads, packed.cfg.d_head, torch.float64)
        torch.testing.assert_close(found, other.attn.W_O)


def test_a_bias_does_not_count() -> None:
    linear = nn.Linear(8, 3)
    quantised_linear = quantised.QuantisedLinear(linear)
    attention = nn.Module()
    attention.o = quantised_linear
    assert linear.bias.abs().max() > 0.1
    found = output_weights(attention, heads=2, d_head=4, dtype=torch.float32)
    torch.testing.assert_close(found, rearrange(quantised_linear.values(), "d (head d_head) -> head d_head d", head=2))


def test_one_that_can_neither_be_read_nor_run_is_refused() -> None:
    class Attention:
        def __init__(self) -> None:
            self._parameters, self._buffers = {"W_O": torch.zeros(2, dtype=torch.uint8)}, {}

    with pytest.raises(ValueError, match=r"W_O of a Attention with quantised weights .* load the model as a Transf"):
        output_weights(Attention(), 1, 1, torch.float32)
