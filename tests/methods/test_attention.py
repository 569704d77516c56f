"""Attention methods by hand, and against loops over heads, positions and runs."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers import zoo
from helpers.asking import predict, relative
from heta_lens.methods.attention import AttentionLast, AttentionNorm, AttentionRollout, ValueZeroing

N, TARGET = 6, 7


def score(model: Any, method: Any, ids: Tensor | None = None, target: Any = TARGET) -> Tensor:
    return method(predict(model, zoo.prompt(model, N) if ids is None else ids, target)).scores


@torch.no_grad()
def plain_patterns(model: Any, ids: Tensor) -> list[Tensor]:
    _, cache = model.run_with_cache(ids)
    return [cache[f"blocks.{layer}.attn.hook_pattern"][0] for layer in range(model.cfg.n_layers)]


def last_row_of_product(maps: list[Tensor]) -> Tensor:
    """Of whole matrices, which the library never makes."""
    product = torch.eye(len(maps[0]), dtype=maps[0].dtype)
    for one in maps:
        product = one @ product
    return product[-1]


ONE_EACH = pytest.mark.parametrize("build", zoo.models("-gpt2$"))


@ONE_EACH
def test_last_attention_reads_the_layer_it_is_told(build: Callable[..., Any]) -> None:
    model = build()
    patterns = plain_patterns(model, zoo.prompt(model, N))
    for layer, pattern in enumerate(patterns):
        assert relative(score(model, AttentionLast(layer=layer)), pattern[:, -1].mean(0)) < 1e-12
    assert torch.equal(score(model, AttentionLast()), score(model, AttentionLast(layer=1)))


FAMILIES = pytest.mark.parametrize("build", zoo.models("-(gpt2|llama|gptj)$"))


@FAMILIES
@pytest.mark.parametrize("residual", [True, False])
def test_rollout_equals_the_product_of_whole_matrices(build: Callable[..., Any], residual: bool) -> None:
    model = build()
    maps: list[Tensor] = [sum(pattern) / len(pattern) for pattern in plain_patterns(model, zoo.prompt(model, N))]
    if residual:
        maps = [
            torch.stack([(row + one) / (row + one).sum() for row, one in zip(rows, torch.eye(N), strict=True)])
            for rows in maps
        ]
    assert relative(score(model, AttentionRollout(residual=residual)), last_row_of_product(maps)) < 1e-9


@pytest.mark.parametrize("build", zoo.models("sinks|gptoss|mistral|local"))
def test_rollout_sums_to_one_also_where_a_sink_swallows_attention(build: Callable[..., Any]) -> None:
    model = build()
    assert float(score(model, AttentionRollout()).sum()) == pytest.approx(1, rel=1e-6)
    swallows = bool((plain_patterns(model, zoo.prompt(model, N))[0].sum(-1) < 0.999).any())
    assert (float(score(model, AttentionRollout(residual=False)).sum()) < 0.999) == swallows


@torch.no_grad()
def norms_by_loops(model: Any, ids: Tensor) -> list[Tensor]:
    """‖Σ α v W_O‖ of every layer, query and key."""
    _, cache = model.run_with_cache(ids)
    n, found = ids.shape[1], []
    for layer in range(model.cfg.n_layers):
        pattern, values = (cache[f"blocks.{layer}.attn.hook_{name}"][0].double() for name in ("pattern", "v"))
        output = model.blocks[layer].attn.W_O.detach().double()
        share = len(output) // values.shape[1]
        norms = torch.zeros(n, n, dtype=torch.float64)
        for i in range(n):
            for j in range(n):
                moved = [pattern[h, i, j] * (values[j, h // share] @ output[h]) for h in range(len(output))]
                norms[i, j] = sum(moved).norm()
        found.append(norms)
    return found


@pytest.mark.slow
@FAMILIES
def test_norms_equal_loops_over_heads_and_positions(build: Callable[..., Any]) -> None:
    model = build()
    layers = norms_by_loops(model, zoo.prompt(model, N))
    maps = [(norms / norms.sum(-1, keepdim=True) + torch.eye(N, dtype=torch.float64)) / 2 for norms in layers]
    assert relative(score(model, AttentionNorm()), layers[-1][-1]) < 1e-9
    assert relative(score(model, AttentionNorm(layer=0)), layers[0][-1]) < 1e-9
    assert relative(score(model, AttentionNorm(reduce="rollout")), last_row_of_product(maps)) < 1e-9


@torch.no_grad()
def turns_by_runs(model: Any, ids: Tensor, floor: float = 1e-5) -> list[Tensor]:
    """S of every layer: one run for each layer and source, whose value is zeroed in that layer alone."""
    _, clean = model.run_with_cache(ids)
    n, found = ids.shape[1], []
    for layer in range(model.cfg.n_layers):
        out = f"blocks.{layer}.hook_resid_post"
        turned = torch.zeros(n, n, dtype=torch.float64)
        for source in range(n):
            seen: list[Tensor] = []
            model.run_with_hooks(
                ids,
                fwd_hooks=[
                    (f"blocks.{layer}.attn.hook_v", lambda live, hook, j=source: emptied(live, j)),  # noqa: ARG005
                    (out, lambda live, hook, seen=seen: seen.append(live[0].double())),  # noqa: ARG005
                ],
            )
            cosines = torch.cosine_similarity(seen[0], clean[out][0].double(), dim=-1, eps=1e-30)
            turned[:, source] = 1 - cosines
        turned[turned < floor] = 0
        for i in range(n):
            turned[i] = turned[i] / turned[i].sum() if turned[i].sum() > 0 else torch.eye(n)[i]
        found.append(turned)
    return found


def emptied(live: Tensor, source: int) -> Tensor:
    live = live.clone()
    live[:, source] = 0
    return live


@pytest.mark.parametrize("build", zoo.models())
def test_value_zeroing_in_one_run_a_source_equals_one_run_a_layer_and_source(build: Callable[..., Any]) -> None:
    """And replacing values reaches the output, in every kind of model."""
    model = build()
    ids = zoo.prompt(model, 4)
    maps = turns_by_runs(model, ids)
    assert all((rows[-1] > 0).sum() > 1 for rows in maps)
    assert relative(score(model, ValueZeroing(), ids), last_row_of_product(maps)) < 1e-5


@ONE_EACH
def test_a_token_without_a_value_gets_nothing_and_hooks_of_others_stay(build: Callable[..., Any]) -> None:
    model, silent = build(), 3
    try:
        for layer in range(2):
            model.add_hook(f"blocks.{layer}.attn.hook_v", lambda live, hook: emptied(live, silent))  # noqa: ARG005
        ids = zoo.prompt(model, N + 2)
        method = ValueZeroing(batch=4)
        found = method(predict(model, ids, TARGET, position=N))
        expected = last_row_of_product(turns_by_runs(model, ids[:, :N]))
        assert found.scores[silent] == 0 and (found.scores.cumsum(0)[[0, -1]] > 0).all()
        assert relative(found.scores, expected) < 1e-6
    finally:
        model.reset_hooks()
    assert score(model, ValueZeroing())[silent] > 0
