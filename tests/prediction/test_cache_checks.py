"""Checks of a cache against the live model: activations, tokens, padding, reuse, blocks alone, gradients."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformer_lens import ActivationCache

import heta_lens
from helpers import quantised, zoo
from helpers.asking import TARGET, N, cache_of, gpt2, missing, predict, refusal
from helpers.odd_models import with_side_channel
from helpers.quantised import QuantisedLinear, Staircase
from heta_lens import Prediction, attribute
from heta_lens.data import recall
from heta_lens.model.adapter import ModelAdapter
from heta_lens.prediction import gradients
from heta_lens.prediction.prompt import why_not_alone

pytestmark = pytest.mark.usefixtures("unchecked")


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


def other_weights() -> Any:
    model = zoo.bridge.__wrapped__("gpt2")
    zoo.randomize(model.original_model, 1)
    return model


REASONS: dict[str, tuple[Callable[[Any, Tensor], Any], dict[str, Any], list[str]]] = {
    "left padding": (left_padded, {}, ["with an attention_mask, which attribute_batch(cache, attention_mask=...)"]),
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
    "BOS only in tokens=": (
        lambda model, ids: cache_of(model, ids[:, 1:]),
        {"tokens": zoo.prompt(zoo.bridge("gpt2"), N)},
        ["pass the ids that were run, with or without BOS"],
    ),
    "rolled tokens": (
        cache_of,
        {"tokens": zoo.prompt(zoo.bridge("gpt2"), N).roll(1)},
        ["tokens=, if given, are those of another prompt"],
    ),
    "another model": (
        lambda model, ids: ActivationCache(cache_of(model, ids).cache_dict, other_weights()),
        {},
        ["no token of this model", "cache.model is the model it was taken from"],
    ),
    "one wrong token": (
        lambda model, ids: cache_of(model, ids[:, :1]),
        {"tokens": [9]},
        ["tokens=, if given, are those of another prompt"],
    ),
}


@pytest.mark.parametrize("situation", REASONS)
def test_a_refusal_gives_the_true_reason_and_the_way_out(situation: str, ids: Tensor) -> None:
    make, options, words = REASONS[situation]
    assert missing(words, refusal(make(zoo.bridge("gpt2"), ids), **options)) == ""


def test_a_new_hook_on_embeddings_is_the_reason_without_tokens(ids: Tensor) -> None:
    model = zoo.bridge("gpt2")
    taken = cache_of(model, ids)

    def change(live: Tensor, hook: Any) -> Tensor:  # noqa: ARG001
        return torch.cat([live[:, :3], 2 * live[:, 3:]], 1)

    with model.hooks(fwd_hooks=[("hook_embed", change)]):
        assert missing(["at position 3", "hooks on the model have changed"], refusal(taken, None)) == ""


@pytest.mark.parametrize("kind", zoo.NEW)
def test_a_model_with_nan_weights_is_refused_at_once(kind: str, ids: Tensor, forwards: Any) -> None:
    model = zoo.NEW[kind]()
    next(iter(model.ln_final.parameters())).data[0] = torch.nan
    taken, runs = cache_of(model, ids), forwards(model)
    assert missing(["unembed.hook_in", "not finite", "position 0", "'<bos>'"], refusal(taken, None)) == ""
    assert len(runs) <= 1


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


def test_a_cache_without_embeddings_is_told_how_to_get_them(cache: Any, forwards: Any) -> None:
    name = "hook_embed"
    lacking = ActivationCache({key: cached for key, cached in cache.cache_dict.items() if key != name}, cache.model)
    runs = forwards(cache.model)
    sentence = refusal(lacking)
    assert missing([repr(name), "names_filter=heta_lens.names_filter"], sentence) == ""
    assert len(runs) <= 7  # of the checks of a prefix and of blocks that run alone


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


@pytest.mark.parametrize("build", zoo.models())
def test_tokens_are_recovered_from_the_cache_of_every_kind_of_model(build: Any) -> None:
    ids = zoo.prompt(build(), N)
    assert Prediction.from_cache(cache_of(build(), ids)).ids.tolist() == ids[0].tolist()


def duplicate(model: Any, token: int, into: int) -> None:
    """Give the token ``into`` the embedding of another."""
    tables = {id(weight): weight for name, weight in model.named_parameters() if is_embedding(model, name, weight)}
    for weight in tables.values():
        weight.data[into] = weight.data[token]


def is_embedding(model: Any, name: str, weight: Tensor) -> bool:
    return weight.shape == (model.cfg.d_vocab, model.cfg.d_model) and "unembed" not in name


@pytest.mark.parametrize(("position", "double"), [(None, N - 1), (4, 3), (3, 3)], ids=["last", "context", "target"])
def test_tokens_with_one_embedding_matter_in_the_context_and_as_the_target(position: int | None, double: int) -> None:
    model = gpt2()
    ids = zoo.prompt(model, N)
    duplicate(model, int(ids[0, double]), into=next(token for token in range(20, 40) if token not in ids))
    with pytest.raises(ValueError, match=f"share the cached embedding at position {double}: pass tokens="):
        attribute(cache_of(model, ids), position=position)


def tried(build: Any, length: int = 6, *, hooked: bool = False, wrong: float = 0.0) -> tuple[Any, str]:
    """Of a prompt whose clean prediction is off by so much."""
    model = build()
    prediction = predict(model, zoo.prompt(model, length), 7)
    logits = prediction.logits + wrong * torch.arange(len(prediction.logits))
    hooks = (print,) if hooked else ()
    prefix = replace(prediction.prompt, logits={length: logits}, user_hooks=hooks, known_prefix=None).prefix()
    return prefix.kept, prefix.note


@pytest.mark.parametrize("build", zoo.models("bridge-(gpt2|llama)|hooked-llama"))
def test_prefixes_are_kept_where_a_run_from_the_middle_predicts_the_same(build: Any) -> None:
    kept, why = tried(build)
    assert (len(kept), why) == (2, "on")


@pytest.mark.parametrize("build", zoo.models("bridge-gpt2"))
def test_a_run_that_predicts_something_else_is_noticed(build: Any) -> None:
    kept, why = tried(build, wrong=1e-3)
    assert kept is None
    assert why.startswith("off: continuing from kept keys and values changes the prediction by")


@pytest.mark.parametrize("last", [False, True], ids=["told", "remembered"])
def test_a_block_that_does_something_else_is_noticed(last: bool) -> None:
    """Also if it remembers what it was told in the last run of the model."""
    model = with_side_channel(last=last)
    why = why_not_alone(ModelAdapter(model), zoo.prompt(model, 9)[0])
    assert why.startswith("block 1 does something else when it runs alone")


STORY = next(recall.stories("test", facts=2)).text


def cached(kind: type[QuantisedLinear]) -> tuple[Any, torch.Tensor]:
    model = quantised.demo(kind)
    ids = model.to_tokens(STORY)
    return model.run_with_cache(ids, names_filter=heta_lens.names_filter)[1], ids


@pytest.fixture(autouse=True)
def unchecked_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradients, "_passed", set())


def test_right_gradients_pass_and_are_checked_once() -> None:
    cache, ids = cached(QuantisedLinear)
    first, second = (heta_lens.attribute(cache, tokens=ids, method="input_x_gradient") for _ in range(2))
    assert first.diagnostics.checks["gradients"]["backwards"] == 1
    assert "gradients" not in second.diagnostics.checks


@pytest.mark.parametrize("method", ["heta", "input_x_gradient", "integrated_gradients", "attn_lrp", "grad_cam"])
def test_missing_gradients_are_refused(method: str) -> None:
    cache, ids = cached(Staircase)
    with pytest.raises(ValueError, match=r"quantised layers \(model\.layers\.0\.self_attn\.q_proj …\) are not how"):
        heta_lens.attribute(cache, tokens=ids, method=method)


@pytest.mark.parametrize("method", ["kl_only", "leave_one_out", "attention_rollout", "attention_norm", "random"])
def test_methods_without_gradients_go_on(method: str) -> None:
    cache, ids = cached(Staircase)
    options = {"variant": method} if method == "kl_only" else {"method": method}
    assert heta_lens.attribute(cache, tokens=ids, **options).scores.isfinite().all()
