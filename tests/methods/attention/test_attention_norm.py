"""Norm-based attention by hand, and against loops over heads and positions."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import heta_lens
from helpers import zoo
from helpers.asking import predict, relative
from helpers.attention import TARGET, N, last_row_of_product, score
from heta_lens.methods.attention import AttentionNorm

FAMILIES = pytest.mark.parametrize("build", zoo.models("-(gpt2|llama|gptj)$"))


def with_attention(monkeypatch: pytest.MonkeyPatch, patterns: Tensor, values: Tensor, outputs: Tensor) -> Any:
    """A prediction that sees this attention in both of its layers."""
    model = zoo.bridge("gpt2")
    prediction = predict(model, zoo.prompt(model, patterns.shape[-1]), TARGET)
    for name, tensor in (("patterns", patterns), ("values", values), ("output_weights", outputs)):
        monkeypatch.setattr(heta_lens.Prediction, name, [tensor.double()] * 2)
    return prediction


def test_norm_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    half = torch.tensor([[[1.0, 0.0], [0.5, 0.5]]])
    prediction = with_attention(monkeypatch, half, torch.ones(2, 1, 1), torch.tensor([[[3.0, 4.0]]]))
    assert AttentionNorm()(prediction).scores.tolist() == pytest.approx([2.5, 2.5])
    # Both layers hand half of the last position's share on, and half of that stays with itself.
    assert AttentionNorm(reduce="rollout")(prediction).scores.tolist() == pytest.approx([0.4375, 0.5625])


def test_heads_that_write_opposite_things_cancel_only_when_summed(monkeypatch: pytest.MonkeyPatch) -> None:
    patterns = torch.tensor([[[1.0, 0.0], [0.5, 0.5]]]).repeat(2, 1, 1)
    opposite = torch.tensor([[[3.0, 4.0]], [[-3.0, -4.0]]])
    prediction = with_attention(monkeypatch, patterns, torch.ones(2, 1, 1), opposite)
    assert AttentionNorm(heads="summed")(prediction).scores.tolist() == [0, 0]
    assert AttentionNorm(heads="apart")(prediction).scores.tolist() == pytest.approx([5, 5])
    # A position that moves nothing at all keeps to itself.
    assert AttentionNorm(reduce="rollout")(prediction).scores.tolist() == [0, 1]


@torch.no_grad()
def norms_by_loops(model: Any, ids: Tensor, heads: str, residual: bool) -> list[Tensor]:
    """‖Σ α v W_O‖ or Σ ‖α v W_O‖ of every layer, query and key."""
    _, cache = model.run_with_cache(ids)
    n, found = ids.shape[1], []
    for layer in range(model.cfg.n_layers):
        pattern, values = (cache[f"blocks.{layer}.attn.hook_{name}"][0].double() for name in ("pattern", "v"))
        entering = cache[f"blocks.{layer}.hook_resid_pre"][0].double()
        output = model.blocks[layer].attn.W_O.detach().double()
        share = len(output) // values.shape[1]
        norms = torch.zeros(n, n, dtype=torch.float64)
        for i in range(n):
            for j in range(n):
                moved = [pattern[h, i, j] * (values[j, h // share] @ output[h]) for h in range(len(output))]
                moved += [entering[i]] if residual and i == j else []
                norms[i, j] = sum(moved).norm() if heads == "summed" else sum(one.norm() for one in moved)
        found.append(norms)
    return found


@pytest.mark.slow
@FAMILIES
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("heads", ["summed", "apart"])
def test_norms_equal_loops_over_heads_and_positions(build: Callable[..., Any], heads: Any, residual: bool) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    layers = norms_by_loops(model, ids, heads, residual)
    stays = 0 if residual else 0.5
    maps = [
        (1 - stays) * norms / norms.sum(-1, keepdim=True) + stays * torch.eye(N, dtype=torch.float64)
        for norms in layers
    ]
    options = {"heads": heads, "residual": residual}
    assert relative(score(model, AttentionNorm(**options)), layers[-1][-1]) < 1e-9
    assert relative(score(model, AttentionNorm(layer=0, **options)), layers[0][-1]) < 1e-9
    assert relative(score(model, AttentionNorm(reduce="mean", **options)), (layers[0] + layers[1])[-1] / 2) < 1e-9
    assert relative(score(model, AttentionNorm(reduce="rollout", **options)), last_row_of_product(maps)) < 1e-9


@FAMILIES
def test_the_norm_of_a_sum_is_at_most_the_sum_of_norms(build: Callable[..., Any]) -> None:
    summed, apart = (score(build(), AttentionNorm(heads=heads)) for heads in ("summed", "apart"))
    assert (summed <= apart * (1 + 1e-12)).all() and not torch.allclose(summed, apart)
