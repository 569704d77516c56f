"""Eq. 4: its variants, its identities, what it reports about itself."""

from copy import deepcopy
from functools import partial
from typing import Any

import pytest
import torch

import heta_lens
import heta_lens.prediction.prediction
from helpers import zoo
from helpers.asking import cache_of, doubts_allowed, explain, predict, relative, start_together
from heta_lens.methods.heta.options import VARIANTS, Variant
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.tokenizer import TokenizerWrapper

KINDS = "bridge-(gpt2|llama|native)|hooked-rotary_gqa"


@pytest.mark.parametrize("build", zoo.models(KINDS))
def test_variants_are_the_terms_of_eq4(build: Any) -> None:
    model = build()
    ids = zoo.prompt(model, 6)
    full = explain(model, ids, beta=0.3, gamma=0.7)
    gate, curvature, information = (full.parts[name] for name in ("gate", "curvature", "information"))
    expected: dict[Variant, Any] = {
        "full": gate * (0.5 * curvature + 0.5 * information),
        "transition_only": gate,
        "hessian_only": gate * curvature,
        "kl_only": gate * information,
        "no_gate": 0.5 * curvature + 0.5 * information,
        "uniform_gate": (0.5 * curvature + 0.5 * information) / 6,
    }
    assert expected.keys() == {name for name, recipe in VARIANTS.items() if not recipe.approximate}
    for variant, scores in expected.items():
        assert relative(explain(model, ids, variant=variant).scores, scores) < 1e-9, variant


def test_no_gate_and_a_uniform_gate_rank_alike() -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, 8)
    free, uniform = (explain(model, ids, variant=variant).scores for variant in ("no_gate", "uniform_gate"))
    assert torch.equal(free.argsort(), uniform.argsort())
    torch.testing.assert_close(free / free.sum(), uniform / uniform.sum(), rtol=1e-12, atol=0)


def test_scaling_beta_and_gamma_scales_the_score() -> None:
    model = zoo.bridge("llama")
    ids = zoo.prompt(model, 6)
    once, thrice = explain(model, ids, beta=0.2, gamma=0.6), explain(model, ids, beta=0.6, gamma=1.8)
    torch.testing.assert_close(3 * once.scores, thrice.scores, rtol=1e-12, atol=0)


def masked(diagnostics: Any) -> int:
    """Forwards beside those that a gradient was taken of."""
    return diagnostics["forwards"] - diagnostics["backwards"]


def test_a_part_without_weight_is_not_computed() -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, 5)
    first_order = explain(model, ids, beta=0.0, gamma=1.0)
    assert set(first_order.parts) == {"gate", "information"}
    assert (first_order.diagnostics["hvps"], first_order.diagnostics["forwards"]) == (0, 6)
    second_order = explain(model, ids, gamma=0.0)
    assert set(second_order.parts) == {"gate", "curvature"}
    assert (second_order.diagnostics["hvps"], masked(second_order.diagnostics)) == (50, 1)


# ----------------------------------------------------------------------------------------- what must not matter
@pytest.mark.parametrize("build", zoo.models())
def test_nothing_at_or_after_the_target_matters(build: Any) -> None:
    model = build()
    ids = zoo.prompt(model, 9)
    other = ids.clone()
    other[0, 5:] = zoo.prompt(model, 9, seed=1)[0, 5:]
    one, two = (explain(model, prompt, target=7, position=5, probes=1) for prompt in (ids, other))
    alone = explain(model, ids[:, :5], target=7, probes=1)
    assert relative(one.scores, two.scores) < 1e-6
    assert relative(one.scores, alone.scores) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("build", zoo.models("bridge-(gpt2|llama|mistral|gemma2|native)|hooked-(rotary_gqa|alibi)"))
@pytest.mark.usefixtures("unchecked")
def test_batch_and_chunk_do_not_matter(build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build()
    ids = zoo.prompt(model, 9)
    reference = explain(model, ids, probes=4)
    for batch in (1, 3):
        assert relative(explain(model, ids, probes=4, batch=batch).scores, reference.scores) < 1e-6
    for chunk in (1, 2):
        start_together(monkeypatch, chunk)
        assert relative(explain(model, ids, probes=4).scores, reference.scores) < 1e-6


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize(("batch", "most"), [(1, (1, 1)), (3, (3, 3)), (5, (5, 5)), ("auto", (9, 32))])
def test_batch_is_how_many_copies_are_alive_at_once(batch: Any, most: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the context that is run on, and of the products that are taken; "auto" is more of these than of those."""
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, 9)
    prediction = predict(model, ids)
    run, grad = type(prediction.adapter).run, torch.autograd.grad
    copies, products = [], [1]

    def counted_run(adapter: Any, ids: Any, *args: Any, **options: Any) -> Any:
        copies.append(len(ids))
        return run(adapter, ids, *args, **options)

    def counted_grad(*args: Any, **options: Any) -> Any:
        if options.get("is_grads_batched"):
            products.append(len(args[2]))
        return grad(*args, **options)

    monkeypatch.setattr(type(prediction.adapter), "run", counted_run)
    monkeypatch.setattr(torch.autograd, "grad", counted_grad)
    with doubts_allowed():
        heta_lens.Heta(batch=batch, probes=40)(prediction)
    assert (max(copies), max(products)) == most


@pytest.mark.parametrize("build", zoo.models("bridge-gpt2|hooked-rotary_gqa"))
def test_every_run_reads_the_tokens_its_embeddings_belong_to(build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Although the embeddings stand in for them: a model may look at its tokens elsewhere, too."""
    model = build()
    ids = zoo.prompt(model, 20)
    prediction = predict(model, ids)
    run, lengths = type(prediction.adapter).run, set()

    def watched(adapter: Any, given: Any, *args: Any, **options: Any) -> Any:
        lengths.add(given.shape[1])
        assert torch.equal(given, ids[:, -given.shape[1] :].expand(len(given), -1))
        return run(adapter, given, *args, **options)

    monkeypatch.setattr(type(prediction.adapter), "run", watched)
    with doubts_allowed():
        heta_lens.Heta(probes=1)(prediction)
    assert len(lengths) > 1  # among them runs that continue from a prefix


def test_copies_under_a_hook_are_run_one_by_one_and_whole() -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, 5)
    seen: list[tuple[int, ...]] = []

    def count(live: Any, hook: Any) -> None:  # noqa: ARG001
        seen.append(tuple(live.shape[:2]))

    with model.hooks(fwd_hooks=[("unembed.hook_out", count)]):
        prediction = predict(model, ids)
        copies = torch.stack([prediction.embeddings, 2 * prediction.embeddings])
        with prediction.running(), torch.no_grad():
            found = prediction.log_probs_from(0)(copies)
    assert set(seen) == {(1, 5)}
    torch.testing.assert_close(found[0], prediction.log_probs)
    assert not torch.allclose(found[1], prediction.log_probs)


def test_tokens_after_the_context_are_themselves_for_a_hook_that_looks_at_them(monkeypatch: pytest.MonkeyPatch) -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, 6)

    def look_ahead(live: Any, hook: Any) -> Any:  # noqa: ARG001
        return live + live[:, 4:5]

    with model.hooks(fwd_hooks=[("blocks.0.hook_resid_post", look_ahead)]):
        prediction = predict(model, ids, position=3)
        run, read = type(prediction.adapter).run, []
        monkeypatch.setattr(
            type(prediction.adapter), "run", lambda *args, **how: read.append(args[1]) or run(*args, **how)
        )
        with prediction.running(), torch.no_grad():
            found = prediction.log_probs_from(1)(prediction.embeddings[None, 1:])[0]
    torch.testing.assert_close(found, prediction.log_probs)
    assert torch.equal(torch.cat(read), ids)


@pytest.mark.parametrize("build", zoo.models("bridge-(gpt2|llama|mistral|gemma2)|hooked-(rotary_gqa|local|sinks)"))
def test_reusing_a_prefix_does_not_matter(build: Any) -> None:
    model = build()
    ids = zoo.prompt(model, 9)
    reused = explain(model, ids, probes=4)
    handle = model.unembed.register_forward_hook(lambda *_: None)
    try:
        full = explain(model, ids, probes=4)
    finally:
        handle.remove()
    assert reused.diagnostics["prefix_reuse"] == "on"
    assert full.diagnostics["prefix_reuse"].startswith("off: hooks")
    assert relative(reused.scores, full.scores) < 1e-6


def test_the_seed_decides_the_probes_and_nothing_else_does() -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, 5)
    torch.manual_seed(1)
    one = explain(model, ids, seed=4)
    torch.manual_seed(2)
    again, other = explain(model, ids, seed=4), explain(model, ids, seed=5)
    assert torch.equal(one.scores, again.scores)
    assert not torch.allclose(one.parts["curvature"], other.parts["curvature"])
    assert torch.equal(one.parts["information"], other.parts["information"])


# --------------------------------------------------------------------------------------------- what it reports
@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")  # the checker looks at windows that nobody asked for
def test_work_is_counted_where_it_is_done() -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, 6)
    for options, hvps, forwards in (
        ({"probes": 3}, 18, 7),  # one for each token, and one in which all of them are masked
        ({"probes": 3, "support": "row"}, 3, 7),
        ({"norm": "exact"}, 48, 7),
        ({"norm": "entrywise", "support": "row"}, 48, 7),
        ({"variant": "lr", "rank": 4, "probes": 3}, 2 * (4 + 8) + 3, 7),
        ({"variant": "lr", "rank": 99, "probes": 3}, 2 * 6 * 8 + 3, 7),
        ({"variant": "ls", "layers": 1, "probes": 3}, 18, 8),  # one to see the states that enter the last layer
        ({"variant": "gn", "probes": 3}, 18, 7),
        ({"variant": "gs"}, 0, 7),
        ({"variant": "win", "window": 4, "probes": 3}, 18, 7),  # each token in one window
        ({"variant": "win", "window": 4, "window_mode": "chunk", "probes": 3}, 24, 11),  # two of them in both
        ({"variant": "win", "window": 4, "window_mode": "restrict", "probes": 3}, 18, 7),
        ({"variant": "transition_only"}, 0, 1),
    ):
        diagnostics = explain(model, ids, **options).diagnostics
        assert (diagnostics["hvps"], masked(diagnostics)) == (hvps, forwards), options


def test_a_contrast_is_the_difference_of_two_log_probabilities() -> None:
    model = zoo.hooked("gpt2") if zoo.HAS_HOOKED else zoo.bridge("gpt2")
    ids = zoo.prompt(model, 4)
    contrast = explain(model, ids, (7, 9))
    assert "not about the contrast" in contrast.diagnostics["note"]
    torch.testing.assert_close(contrast.parts["information"], explain(model, ids, 7).parts["information"])
    swapped = explain(model, ids, (9, 7))
    torch.testing.assert_close(contrast.parts["curvature"], swapped.parts["curvature"], rtol=1e-9, atol=0)
    assert not torch.allclose(contrast.parts["curvature"], explain(model, ids, 7).parts["curvature"])
    assert contrast.target == (7, 9)
    assert isinstance(contrast.target_text, tuple)


def test_everything_needed_to_run_it_again_is_in_the_options() -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, 5)
    first = explain(model, ids, probes=3, seed=9, kl="js", flow="direct", mask="mean", balance="max")
    facts = {"model", "versions"}
    again = explain(model, ids, first.target, **{k: v for k, v in first.options.items() if k not in facts})
    assert torch.equal(first.scores, again.scores)
    assert first.options["versions"].keys() == {"heta_lens", "transformer_lens", "torch"}
    assert first.options["model"]["dtype"] == "float64"


def test_predictions_serve_many_methods() -> None:
    model = zoo.bridge("gpt2")
    prediction = predict(model, zoo.prompt(model, 5))
    one, other = heta_lens.Heta(variant="kl_only")(prediction), heta_lens.Heta(variant="transition_only")(prediction)
    assert one.target == other.target
    assert not torch.allclose(one.scores, other.scores)


def test_methods_on_one_prediction_agree_while_somebody_caches() -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, 5)
    expected = explain(model, ids, 7, probes=2)
    cache = cache_of(model, ids)
    live = [(name, partial(store, cache.cache_dict, name)) for name in list(cache.cache_dict)]
    with model.hooks(fwd_hooks=live), doubts_allowed():
        prediction = heta_lens.Prediction.from_cache(cache, 7, tokens=ids)
        first, second = (heta_lens.Heta(probes=2)(prediction) for _ in range(2))
    assert torch.equal(first.scores, second.scores)
    assert relative(first.scores, expected.scores) < 1e-9


def store(activations: dict[str, torch.Tensor], name: str, activation: torch.Tensor, hook: Any) -> None:  # noqa: ARG001
    activations[name] = activation.detach()


@pytest.mark.skipif(not zoo.HAS_HOOKED, reason="HookedTransformer was removed in TransformerLens 4")
def test_a_left_padding_tokenizer_does_not_matter() -> None:
    model = zoo.hooked.__wrapped__("gpt2")
    ids = zoo.prompt(model, 6)
    expected = explain(model, ids, 7)
    model.tokenizer = deepcopy(model.tokenizer)
    model.tokenizer.padding_side = "left"
    assert relative(explain(model, ids, 7).scores, expected.scores) < 1e-9


@pytest.mark.skipif(not zoo.HAS_HOOKED, reason="HookedTransformer was removed in TransformerLens 4")
@pytest.mark.parametrize("seed", range(3))
def test_a_model_with_kinks_is_not_taken_for_one_without_second_derivatives(seed: int) -> None:
    model = zoo.hooked_config("relu")
    assert explain(model, zoo.prompt(model, 6, seed=seed), variant="hessian_only").scores.any()


def test_a_tokenizer_that_swallows_the_first_space_is_read_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """As SentencePiece's do: "▁cat" is written "cat" at the start of a text, and " cat" after one."""
    model = zoo.bridge("llama")
    words = ["<s>", "▁the", "▁cat", "▁sat", "s", "▁on", *(f"▁{number}" for number in range(200))]
    monkeypatch.setattr(ModelAdapter, "tokenizer", property(lambda _: TokenizerWrapper(Metaspace(words))))
    ids = torch.tensor([[1, 2, 4, 3]])
    attribution = explain(model, ids, " on")
    assert attribution.tokens == ("the", " cat", "s", " sat")
    assert attribution.text == "the cats sat"
    assert (attribution.target, attribution.target_text) == (5, " on")
    assert [word.text for word in attribution.by_word()] == ["the", "cats", "sat"]
    with pytest.raises(ValueError, match=r"not a single token of this model but 2: \['cat', 's'\]"):
        explain(model, ids, " cats")


class Metaspace:
    """The least of a SentencePiece tokenizer."""

    all_special_ids = (0,)

    def __init__(self, words: list[str]) -> None:
        self.words = words

    def decode(self, ids: list[int], **_: Any) -> str:
        return "".join(self.words[token] for token in ids).replace("▁", " ").removeprefix(" ")

    def encode(self, text: str, **_: Any) -> list[int]:
        rest, ids = "▁" + text.strip().replace(" ", "▁"), []
        while rest:
            token = next(token for token, word in enumerate(self.words) if rest.startswith(word))
            ids, rest = [*ids, token], rest.removeprefix(self.words[token])
        return ids


def test_keys_and_values_are_not_kept_where_nothing_continues_from_them(forwards: Any) -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, 20)
    cache = model.run_with_cache(ids, names_filter=heta_lens.names_filter)[1]
    runs = forwards(model)
    found = heta_lens.attribute(cache, 7, tokens=ids, variant="transition_only").diagnostics
    assert len(runs) == 2  # the check, and one in which all is masked
    assert (found["forwards"], found["prefix_reuse"]) == (1, "not needed")


def test_predictions_of_different_prompts_do_not_share_anything() -> None:
    model = zoo.bridge("gpt2")
    short, long = (predict(model, zoo.prompt(model, 6, seed), position=seed + 3) for seed in (0, 1))
    with pytest.raises(ValueError, match="must be of one prompt"):
        heta_lens.Heta().each([short, long])


def test_what_an_audit_would_refuse_is_refused_before_any_work(forwards: Any) -> None:
    model = zoo.bridge("gpt2")
    prediction = predict(model, zoo.prompt(model, 8))
    runs = forwards(model)
    heta = heta_lens.Heta(variant="win", window=2, support="row", norm="exact", audit=True)
    with pytest.raises(ValueError, match=r"all 2\^64 sign vectors"):
        heta(prediction)
    assert not runs


def test_nothing_of_an_attribution_stays_where_it_was_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """On an accelerator that would be its memory."""
    model = zoo.bridge("gpt2")
    prediction, moved = predict(model, zoo.prompt(model, 5)), []
    cpu = torch.Tensor.cpu
    monkeypatch.setattr(torch.Tensor, "cpu", lambda tensor: moved.append(tensor.data_ptr()) or cpu(tensor))
    with doubts_allowed():
        found = heta_lens.Heta(probes=3, interactions=True)(prediction)

    def tensors(value: Any) -> list[torch.Tensor]:
        if isinstance(value, dict):
            return [one for item in value.values() for one in tensors(item)]
        return [value] if isinstance(value, torch.Tensor) else []

    kept = tensors({**found.diagnostics, **found.parts, "scores": found.scores, "pairs": found.interactions})
    assert len(kept) > 8
    assert {tensor.data_ptr() for tensor in kept} <= set(moved)
