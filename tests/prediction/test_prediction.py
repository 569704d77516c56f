"""Predictions: what is explained, caches of every sort, the run that checks them, and hooks that come and go."""

from contextlib import nullcontext
from math import exp
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformer_lens import ActivationCache

import heta_lens
from helpers import zoo
from helpers.asking import cache_of, explain, relative, same, token
from heta_lens import Prediction, attribute
from heta_lens.data import recall

N, PROBES, TARGET = 6, 3, 7
SOME_KINDS = "bridge-(gpt2|native)|hooked-llama"
CHEAP = {"variant": "gs"}


@pytest.mark.parametrize("build", zoo.models(SOME_KINDS))
def test_by_default_the_most_likely_next_token_is_explained(build: Any) -> None:
    model, ids = build(), zoo.prompt(build(), N)
    attribution = explain(model, ids, **CHEAP)
    assert attribution.target == int(model(ids)[0, -1].argmax())
    assert attribution.diagnostics["target_rank"] == 1


def test_the_most_likely_next_tokens_are_kept_but_not_of_an_activation() -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, N)
    log_probs = model(ids)[0, -1].log_softmax(-1)
    how: Any = {"method": "leave_one_out"}
    for target in (3, lambda logits: logits[3]):
        candidates = explain(model, ids, target, **how).diagnostics["candidates"]
        assert [log_prob for _, log_prob in candidates] == pytest.approx(log_probs.topk(5).values.tolist(), abs=1e-4)
    read = heta_lens.activation("blocks.0.mlp.hook_post", index=0)
    found = explain(model, ids, read, **how)
    assert "candidates" not in found.diagnostics and found.diagnostics["target_value"] is not None


@pytest.mark.parametrize(
    ("text", "meant"),
    [(" cat", " cat"), ("cat", " cat"), ("When", "When"), (" When", "When"), (" t", " t"), ("t", "t")],
)
def test_a_text_is_its_token_with_the_leading_space_given_or_else_toggled(text: str, meant: str) -> None:
    attribution = explain(zoo.bridge("gpt2"), zoo.prompt(zoo.bridge("gpt2"), N), text, **CHEAP)
    assert attribution.target == token(meant)
    assert attribution.target_text == meant


@pytest.fixture
def llama() -> Any:
    """A model whose tokenizer has two tokens for a full stop: a piece, and a byte to fall back to."""
    model = zoo.bridge.__wrapped__("llama")
    model.tokenizer = zoo.sentencepiece(range(0x2C, 0x30), missing="#,")
    return model


def test_the_token_that_was_taken_for_a_text_is_named(llama: Any, tmp_path: Path) -> None:
    piece, comma = llama.tokenizer.convert_tokens_to_ids([".", "<0x2C>"])
    found = explain(llama, zoo.prompt(llama, N), ".", **CHEAP)
    log_prob = float(found.diagnostics["target_log_prob"])
    assert (found.target, found.target_text, found.diagnostics["target_token"]) == (piece, ".", ".")
    assert f"token {piece} '.': p = {exp(log_prob):.3g} (rank" in repr(found)
    found.save(tmp_path / "a.safetensors")
    assert repr(heta_lens.Attribution.load(tmp_path / "a.safetensors")) == repr(found)
    contrast = explain(llama, zoo.prompt(llama, N), (".", ","), **CHEAP)
    assert contrast.target == (piece, comma)  # for a comma there is nothing but its byte
    assert f"against token {comma} ',': p = " in repr(contrast)


@pytest.mark.parametrize("position", [1, 3, -1])
@pytest.mark.parametrize("build", zoo.models("bridge-(gpt2|gemma2|native)|hooked-local"))
def test_a_position_is_explained_as_in_a_cache_of_the_tokens_before_it(build: Any, position: int) -> None:
    model, ids = build(), zoo.prompt(build(), N)
    attribution = explain(model, ids, position=position, probes=PROBES)
    assert attribution.target == int(ids[0, position])
    assert attribution.ids.tolist() == ids[0, :position].tolist()
    alone = explain(model, ids[:, :position], int(ids[0, position]), probes=PROBES)
    for name in alone.parts:
        assert relative(attribution.parts[name], alone.parts[name]) < 1e-9
    assert relative(attribution.scores, alone.scores) < 1e-9


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("remove_batch_dim", [False, True])
@pytest.mark.parametrize("names_filter", [None, heta_lens.names_filter], ids=["full", "filtered"])
@pytest.mark.parametrize("build", zoo.models("bridge-gpt2|hooked-llama"))
def test_full_and_filtered_caches_with_and_without_batch_dimension_agree(
    build: Any, names_filter: Any, remove_batch_dim: bool
) -> None:
    model, ids = build(), zoo.prompt(build(), N)
    cache = model.run_with_cache(ids, names_filter=names_filter, remove_batch_dim=remove_batch_dim)[1]
    assert (cache["hook_embed"].ndim == 2) == remove_batch_dim
    assert same(attribute(cache, TARGET, probes=PROBES), explain(model, ids, TARGET, probes=PROBES))


@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-6), (torch.float16, 5e-3), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("build", zoo.models("bridge-gemma2|hooked-llama"))
def test_a_cache_in_another_dtype_gives_a_close_answer(build: Any, dtype: torch.dtype, close: float) -> None:
    model, ids = build(), zoo.prompt(build(), N)
    cache = cache_of(model, ids)
    cast = ActivationCache({name: cached.to(dtype) for name, cached in cache.cache_dict.items()}, model)
    found, expected = attribute(cast, TARGET, probes=PROBES), attribute(cache, TARGET, probes=PROBES)
    assert found.ids.tolist() == ids[0].tolist()
    assert 0 < relative(found.scores, expected.scores) < close


@pytest.mark.sample(quick=2)
@pytest.mark.parametrize("kind", zoo.NEW)
def test_a_model_without_tokenizer_is_explained_in_ids(kind: str) -> None:
    model = zoo.NEW[kind]()
    ids = zoo.prompt(model, N)
    expected = explain(model, ids, TARGET, **CHEAP)
    model.tokenizer = None
    attribution = attribute(cache_of(model, ids), TARGET, **CHEAP)
    assert same(attribution, expected)
    assert attribution.target_text == f"<{TARGET}>"
    assert attribution.tokens == tuple(f"<{token}>" for token in ids[0].tolist())
    assert not attribution.special.any()


def halve(activation: Tensor, hook: Any) -> Tensor:  # noqa: ARG001
    return activation / 2


def last_layer_weight(model: Any) -> Tensor:
    """A weight of the last block, after all attention."""
    named = [(name, weight) for name, weight in model.named_parameters() if "mlp" in name and weight.ndim == 2]
    return named[-1][1]


@pytest.mark.parametrize("kind", zoo.NEW)
def test_a_cache_of_other_weights_is_refused_at_once(kind: str, forwards: Any) -> None:
    model = zoo.NEW[kind]()
    ids = zoo.prompt(model, N)
    cache = cache_of(model, ids)
    last_layer_weight(model).data[0, 0] += 0.5
    runs = forwards(model)
    with pytest.raises(ValueError, match="weights, or the hooks on it, have changed since the cache was taken"):
        attribute(cache, TARGET, tokens=ids)
    assert len(runs) <= 2


HALVED = ["blocks.0.hook_resid_pre", "blocks.0.attn.hook_v", "blocks.1.attn.hook_pattern", "blocks.1.hook_mlp_out"]


@pytest.mark.parametrize("name", HALVED)
@pytest.mark.parametrize("build", zoo.models(SOME_KINDS))
def test_a_cache_of_other_hooks_is_refused_at_once(build: Any, name: str, forwards: Any) -> None:
    model, ids = build(), zoo.prompt(build(), N)
    plain = cache_of(model, ids)
    with model.hooks(fwd_hooks=[(name, halve)]):
        hooked, runs = cache_of(model, ids), forwards(model)
        with pytest.raises(ValueError, match="hooks on it, have changed since the cache was taken"):
            attribute(plain, TARGET, tokens=ids)
    with pytest.raises(ValueError, match="hooks on it, have changed since the cache was taken"):
        attribute(hooked, TARGET, tokens=ids)
    assert len(runs) <= 3


@pytest.mark.parametrize("add", [True, False])
def test_hooks_may_not_change_between_a_prediction_and_its_explanation(add: bool) -> None:
    model, ids = zoo.bridge("gpt2"), zoo.prompt(zoo.bridge("gpt2"), N)
    hooked = model.hooks(fwd_hooks=[("blocks.0.hook_resid_post", halve)])
    with nullcontext() if add else hooked:
        prediction = Prediction.from_cache(cache_of(model, ids), TARGET)
    with hooked if add else nullcontext(), pytest.raises(RuntimeError, match="hooks were added to or removed"):
        heta_lens.Heta()(prediction)


@pytest.mark.usefixtures("unchecked")
def test_the_line_of_a_prediction_has_its_target_length_and_probability() -> None:
    model, ids = zoo.bridge("gpt2"), zoo.prompt(zoo.bridge("gpt2"), N)
    cache = cache_of(model, ids)
    p = torch.softmax(model(ids)[0, -1].detach(), -1)

    def line(target: Any) -> str:
        return repr(Prediction.from_cache(cache, target, tokens=ids))

    after = f"after {N} tokens, by a TransformerBridge"
    assert line(TARGET) == f"Prediction of {model.tokenizer.decode([TARGET])!r} (p = {float(p[TARGET]):.3g}) {after}"
    assert f"(p = {float(p[[7, 9]].sum()):.3g}) {after}" in line({7, 9})
    assert line(lambda logits: logits[3]).endswith(f"(logits) {after}") and " (p " not in line(lambda logits: logits[3])


def test_a_passage_is_found_in_the_context() -> None:
    model, story = heta_lens.load_demo_model(), next(recall.stories("test", facts=3, hops=2))
    ids = model.to_tokens(story.text)
    asked = Prediction.from_cache(cache_of(model, ids), tokens=ids)
    for start, stop in (sentence.characters for sentence in story.evidence):
        passage = story.text[start:stop]
        assert "".join(asked.written[at] for at in asked.positions_of(passage)).strip() == passage.strip()
        assert asked.positions_of(passage.strip()[1:]) == asked.positions_of(passage)  # words are not split
    assert [asked.positions_of(story.text[slice(*told.characters)]) for told in story.evidence] == [
        list(told.tokens) for told in story.evidence
    ]
    for passage in ("not there", "the", "", " "):
        with pytest.raises(ValueError, match="times in the text: it must occur once"):
            asked.positions_of(passage)
