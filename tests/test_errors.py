"""Whatever cannot be explained is refused by heta_lens itself, in one sentence that names what is wrong."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from asking import cache_of, explain, relative
from torch import Tensor
from torch.autograd.function import once_differentiable
from transformer_lens import ActivationCache
from transformer_lens.config import TransformerBridgeConfig
from transformer_lens.model_bridge import TransformerBridge

import heta_lens
import zoo
from heta_lens import METHODS, attribute

pytestmark = [
    pytest.mark.usefixtures("unchecked"),
    pytest.mark.filterwarnings("ignore:.*makes up.*of this score:UserWarning"),
]

N, TARGET = 6, 7
LONG = 24  # tokens enough for long work


OWN_KINDS: dict[str, Callable[[], Any]] = {
    "gpt2": lambda: zoo.bridge.__wrapped__("gpt2"),
    "native": lambda: zoo.native_bridge.__wrapped__(),
    **({"hooked": lambda: zoo.hooked.__wrapped__("gpt2")} if zoo.HAS_HOOKED else {}),
}


def refusal(cache: Any, target: Any = TARGET, **options: Any) -> str:
    """The one sentence with which heta_lens, and nothing below it, refuses."""
    with pytest.raises((ValueError, TypeError)) as refused:
        attribute(cache, target, **options)
    assert Path(refused.traceback[-1].path).parent == Path(heta_lens.__file__).parent
    sentence = str(refused.value)
    assert "\n" not in sentence
    assert len(sentence) < 400
    return sentence


def missing(words: list[str], sentence: str) -> str:
    """The sentence, if it lacks one of the words: empty is good."""
    return "" if all(word in sentence for word in words) else sentence


@pytest.fixture
def ids() -> Tensor:
    return zoo.prompt(zoo.bridge("gpt2"), N)


@pytest.fixture
def cache(ids: Tensor) -> Any:
    return cache_of(zoo.bridge("gpt2"), ids)


# ---------------------------------------------------------------------------------------------------------- targets
@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("Paris!", ["'Paris!'", "not one token", "'Par', 'is', '!'"]),
        ("", ["empty"]),
        (121, ["target=121", "no token id", "0 to 120"]),
        (-1, ["target=-1", "no token id", "0 to 120"]),
        (3.0, ["target=3.0", "token id", "text", "pair"]),
        (b"cat", ["target=b'cat'", "token id"]),
        (torch.tensor([1, 2]), ["token id", "pair"]),
        ((5,), ["(5,)", "pair (a, b)"]),
        ((1, 2, 3), ["(1, 2, 3)", "pair (a, b)"]),
        ((5, 5), ["(5, 5)", "itself"]),
        ((5, " cat!"), ["' cat!'", "not one token"]),
        ((5, 121), ["121", "0 to 120"]),
        ((5, None), ["None", "token id"]),
        (((1, 2), 3), ["(1, 2)", "token id"]),
    ],
    ids=repr,
)
def test_a_target_that_is_no_token_is_named(cache: Any, target: Any, words: list[str]) -> None:
    assert missing(words, refusal(cache, target)) == ""


def test_a_text_the_tokenizer_does_not_know_is_not_called_one_token(cache: Any) -> None:
    sentence = refusal(cache, "x")  # encodes to a single <unk>
    assert "'x'" in sentence
    assert "not one token of this model but 1" not in sentence


def test_a_text_needs_a_tokenizer(ids: Tensor) -> None:
    model = zoo.bridge.__wrapped__("gpt2")
    model.tokenizer = None
    assert missing(["' cat'", "no tokenizer", "token id"], refusal(cache_of(model, ids), " cat")) == ""


@pytest.mark.parametrize("names_filter", [None, heta_lens.names_filter], ids=["full", "filtered"])
def test_a_target_the_model_makes_impossible_is_named_and_all_others_can_be_explained(
    ids: Tensor, names_filter: Any
) -> None:
    model = zoo.bridge("gpt2")

    def forbid(logits: Tensor, hook: Any) -> Tensor:  # noqa: ARG001
        return logits.index_fill(-1, torch.tensor([TARGET]), -torch.inf)

    with model.hooks(fwd_hooks=[("unembed.hook_out", forbid)]):
        taken = model.run_with_cache(ids, names_filter=names_filter)[1]
        assert missing([repr(model.tokenizer.decode([TARGET])), "log p", "-inf"], refusal(taken)) == ""
        assert attribute(taken, TARGET + 1).scores.isfinite().all()


# --------------------------------------------------------------------------------------------------------- positions
@pytest.mark.parametrize(
    ("position", "words"),
    [
        (N, [f"position={N}", "outside", f"{N} tokens"]),
        (-N - 1, [f"position={-N - 1}", "outside", f"{N} tokens"]),
        (0, ["position=0", "first token", "nothing comes before"]),
        (-N, [f"position={-N}", "first token", "nothing comes before"]),
        (1.5, ["position=1.5"]),
        ("3", ["position='3'"]),
    ],
)
def test_a_position_without_context_is_named(cache: Any, position: Any, words: list[str]) -> None:
    assert missing(words, refusal(cache, None, position=position)) == ""


# ------------------------------------------------------------------------------------------------------------ tokens
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


def test_tokens_of_another_prompt_are_suspected(cache: Any, ids: Tensor) -> None:
    assert missing(["tokens=", "another prompt"], refusal(cache, tokens=ids.roll(1) + 1)) == ""


# ------------------------------------------------------------------------------------------------------------ caches
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


# ------------------------------------------------------------------------------------------------------------ models
def boot(config: transformers.PreTrainedConfig, model: type) -> Any:
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrapped = model(config).eval()
        return TransformerBridge.boot_transformers(
            "zoo/other", hf_model=wrapped, tokenizer=zoo.tokenizer(), dtype=torch.float32, device="cpu"
        ).eval()


SIZES = {"d_model": 8, "d_head": 2, "n_heads": 4, "n_layers": 2, "n_ctx": 16, "d_mlp": 16, "d_vocab": 121}


def bert(attention: str = "eager") -> Any:
    config = transformers.BertConfig(
        vocab_size=121, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16,
        attn_implementation=attention,
    )  # fmt: skip
    return boot(config, transformers.BertForMaskedLM)


def t5() -> Any:
    config = transformers.T5Config(
        vocab_size=121, d_model=8, d_kv=4, d_ff=16, num_layers=2, num_heads=2, decoder_start_token_id=0
    )
    return boot(config, transformers.T5ForConditionalGeneration)


def mamba() -> Any:
    config = transformers.MambaConfig(vocab_size=121, hidden_size=8, state_size=4, num_hidden_layers=2)
    return boot(config, transformers.MambaForCausalLM)


def bidirectional() -> Any:
    config = TransformerBridgeConfig(**SIZES, act_fn="gelu_new", device="cpu", attention_dir="bidirectional")
    with torch.random.fork_rng(devices=[]):
        return TransformerBridge.boot_native(config, tokenizer=zoo.tokenizer(), device="cpu").eval()


def hooked(kind: str, **options: Any) -> Any:
    import transformer_lens

    config = transformer_lens.HookedTransformerConfig(**{**SIZES, "act_fn": "relu", "device": "cpu", **options})
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return getattr(transformer_lens, kind)(config, tokenizer=zoo.tokenizer()).eval()


T5 = {"relative_attention_max_distance": 8, "relative_attention_num_buckets": 8, "tie_word_embeddings": False}
NO_DECODERS: dict[str, Callable[[], Any]] = {
    "bert": bert,
    "t5": t5,
    "bidirectional": bidirectional,
}
if zoo.HAS_HOOKED:
    NO_DECODERS |= {
        "HookedEncoder": lambda: hooked("HookedEncoder", attention_dir="bidirectional"),
        "HookedEncoderDecoder": lambda: hooked("HookedEncoderDecoder", decoder_start_token_id=0, **T5),
        "HookedTransformer": lambda: hooked("HookedTransformer", attention_dir="bidirectional"),
    }


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


@pytest.mark.parametrize("kind", ["bridge", "hooked"][: 1 + zoo.HAS_HOOKED])
def test_a_model_in_training_mode_is_refused(kind: str, ids: Tensor) -> None:
    model = {"bridge": zoo.bridge, "hooked": zoo.hooked}[kind].__wrapped__("gpt2")
    taken = cache_of(model, ids)
    model.train()
    assert missing(["training mode", "model.eval()"], refusal(taken)) == ""


def test_a_wrapped_model_in_training_mode_is_refused(ids: Tensor) -> None:
    model = zoo.bridge.__wrapped__("gpt2")
    taken = cache_of(model, ids)
    model.original_model.train()  # as a trainer leaves it
    assert missing(["training mode", "model.eval()"], refusal(taken)) == ""


@pytest.mark.skipif(not zoo.HAS_HOOKED, reason="HookedTransformer was removed in TransformerLens 4")
@pytest.mark.parametrize(("read", "written", "outside"), [(121, 10, 50), (121, 200, 200)], ids=["fewer", "more"])
def test_targets_are_what_a_model_writes_which_may_not_be_what_it_reads(
    read: int, written: int, outside: int, ids: Tensor
) -> None:
    model = hooked("HookedTransformer", d_vocab=read, d_vocab_out=written)
    taken = cache_of(model, ids)
    assert missing([f"target={outside}", "no token id", f"0 to {written - 1}"], refusal(taken, outside)) == ""
    assert attribute(taken, written - 1, variant="kl_only").target == written - 1


# ------------------------------------------------------------------------------------------------------- NaN, infinity
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


# ------------------------------------------------------------------------------------------------------------ options
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"beta": -1.0}, ["beta=-1.0", "at least 0"]),
        ({"gamma": -0.1}, ["gamma=-0.1", "at least 0"]),
        ({"beta": float("nan")}, ["beta=nan", "at least 0"]),
        ({"gamma": float("nan")}, ["gamma=nan", "at least 0"]),
        ({"beta": "much"}, ["beta='much'"]),
        ({"beta": 0, "gamma": 0}, ["beta=0", "gamma=0", "nothing"]),
        ({"probes": 0}, ["probes=0", "at least 1"]),
        ({"probes": -3}, ["probes=-3", "at least 1"]),
        ({"probes": 2.5}, ["probes=2.5"]),
        ({"seed": -1}, ["seed=-1", "at least 0"]),
        ({"seed": 1.5}, ["seed=1.5"]),
        ({"batch": 0}, ["batch=0", "at least 1"]),
        ({"batch": 1.5}, ["batch=1.5"]),
        ({"batch": "big"}, ["batch='big'"]),
        ({"variant": "ful"}, ["variant='ful'", "'full'", "'transition_only'", "'uniform_gate'", "did you mean 'full'"]),
        ({"variant": "hessian_only", "beta": 2.0}, ["variant='hessian_only'", "beta"]),
        ({"method": "hetta"}, ["method='hetta'", "'heta'"]),
        ({"method": "LIME"}, ["method='LIME'", "did you mean 'lime'"]),
        ({"method": None}, ["method=None", "'heta'", "a ready method"]),
        ({"method": ["lime"]}, ["method=['lime']", "'heta'"]),
        ({"method": METHODS["lime"]}, ["method=<class", "'heta'"]),
        ({"prob": 3}, ["no option 'prob'", "did you mean 'probes'", "variant", "batch"]),
        ({"steps": 3}, ["no option 'steps'", "variant", "batch"]),
        ({"norm": "l2"}, ["norm='l2'", "'hutchinson'", "'exact'", "'entrywise'"]),
        ({"kl": "forward"}, ["kl='forward'", "'orig_masked'", "'masked_orig'", "'js'"]),
        ({"support": "column"}, ["support='column'", "'block'", "'row'"]),
        ({"flow": "up"}, ["flow='up'", "'suffix'", "'direct'"]),
        ({"balance": "mean"}, ["balance='mean'", "'none'", "'sum'", "'max'"]),
        ({"value_norm": 3}, ["value_norm=3", "1, 2"]),
        ({"mask": "zeros"}, ["mask='zeros'", "zero", "mean", "vocab_mean", "token id", "vector"]),
        ({"mask": torch.zeros(2, 8)}, ["mask", "one vector", "(2, 8)"]),
        ({"mask": torch.tensor(3)}, ["mask", "one vector", "int64"]),
        ({"mask": 2.5}, ["mask=2.5"]),
        ({"mask": None}, ["mask=None"]),
        ({"mask": [0.0] * 8}, ["mask="]),
    ],
    ids=lambda given: str(given) if isinstance(given, dict) else "",
)
def test_a_wrong_option_is_refused_before_the_model_is_run(
    cache: Any, options: dict[str, Any], words: list[str], forwards: Any
) -> None:
    runs = forwards(cache.model)
    assert missing(words, refusal(cache, **options)) == ""
    assert runs == []


@pytest.mark.parametrize(
    "options",
    [{"probes": np.int64(2)}, {"seed": np.int32(3)}, {"batch": np.int64(4)}, {"beta": np.float32(0.5)}],
    ids=["probes", "seed", "batch", "beta"],
)
def test_numbers_may_be_numpys(cache: Any, options: dict[str, Any]) -> None:
    plain = {name: value.item() for name, value in options.items()}
    assert torch.equal(attribute(cache, TARGET, **options).scores, attribute(cache, TARGET, **plain).scores)


def test_an_id_to_mask_with_may_be_any_integer(cache: Any) -> None:
    found, expected = (attribute(cache, TARGET, mask=mask, variant="kl_only") for mask in (np.int64(5), 5))
    assert torch.equal(found.scores, expected.scores)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mask": torch.zeros(3)}, ["mask", "3 entries", "8"]),
        ({"mask": 121}, ["mask=121", "no token id", "0 to 120"]),
        ({"mask": -1}, ["mask=-1", "no token id", "0 to 120"]),
        ({"norm": "exact", "support": "row"}, ["norm='exact'", f"2^{8 * LONG}", "2^20", "hutchinson"]),
    ],
    ids=["size", "too high", "negative", "exact"],
)
def test_an_option_that_does_not_fit_the_model_is_refused_before_long_work(
    options: dict[str, Any], words: list[str], forwards: Any
) -> None:
    model = zoo.bridge("gpt2")
    cache = cache_of(model, zoo.prompt(model, LONG))
    runs = forwards(model)
    assert missing(words, refusal(cache, **options)) == ""
    assert len(runs) <= 4


def test_a_wide_model_is_too_much_for_the_exact_norm(forwards: Any) -> None:
    model = zoo.bridge("gpt2", d_model=24)
    cache = cache_of(model, zoo.prompt(model, N))
    runs = forwards(model)
    assert missing(["norm='exact'", "2^24", "2^20", "hutchinson"], refusal(cache, norm="exact")) == ""
    assert len(runs) <= 4
    assert attribute(cache, TARGET, beta=0).scores.isfinite().all()


# ------------------------------------------------------------------------------------------------ second derivatives
class Smooth(torch.autograd.Function):
    """sin(3x), twice differentiable."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return (3 * x).sin()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 3 * (3 * ctx.saved_tensors[0]).cos()


class Careful(Smooth):
    """Looks at its gradient, which cannot be done to a batch of them."""

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        if not gradient.isfinite().all():
            raise ValueError("not finite")
        return gradient * 3 * (3 * ctx.saved_tensors[0]).cos()


class Once(Smooth):
    """Says that it has no second derivative."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 3 * (3 * ctx.saved_tensors[0]).cos()


class Detached(Smooth):
    """Has no second derivative, and does not say so."""

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 3 * (3 * ctx.saved_tensors[0]).cos().detach()


def through(function: type[torch.autograd.Function], module: Any) -> None:
    """Put a function after a module, unnoticed: no hook."""
    forward = module.forward
    vars(module)["forward"] = lambda *args, **kwargs: function.apply(forward(*args, **kwargs))


def whole(model: Any) -> Any:
    """Everything passes through the last norm."""
    return model.ln_final


def first_mlp(model: Any) -> Any:
    return model.blocks[0].mlp


def last_mlp(model: Any) -> Any:
    return model.blocks[1].mlp


@pytest.mark.parametrize("function", [Once, Detached])
@pytest.mark.parametrize("where", [whole, first_mlp, last_mlp])
@pytest.mark.parametrize("kind", OWN_KINDS)
def test_a_model_without_second_derivatives_is_refused_before_long_work(
    kind: str, where: Any, function: Any, forwards: Any
) -> None:
    model = OWN_KINDS[kind]()
    through(function, where(model))
    cache = cache_of(model, zoo.prompt(model, LONG))
    runs = forwards(model)
    assert missing(["differentiate", 'variant="kl_only"'], refusal(cache).replace("'", '"')) == ""
    assert len(runs) <= 8
    assert attribute(cache, TARGET, variant="kl_only").scores.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("watched", [False, True])
def test_a_layer_that_says_so_is_refused_in_any_precision_and_under_hooks(dtype: torch.dtype, watched: bool) -> None:
    model = zoo.bridge.__wrapped__("gpt2", dtype)
    through(Once, last_mlp(model))
    if watched:
        model.add_hook("blocks.0.hook_resid_post", lambda activation, hook: None)  # noqa: ARG005
    assert "differentiate" in refusal(cache_of(model, zoo.prompt(model, N)))


@pytest.mark.parametrize("function", [Once, Detached])
def test_a_model_whose_attention_has_no_second_derivative_is_refused(function: Any) -> None:
    model = OWN_KINDS["gpt2"]()
    through(function, model.blocks[1].ln1)
    assert "differentiate" in refusal(cache_of(model, zoo.prompt(model, N)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("length", "seed"), [(15, 11), (6, 43)])
def test_a_sharply_curved_model_in_low_precision_is_not_refused(length: int, seed: int, dtype: torch.dtype) -> None:
    model = zoo.bridge("gemma2", dtype)
    for target, probes_seed in ((TARGET, 0), (80, 11)):
        found = explain(model, zoo.prompt(model, length, seed), target, seed=probes_seed, probes=1)
        assert found.scores.isfinite().all()


@pytest.mark.parametrize("kind", OWN_KINDS)
def test_a_backward_pass_that_cannot_be_batched_is_run_one_by_one(kind: str) -> None:
    ids, found = zoo.prompt(zoo.bridge("gpt2"), N), []
    for function in (Smooth, Careful):
        model = OWN_KINDS[kind]()
        through(function, first_mlp(model))
        found.append(explain(model, ids, TARGET).parts["curvature"])
    assert relative(found[1], found[0]) < 1e-9


@pytest.mark.parametrize("error", [RuntimeError("mine"), NotImplementedError("mine"), ZeroDivisionError("mine")])
@pytest.mark.parametrize("call", [1, 2, 3, 8])
def test_an_error_in_a_callers_hook_is_the_callers(cache: Any, call: int, error: Exception) -> None:
    calls = []

    def failing(activation: Tensor, hook: Any) -> None:  # noqa: ARG001
        calls.append(1)
        if len(calls) == call:
            raise error

    with (
        cache.model.hooks(fwd_hooks=[("blocks.0.hook_resid_post", failing)]),
        pytest.raises(type(error), match=r"^mine$"),
    ):
        attribute(cache, TARGET)
