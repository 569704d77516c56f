"""One interface to every kind of model."""

from typing import Any

import pytest
import torch

from helpers import zoo
from helpers.asking import cache_of
from heta_lens.model.adapter import ModelAdapter


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
