"""One interface to every kind of model."""

from functools import partial
from typing import Any

import pytest
import torch

from helpers import zoo
from helpers.asking import cache_of
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.hooks import PositionHook


@torch.no_grad()
@pytest.mark.parametrize("build", zoo.models("-(gpt2|llama)$"))
def test_logits_are_those_of_the_model_wherever_they_are_read(build: Any) -> None:
    model = build()
    ids = zoo.prompt(model, 5)
    expected = model(ids)
    for whole in (False, True):
        torch.testing.assert_close(ModelAdapter(model).run(ids, read=[1, 4], whole=whole), expected[:, [1, 4]])
    places = torch.tensor([[2], [3]])
    rows = ModelAdapter(model).run(ids.expand(2, -1), read=places)[:, 0]
    torch.testing.assert_close(rows, expected[0, [2, 3]])


@pytest.mark.parametrize("build", zoo.models("-(gpt2|llama)$"))
def test_its_cache_is_that_of_run_with_cache(build: Any) -> None:
    model = build()
    ids = zoo.prompt(model, 5)
    expected, cache = cache_of(model, ids), ModelAdapter(model).cache(ids)
    for name in ("hook_embed", "blocks.0.attn.hook_pattern", "blocks.1.attn.hook_v"):
        assert torch.equal(cache[name], expected[name])


def test_a_layer_that_is_missing_is_refused() -> None:
    with pytest.raises(ValueError, match=r"layer=7 is none of the layers 0 to \d+ this model has"):
        ModelAdapter(zoo.bridge("gpt2")).check_layer("layer", 7)


def test_what_is_no_cache_is_refused_by_its_type() -> None:
    with pytest.raises(TypeError, match="expected an ActivationCache, got dict"):
        ModelAdapter.of({})


@pytest.mark.skipif(not zoo.HAS_HOOKED, reason="HookedTransformer was removed in TransformerLens 4")
@pytest.mark.parametrize(
    ("name", "kind", "positions"),
    [
        ("standard", PositionHook, 2),
        ("rotary_gqa", PositionHook, 2),
        ("standard", partial, 5),  # it may tell positions apart
        ("parallel", PositionHook, 5),  # the MLP adds to what enters the layer, of all positions
    ],
)
def test_the_last_layer_runs_what_is_read_unless_a_hook_may_need_the_rest(name: str, kind: Any, positions: int) -> None:
    model, seen = zoo.hooked_config(name), []
    adapter, ids = ModelAdapter(model), zoo.prompt(model, 5)
    expected = adapter.run(ids, read=[1, 4], whole=True)
    hook = kind(lambda value: seen.append(value.shape[1]))
    with adapter.hooked([("blocks.1.mlp.hook_post", hook)]):
        torch.testing.assert_close(adapter.run(ids, read=[1, 4]), expected)
    assert seen == [positions]
    adapter.run(ids, {"blocks.1.mlp.hook_post": hook}, read=[1, 4])
    assert seen == [positions, positions]
    adapter.run(ids, {"blocks.1.hook_resid_post": lambda value: seen.append(value.shape[1])}, read=[1, 4])
    assert seen[2] == 5


@pytest.mark.skipif(not zoo.HAS_HOOKED, reason="HookedTransformer was removed in TransformerLens 4")
def test_without_mlps_positions_are_dropped_where_the_unembedding_begins() -> None:
    model = zoo.hooked_config("attn_only")
    ids = zoo.prompt(model, 5)
    run = ModelAdapter(model).run
    torch.testing.assert_close(run(ids, read=[1, 4]), run(ids, read=[1, 4], whole=True))
