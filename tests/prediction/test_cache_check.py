"""Whether the live model still does what was cached."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformer_lens import ActivationCache

import heta_lens
from helpers import zoo
from helpers.asking import cache_of, relative
from helpers.odd_models import bert
from helpers.refusing import TARGET, N, missing, refusal
from heta_lens import attribute

pytestmark = [
    pytest.mark.usefixtures("unchecked"),
]


OWN_KINDS: dict[str, Callable[[], Any]] = {
    "gpt2": lambda: zoo.bridge.__wrapped__("gpt2"),
    "native": lambda: zoo.native_bridge.__wrapped__(),
    **({"hooked": lambda: zoo.hooked.__wrapped__("gpt2")} if zoo.HAS_HOOKED else {}),
}


@pytest.mark.parametrize("tokens", [None, [], torch.zeros(1, 0, dtype=torch.long)], ids=["none", "list", "tensor"])
def test_an_empty_context_is_refused(cache: Any, tokens: Any) -> None:
    def emptied(name: str, cached: Tensor) -> Tensor:
        return cached[:, :, :0, :0] if name.endswith("pattern") else cached[:, :0]

    empty = {name: emptied(name, cached) for name, cached in cache.cache_dict.items()}
    assert "empty" in refusal(ActivationCache(empty, cache.model), tokens=tokens)


def left_padded(model: Any, ids: Tensor) -> Any:
    padded = torch.cat([torch.full((1, 3), model.tokenizer.pad_token_id), ids], dim=1)
    mask = (padded != model.tokenizer.pad_token_id).long()
    return model.run_with_cache(padded, attention_mask=mask, names_filter=heta_lens.names_filter)[1]


def without_patterns(name: str) -> bool:
    return heta_lens.names_filter(name) and not name.endswith("pattern")


def other_weights() -> Any:
    model = zoo.bridge.__wrapped__("gpt2")
    zoo.randomize(model.original_model, 1)
    return model


REASONS: dict[str, tuple[Callable[[Any, Tensor], Any], dict[str, Any], list[str]]] = {
    "left padding": (left_padded, {}, ["padding token", "attribute_batch(cache, attention_mask=...)"]),
    "pos_slice": (
        lambda model, ids: model.run_with_cache(ids, pos_slice=slice(1, 4))[1],
        {},
        ["3 of the prompt's 6 positions", "pos_slice=", "run_with_cache without it"],
    ),
    "no model": (
        lambda model, ids: ActivationCache(cache_of(model, ids).cache_dict, None),
        {},
        ["cache.model is None", "set cache.model"],
    ),
    "pos_slice without patterns": (
        lambda model, ids: model.run_with_cache(ids, names_filter=without_patterns, pos_slice=slice(1, 4))[1],
        {},
        ["pos_slice=", "take it again"],
    ),
    "BOS only in tokens=": (
        lambda model, ids: cache_of(model, ids[:, 1:]),
        {"tokens": zoo.prompt(zoo.bridge("gpt2"), N)},
        ["prepend_bos=False", "pass the ids that were run"],
    ),
    "BOS only in the cache": (
        cache_of,
        {"tokens": zoo.prompt(zoo.bridge("gpt2"), N)[:, 1:]},
        ["begin with BOS", "model.to_tokens(text)"],
    ),
    "rolled tokens": (
        cache_of,
        {"tokens": zoo.prompt(zoo.bridge("gpt2"), N).roll(1)},
        ["tokens= do not match the cache: they are those of another prompt", "ids that were run"],
    ),
    "another model": (
        lambda model, ids: ActivationCache(cache_of(model, ids).cache_dict, other_weights()),
        {},
        ["no token of this model", "cache.model is the model it was taken from"],
    ),
    "another model, tokens given": (
        lambda model, ids: ActivationCache(cache_of(model, ids).cache_dict, other_weights()),
        {"tokens": zoo.prompt(zoo.bridge("gpt2"), N)},
        ["cache.model is not the model it was taken from"],
    ),
    "meta": (lambda model, ids: cache_of(model, ids).to("meta"), {}, ["meta device", "take it again"]),
    "BERT under sdpa": (
        lambda model, ids: cache_of(bert("sdpa"), ids),  # noqa: ARG005
        {},
        ["not a decoder-only language model"],
    ),
    "list": (cache_of, {"target": [1, 2]}, ["target=[1, 2] is a list", "tuple (a, b)", "targets="]),
    "one wrong token": (
        lambda model, ids: cache_of(model, ids[:, :1]),
        {"tokens": [9]},
        ["tokens= do not match the cache", "token 9"],
    ),
}


@pytest.mark.parametrize("situation", REASONS)
def test_a_refusal_gives_the_true_reason_and_the_way_out(situation: str, ids: Tensor) -> None:
    make, options, words = REASONS[situation]
    assert missing(words, refusal(make(zoo.bridge("gpt2"), ids), **options)) == ""


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_coarser_copy_of_a_cache_gives_the_scores_within_its_precision(cache: Any, dtype: torch.dtype) -> None:
    coarse = ActivationCache({name: cached.to(dtype) for name, cached in cache.cache_dict.items()}, cache.model)
    exact = attribute(cache, TARGET).scores
    assert relative(attribute(coarse, TARGET).scores, exact) < 4 * torch.finfo(dtype).eps


@pytest.mark.parametrize("kind", OWN_KINDS)
def test_a_model_with_nan_weights_is_refused_at_once(kind: str, ids: Tensor, forwards: Any) -> None:
    model = OWN_KINDS[kind]()
    next(iter(model.ln_final.parameters())).data[0] = torch.nan
    taken, runs = cache_of(model, ids), forwards(model)
    assert missing(["unembed.hook_in", "not finite", "position 0", "'<bos>'"], refusal(taken, None)) == ""
    assert len(runs) <= 1


def test_attention_that_is_nan_is_not_taken_for_an_encoders(ids: Tensor) -> None:
    model = zoo.bridge.__wrapped__("gpt2")
    model.blocks[0].attn.W_Q.data[0, 0, 0] = torch.nan
    taken = cache_of(model, ids)
    assert taken["pattern", 0].isnan().any()
    assert missing(["blocks.0.attn.hook_pattern", "not finite", "position 0"], refusal(taken, tokens=ids)) == ""


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("names_filter", [None, heta_lens.names_filter], ids=["full", "filtered"])
def test_logits_that_are_not_finite_are_refused_at_once(
    ids: Tensor, value: float, names_filter: Any, forwards: Any
) -> None:
    model = zoo.bridge("gpt2")

    def spoil(logits: Tensor, hook: Any) -> Tensor:  # noqa: ARG001
        return logits.index_fill(-1, torch.tensor([TARGET + 1]), value)

    with model.hooks(fwd_hooks=[("unembed.hook_out", spoil)]):
        taken = model.run_with_cache(ids, names_filter=names_filter)[1]
        runs = forwards(model)
        sentence = refusal(taken, None)
    assert "not finite" in sentence
    assert "logits" in sentence or "unembed.hook_out" in sentence
    assert len(runs) <= 1


PLACES: dict[str, tuple[int, ...]] = {
    "hook_embed": (0, 3, 1),
    "blocks.0.attn.hook_v": (0, 3, 1, 0),
    "blocks.1.attn.hook_pattern": (0, 1, 3, 2),
}


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("name", PLACES)
def test_a_cached_value_that_is_not_finite_is_named_with_its_token(
    cache: Any, ids: Tensor, name: str, value: float, forwards: Any
) -> None:
    cache.cache_dict[name] = cache.cache_dict[name].clone()
    cache.cache_dict[name][PLACES[name]] = value
    runs = forwards(cache.model)
    token = repr(cache.model.tokenizer.decode([int(ids[0, 3])]))
    assert missing([name, "not finite", "position 3", token], refusal(cache, tokens=ids)) == ""
    assert len(runs) <= 1


def test_a_cached_embedding_that_is_not_finite_is_named_also_where_no_tokens_are_given(cache: Any) -> None:
    cache.cache_dict["hook_embed"] = cache.cache_dict["hook_embed"].clone()
    cache.cache_dict["hook_embed"][0, 3, 1] = torch.nan
    assert missing(["hook_embed", "not finite", "position 3"], refusal(cache)) == ""
