"""What is read from a cache; what is missing from it is named."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformer_lens import ActivationCache

from helpers import zoo
from helpers.asking import cache_of
from helpers.refusing import TARGET, missing, refusal
from heta_lens import attribute

pytestmark = [
    pytest.mark.usefixtures("unchecked"),
]


@pytest.mark.parametrize("name", ["hook_embed", "blocks.0.attn.hook_pattern", "blocks.1.attn.hook_v"])
def test_a_cache_that_lacks_an_activation_is_told_which_and_how_to_get_it(cache: Any, name: str, forwards: Any) -> None:
    lacking = ActivationCache({key: cached for key, cached in cache.cache_dict.items() if key != name}, cache.model)
    runs = forwards(cache.model)
    sentence = refusal(lacking)
    assert missing([repr(name), "names_filter=heta_lens.names_filter"], sentence) == ""
    assert len(runs) <= 3


@pytest.mark.parametrize("name", ["blocks.0.attn.hook_pattern", "blocks.1.attn.hook_v", "unembed.hook_in"])
def test_what_a_method_does_not_read_may_be_lacking(cache: Any, name: str) -> None:
    lacking = ActivationCache({key: cached for key, cached in cache.cache_dict.items() if key != name}, cache.model)
    found = attribute(lacking, TARGET, variant="no_gate", beta=0)
    assert torch.equal(found.scores, attribute(cache, TARGET, variant="no_gate", beta=0).scores)


@pytest.mark.parametrize(
    ("thing", "kind"),
    [
        (lambda cache: dict(cache.cache_dict), "dict"),
        (lambda cache: (torch.zeros(1), cache), "tuple"),
        (lambda cache: cache.model, "TransformerBridge"),
        (lambda cache: None, "NoneType"),  # noqa: ARG005
        (lambda cache: "The cat sat", "str"),  # noqa: ARG005
    ],
    ids=["dict", "what run_with_cache returns", "model", "None", "text"],
)
def test_what_is_no_cache_is_refused(cache: Any, thing: Any, kind: str) -> None:
    assert missing(["ActivationCache", "run_with_cache", kind], refusal(thing(cache))) == ""


def test_a_cache_without_its_model_is_refused(cache: Any) -> None:
    orphan = ActivationCache(cache.cache_dict, None)
    sentence = refusal(orphan)
    assert "model" in sentence
    assert "not a ActivationCache" not in sentence


def test_a_cache_of_two_prompts_is_refused(ids: Tensor) -> None:
    two = cache_of(zoo.bridge("gpt2"), ids.repeat(2, 1))
    assert missing(["2 prompts", "one"], refusal(two)) == ""
