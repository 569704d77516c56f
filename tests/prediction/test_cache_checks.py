"""Checks of a cache against the live model: activations, tokens, padding, reuse, blocks alone, gradients."""

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformer_lens import ActivationCache

import heta_lens
from helpers import quantised, zoo
from helpers.asking import TARGET, N, cache_of, explain, gpt2, missing, predict, refusal, relative, same
from helpers.odd_models import bert, fail_alone, with_side_channel
from helpers.quantised import QuantisedLinear, Staircase
from heta_lens import Prediction, attribute
from heta_lens._util.work import counting
from heta_lens.data import recall
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.hooks import KeysValues
from heta_lens.prediction import gradients
from heta_lens.prediction.checks import blocks_alone, check_unpadded, real_parts, reusable_prefix
from heta_lens.prediction.gradients import gradient_error

pytestmark = [
    pytest.mark.usefixtures("unchecked"),
]


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


@pytest.mark.parametrize(
    ("tokens", "error", "words"),
    [
        (lambda ids: "The cat", TypeError, ["tokens=", "ids", "text"]),  # noqa: ARG005
        (lambda ids: ["The", " cat"] * 3, (TypeError, ValueError), ["tokens="]),  # noqa: ARG005
        (lambda ids: [None] * N, (TypeError, ValueError), ["tokens="]),  # noqa: ARG005
        (lambda ids: [[5, 6], [7]], (TypeError, ValueError), ["tokens="]),  # noqa: ARG005
        (lambda ids: ids[:, :-1], ValueError, ["tokens=", f"{N} of them", f"(1, {N - 1})"]),
        (lambda ids: torch.cat([ids, ids], dim=1), ValueError, [f"{N} of them", f"(1, {2 * N})", "only a part cached"]),
        (lambda ids: ids.double(), ValueError, ["tokens=", "float64"]),
        (lambda ids: ids.bool(), ValueError, ["tokens=", "bool"]),
        (lambda ids: ids.repeat(2, 1), ValueError, [f"{N} of them", f"(2, {N})"]),
        (lambda ids: torch.full_like(ids, 121), ValueError, ["tokens=", "121", "0 to 120"]),
        (lambda ids: torch.full_like(ids, -1), ValueError, ["tokens=", "-1", "0 to 120"]),
        (lambda ids: [], ValueError, ["tokens=", f"{N} of them"]),  # noqa: ARG005
    ],
    ids=[
        "text",
        "texts",
        "nothing",
        "ragged",
        "short",
        "long",
        "floats",
        "bools",
        "two prompts",
        "too high",
        "negative",
        "none",
    ],
)
def test_tokens_that_cannot_be_those_of_the_cache_are_refused(
    cache: Any, ids: Tensor, tokens: Any, error: Any, words: list[str]
) -> None:
    sentence = refusal(cache, tokens=tokens(ids))
    assert missing(words, sentence) == ""
    with pytest.raises(error):
        attribute(cache, TARGET, tokens=tokens(ids))


CHEAP = {"variant": "kl_only"}


@pytest.mark.parametrize(
    "form",
    [lambda ids: ids, lambda ids: ids[0], lambda ids: ids[0].tolist(), lambda ids: tuple(ids[0].tolist()), Tensor.int],
    ids=["batch", "flat", "list", "tuple", "int32"],
)
def test_tokens_may_have_any_of_the_shapes_ids_come_in(form: Callable[[Tensor], Any]) -> None:
    model, ids = zoo.bridge("gpt2"), zoo.prompt(zoo.bridge("gpt2"), N)
    given = attribute(cache_of(model, ids), TARGET, tokens=form(ids), **CHEAP)
    assert given.ids.tolist() == ids[0].tolist()
    assert same(given, attribute(cache_of(model, ids), TARGET, **CHEAP))


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


def unused(ids: Tensor) -> list[int]:
    return [token for token in range(20, 40) if token not in ids[0].tolist()]


@pytest.mark.parametrize("kind", zoo.NEW)
def test_tokens_with_one_embedding_are_told_apart_only_by_the_caller(kind: str) -> None:
    model = zoo.NEW[kind]()
    ids = zoo.prompt(model, N)
    double = unused(ids)[0]
    duplicate(model, int(ids[0, 3]), into=double)
    cache = cache_of(model, ids)
    with pytest.raises(ValueError, match=f"{double}.* share the cached embedding at position 3: pass tokens="):
        attribute(cache)
    assert attribute(cache, TARGET, tokens=ids, **CHEAP).ids.tolist() == ids[0].tolist()


def test_tokens_with_one_embedding_do_no_harm_after_the_position_that_is_explained() -> None:
    model = gpt2()
    ids = zoo.prompt(model, N)
    duplicate(model, int(ids[0, 3]), into=unused(ids)[0])
    cache = cache_of(model, ids)
    found = attribute(cache, position=2, **CHEAP)
    assert found.target == int(ids[0, 2])
    assert relative(found.scores, explain(model, ids[:, :2], found.target, **CHEAP).scores) < 1e-9
    assert attribute(cache, TARGET, position=3, **CHEAP).ids.tolist() == ids[0, :3].tolist()


@pytest.mark.parametrize(("position", "double"), [(None, N - 1), (4, 3), (3, 3)], ids=["last", "context", "target"])
def test_tokens_with_one_embedding_matter_in_the_context_and_as_the_target(position: int | None, double: int) -> None:
    model = gpt2()
    ids = zoo.prompt(model, N)
    duplicate(model, int(ids[0, double]), into=unused(ids)[0])
    with pytest.raises(ValueError, match=f"share the cached embedding at position {double}: pass tokens="):
        attribute(cache_of(model, ids), position=position)


@pytest.mark.parametrize("wrong", range(N))
def test_tokens_that_were_not_cached_are_refused_by_their_position(wrong: int) -> None:
    model, ids = zoo.bridge("gpt2"), zoo.prompt(zoo.bridge("gpt2"), N)
    given = ids.clone()
    given[0, wrong] = unused(ids)[0]
    with pytest.raises(ValueError, match=f"tokens= do not match the cache.*{given[0, wrong]} at position {wrong} "):
        attribute(cache_of(model, ids), TARGET, tokens=given)


def test_the_real_part_of_each_row() -> None:
    assert real_parts(torch.tensor([[0, 1, 1], [1, 1, 0]]), 2, 3) == [slice(1, 3), slice(0, 2)]


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ([[1, 1]], r"must be of shape \(1, 3\)"),
        ([[1, 2, 1]], "must be 1 where a token is real"),
        ([[0, 0, 0]], "leaves nothing of prompt 0"),
        ([[1, 0, 1]], "leaves out position 1 inside prompt 0"),
    ],
)
def test_other_masks_are_refused(mask: list[list[int]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        real_parts(mask, 1, 3)


def test_padding_without_a_mask_is_suspected() -> None:
    check_unpadded([[1, 5, 6]], 0, 1)
    check_unpadded([[1, 5, 6]], 1, 1)  # a BOS that is the padding token too
    for ids, where in (([0, 5], "begins"), ([5, 0], "ends")):
        with pytest.raises(ValueError, match=f"{where} with the padding token 0"):
            check_unpadded([ids], 0, 1)


def tried(build: Any, length: int = 6, *, hooked: bool = False, wrong: float = 0.0) -> tuple[Any, str]:
    """Of a prompt whose clean prediction is off by so much."""
    model = build()
    prediction = predict(model, zoo.prompt(model, length), 7)
    prompt = prediction.prompt
    log_probs = (prediction.log_probs + wrong * torch.arange(len(prediction.log_probs))).log_softmax(-1)
    prefix = reusable_prefix(prompt.adapter, prompt.ids, prompt.embeddings, log_probs, hooked)
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


@pytest.mark.parametrize("build", zoo.models("bridge-native"))
def test_a_model_that_keeps_nothing_is_run_in_full(build: Any) -> None:
    assert tried(build) == (None, "off: only 0 of this model's 2 layers keep keys and values")


@pytest.fixture
def certain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every model predicts token 7 with a probability of one, to rounding, whatever came before."""
    run = ModelAdapter.run

    def surely(self: ModelAdapter, *args: Any, **options: Any) -> Tensor:
        return run(self, *args, **options) + 60 * torch.nn.functional.one_hot(torch.tensor(7), self.vocabulary)

    monkeypatch.setattr(ModelAdapter, "run", surely)


@pytest.mark.usefixtures("certain")
@pytest.mark.parametrize("build", zoo.models("bridge-gpt2|hooked-llama"))
def test_a_certain_prediction_does_not_hide_that_the_prefix_is_ignored(
    build: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tried(build)[1] == "on"
    resume = ModelAdapter.resume

    def without_prefix(self: ModelAdapter, kept: KeysValues, start: int, stop: int, batch: int) -> dict[str, Any]:
        return resume(self, kept, 0, stop - start, batch)

    def of_something_else(factor: float) -> Callable[..., dict[str, Any]]:
        return lambda self, kept, *rest: resume(self, [(factor * keys, values) for keys, values in kept], *rest)

    monkeypatch.setattr(ModelAdapter, "resume", without_prefix)
    assert "changes those of layer 0 (from shape" in tried(build)[1]
    for factor in (2, math.nan):
        monkeypatch.setattr(ModelAdapter, "resume", of_something_else(factor))
        assert "changes those of layer 0 (off by" in tried(build)[1]


@pytest.mark.usefixtures("certain")
@pytest.mark.parametrize("build", zoo.models("bridge-gpt2"))
def test_a_certain_prediction_does_not_hide_what_becomes_of_the_other_tokens(build: Any) -> None:
    assert "changes the prediction of unlikely tokens (off by" in tried(build, wrong=0.1)[1]


@pytest.mark.parametrize("build", zoo.models("bridge-gpt2"))
def test_hooks_and_single_tokens_need_no_trial(build: Any) -> None:
    assert tried(build, hooked=True)[1].startswith("off: hooks on the model")
    assert tried(build, 1) == (None, "off: the context is a single token")


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("build", zoo.models())
def test_blocks_of_every_kind_of_model_can(build: Any, dtype: torch.dtype) -> None:
    model = build(dtype)
    for length in (1, 9):
        with counting(Counter()) as counts:
            assert blocks_alone(ModelAdapter(model), zoo.prompt(model, length)[0]) == (True, "")
        assert counts["forwards"] == 3


@pytest.mark.parametrize("last", [False, True], ids=["told", "remembered"])
def test_a_block_that_does_something_else_is_noticed(last: bool) -> None:
    """Also if it remembers what it was told in the last run of the model."""
    model = with_side_channel(last=last)
    same, why = blocks_alone(ModelAdapter(model), zoo.prompt(model, 9)[0])
    assert not same and why.startswith("block 1 does something else when it runs alone")


@pytest.mark.parametrize("error", [KeyError("positions"), torch.OutOfMemoryError("CUDA out of memory")])
def test_a_block_that_cannot_is_noticed_unless_memory_is_short(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = zoo.bridge("gpt2")
    fail_alone(monkeypatch, error)
    if isinstance(error, torch.OutOfMemoryError):
        with pytest.raises(torch.OutOfMemoryError):
            blocks_alone(ModelAdapter(model), zoo.prompt(model, 9)[0])
    else:
        same, why = blocks_alone(ModelAdapter(model), zoo.prompt(model, 9)[0])
        assert not same and why == "block 1 cannot run alone (KeyError: 'positions')"


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


def test_how_far_they_are_off_is_said() -> None:
    cache, ids = cached(Staircase)
    assert gradient_error(Prediction.from_cache(cache, tokens=ids)) == pytest.approx(1, abs=0.05)


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
