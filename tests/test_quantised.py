"""Models with 8-bit weights: every method gives what it gives for the same numbers as ordinary weights."""

import logging
from typing import Any

import pytest
import torch

import heta_lens
from helpers import quantised, zoo
from helpers.asking import QUICK, doubts_allowed
from heta_lens.data import recall
from heta_lens.methods.registry import METHODS


def scores(model: Any, method: str, ids: torch.Tensor | None = None, **options: Any) -> torch.Tensor:
    ids = zoo.prompt(model) if ids is None else ids
    _, cache = model.run_with_cache(ids, names_filter=heta_lens.names_filter)
    with doubts_allowed():
        return heta_lens.attribute(cache, tokens=ids, method=method, **(options or QUICK.get(method, {}))).scores


@pytest.mark.sample(quick=3, test=12)
@pytest.mark.usefixtures("few_words")
@pytest.mark.parametrize("method", METHODS)
def test_every_method_takes_them(method: str) -> None:
    packed, plain = (scores(model, method) for model in quantised.pair("llama", torch.float64))
    torch.testing.assert_close(packed, plain, rtol=1e-4, atol=1e-6 * float(plain.abs().max()))


@pytest.mark.parametrize("variant", ["lr", "gn", "kl_only", "transition_only"])
def test_every_kind_of_curvature_takes_them(variant: str) -> None:
    packed, plain = (scores(model, "heta", variant=variant) for model in quantised.pair("llama", torch.float64))
    torch.testing.assert_close(packed, plain, rtol=1e-4, atol=1e-6 * float(plain.abs().max()))


def test_an_activation_is_differentiated_before_any_token_was() -> None:
    packed, plain = quantised.pair("llama", torch.float64)
    ids, target = zoo.prompt(packed), heta_lens.activation("blocks.0.hook_resid_post", index=0)
    caches = [model.run_with_cache(ids)[1] for model in (packed, plain)]
    found, expected = (heta_lens.attribute(cache, target, tokens=ids, method="fast").scores for cache in caches)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6 * float(expected.abs().max()))


def test_a_result_says_that_its_model_is_quantised() -> None:
    packed, plain = quantised.pair("llama", torch.float64)
    for model, known in ((packed, True), (plain, False)):
        ids = zoo.prompt(model)
        found = heta_lens.attribute(model.run_with_cache(ids)[1], tokens=ids, method="random").options["model"]
        assert found["quantised"] is known


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("method", ["heta", "leave_one_out", "input_x_gradient", "attn_lrp", "attention_norm"])
def test_bitsandbytes(method: str, caplog: pytest.LogCaptureFixture) -> None:
    """Whose kernels round activations too, to 8 bits."""
    pytest.importorskip("bitsandbytes")
    caplog.set_level(logging.ERROR, "bitsandbytes")
    packed = quantised.bitsandbytes()
    ids = packed.to_tokens(next(recall.stories("test", facts=2)).text)
    found, expected = (scores(model, method, ids) for model in (packed, quantised.bitsandbytes_plain(packed)))
    assert (found - expected).abs().sum() < 0.1 * expected.abs().sum()
