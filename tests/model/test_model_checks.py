"""Models that cannot be explained are refused."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformer_lens import ActivationCache

import heta_lens
from helpers import zoo
from helpers.asking import cache_of
from helpers.odd_models import NO_DECODERS, hooked, mamba
from helpers.refusing import N, missing, refusal

pytestmark = [
    pytest.mark.usefixtures("unchecked"),
]


@pytest.fixture
def ids() -> Tensor:
    return zoo.prompt(zoo.bridge("gpt2"), N)


def cache_if_any(model: Any, ids: Tensor) -> Any:
    """What the model caches, or an empty cache where its kind cannot be run on tokens alone."""
    try:
        return model.run_with_cache(ids)[1]
    except (TypeError, ValueError, RuntimeError):
        return ActivationCache({}, model)


@pytest.mark.parametrize("variant", ["full", "no_gate", "kl_only"])
@pytest.mark.parametrize("kind", NO_DECODERS)
def test_a_model_that_is_no_decoder_is_refused(kind: str, variant: str, ids: Tensor) -> None:
    model = NO_DECODERS[kind]()
    assert "decoder-only language model" in refusal(cache_if_any(model, ids), variant=variant)


def test_a_model_without_attention_is_refused(ids: Tensor) -> None:
    assert missing(["blocks.0.attn.hook_pattern", "heta_lens explains"], refusal(cache_of(mamba(), ids))) == ""


@pytest.mark.skipif(not zoo.HAS_HOOKED, reason="HookedTransformer was removed in TransformerLens 4")
def test_a_model_without_layers_is_refused(ids: Tensor) -> None:
    assert "blocks.0.attn.hook_pattern" in refusal(cache_of(hooked("HookedTransformer", n_layers=0), ids))


def test_a_model_in_training_mode_is_refused(ids: Tensor) -> None:
    model = zoo.bridge.__wrapped__("gpt2")
    taken = cache_of(model, ids)
    model.train()
    assert missing(["training mode", "model.eval()"], refusal(taken)) == ""


@pytest.mark.skipif(not zoo.HAS_HOOKED, reason="HookedTransformer was removed in TransformerLens 4")
def test_training_mode_changes_nothing_where_nothing_drops_out(ids: Tensor) -> None:
    model = zoo.hooked.__wrapped__("gpt2")
    clean = heta_lens.attribute(cache_of(model, ids), method="input_x_gradient").scores
    model.train()
    assert torch.equal(heta_lens.attribute(cache_of(model, ids), method="input_x_gradient").scores, clean)
    model.add_module("late", torch.nn.Dropout(0.1))
    assert missing(["late of the model is in training mode"], refusal(cache_of(model, ids))) == ""


def test_a_wrapped_model_in_training_mode_is_refused(ids: Tensor) -> None:
    model = zoo.bridge.__wrapped__("gpt2")
    taken = cache_of(model, ids)
    model.original_model.train()  # as a trainer leaves it
    assert missing(["training mode", "model.eval()"], refusal(taken)) == ""
