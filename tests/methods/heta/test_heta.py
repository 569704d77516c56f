"""HETA as a whole: every kind of model against the oracles, what must not matter, and what is reported."""

from copy import deepcopy
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

import heta_lens
import heta_lens.prediction.prediction
from helpers import oracles, zoo
from helpers.asking import (
    doubts_allowed,
    explain,
    plain_embeddings,
    plain_log_probs,
    predict,
    relative,
    signs,
    start_together,
)
from helpers.heta import Toy
from heta_lens._util.numerics import Direction, kl
from heta_lens.methods.heta.options import VARIANTS, Variant
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.batching import Batches
from heta_lens.prediction.activations import Activations
from heta_lens.prediction.masking import MaskedEffects, masked_effects
from heta_lens.prediction.prediction import Prediction, predictions

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
            found = prediction.rerun().log_probs(copies)
    assert set(seen) == {(1, 5)}
    torch.testing.assert_close(found[0], prediction.log_probs)
    assert not torch.allclose(found[1], prediction.log_probs)


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


def test_everything_needed_to_run_it_again_is_in_the_options() -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, 5)
    first = explain(model, ids, probes=3, seed=9, kl="js", flow="direct", mask="mean", balance="max")
    facts = {"model", "versions"}
    again = explain(model, ids, first.target, **{k: v for k, v in first.options.items() if k not in facts})
    assert torch.equal(first.scores, again.scores)
    assert first.options["versions"].keys() == {"heta_lens", "transformer_lens", "torch"}
    assert first.options["model"]["dtype"] == "float64"


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


N, PROBES = 5, 3


def oracle_parts(model: Any, ids: Tensor, target: int) -> tuple[Tensor, Tensor, Tensor]:
    """M, S and I, each transcribed from the paper, on full runs of the model."""
    _, cache = model.run_with_cache(ids)
    layers = range(model.cfg.n_layers)
    patterns = [cache["pattern", layer][0].double() for layer in layers]
    values = [cache["v", layer][0].double() for layer in layers]
    outputs = [model.blocks[layer].attn.W_O.detach().double() for layer in layers]
    embeddings, log_probs = plain_embeddings(model, ids).double(), plain_log_probs(model, ids)
    hessian = oracles.dense_hessian(lambda e: log_probs(e)[target], embeddings, functional=True)
    probes = signs(0, PROBES, *embeddings.shape)
    with torch.no_grad():
        information = oracles.information(log_probs, embeddings, torch.zeros_like(embeddings[0]), "orig_masked")
    gate = oracles.gate_by_paths(patterns, values, outputs, p=1, flow="suffix")
    return gate, oracles.block_l1(hessian, probes).mean(0), information


@pytest.mark.parametrize("name", [name for name, _ in zoo.KINDS])
def test_attribution_equals_the_oracle(name: str) -> None:
    model = dict(zoo.KINDS)[name]()
    ids = zoo.prompt(model, N)
    attribution = explain(model, ids, target=7, probes=PROBES)
    gate, curvature, information = oracle_parts(model, ids, target=7)
    assert relative(attribution.parts["gate"], gate) < 1e-10
    assert relative(attribution.parts["curvature"], curvature) < zoo.tolerance(name)
    assert relative(attribution.parts["information"], information) < zoo.tolerance(name)
    assert relative(attribution.scores, oracles.eq4(gate, curvature, information, 0.5, 0.5)) < zoo.tolerance(name)


@pytest.mark.slow
@pytest.mark.parametrize("build", zoo.models("gpt2|llama|native"))
def test_float32_and_bfloat16_weights_stay_close_to_float64(build: Any) -> None:
    ids = zoo.prompt(build(), N)
    exact = explain(build(), ids, target=7)
    for dtype, close in ((torch.float32, 1e-3), (torch.bfloat16, 0.3)):
        attribution = explain(build(dtype), ids, target=7)
        assert attribution.scores.dtype == torch.float32
        assert relative(attribution.scores, exact.scores) < close


@pytest.mark.slow
@pytest.mark.skipif(not zoo.HAS_HOOKED, reason="HookedTransformer was removed in TransformerLens 4")
@pytest.mark.parametrize("family", zoo.HOOKED_FAMILIES)
def test_the_same_weights_give_the_same_attribution_in_both_kinds_of_model(family: str) -> None:
    hooked, bridge = zoo.hooked(family), zoo.bridge(family)
    ids = zoo.prompt(bridge, 10)
    one, other = explain(hooked, ids), explain(bridge, ids)
    assert one.target == other.target
    assert relative(one.scores, other.scores) < 1e-4
    for name, part in other.parts.items():
        assert relative(one.parts[name], part) < 1e-4, name


@pytest.mark.parametrize("build", zoo.models())
def test_prefixes_are_reused_wherever_a_model_keeps_keys_and_values(build: Any, request: Any) -> None:
    model = build()
    reuse = explain(model, zoo.prompt(model, 6), variant="kl_only").diagnostics["prefix_reuse"]
    if "native" in request.node.name:
        assert reuse.startswith("off: only 0 of this model")
    else:
        assert reuse == "on"


DIRECTIONS = get_args(Direction)

SOME = "hooked-(standard|llama|gptj)|bridge-(gpt2|neox|native)"


def information_of(model: Any, ids: Tensor, **options: Any) -> Tensor:
    return explain(model, ids, variant="kl_only", **options).parts["information"]


def oracle_information(model: Any, ids: Tensor, mask: Tensor, direction: str = "orig_masked") -> Tensor:
    with torch.no_grad():
        return oracles.information(plain_log_probs(model, ids), plain_embeddings(model, ids), mask, direction)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("build", zoo.models(SOME))
def test_equals_one_masked_forward_a_token(build: Any, direction: Direction) -> None:
    model = build()
    ids = zoo.prompt(model, 8)
    zero = torch.zeros_like(plain_embeddings(model, ids)[0])
    assert relative(information_of(model, ids, kl=direction), oracle_information(model, ids, zero, direction)) < 1e-8


@pytest.mark.parametrize("build", zoo.models("gpt2|gemma2|bloom"))
def test_every_mask_is_what_its_name_says(build: Any) -> None:
    """Gemma scales its embeddings and Bloom normalises them: masks are what the model would really see."""
    model = build()
    ids = zoo.prompt(model, 6)
    embeddings = plain_embeddings(model, ids)
    everything = torch.arange(model.cfg.d_vocab)
    seen = torch.cat([plain_embeddings(model, batch[None]) for batch in everything.split(zoo.N_CTX)])
    vector = torch.linspace(-1, 1, embeddings.shape[1], dtype=embeddings.dtype)
    for mask, stands_for in (
        ("zero", torch.zeros_like(vector)),
        ("mean", embeddings.mean(0)),
        ("vocab_mean", seen.mean(0)),
        (11, seen[11]),
        (vector, vector),
    ):
        assert relative(information_of(model, ids, mask=mask), oracle_information(model, ids, stands_for)) < 1e-5, mask


@pytest.mark.parametrize("build", zoo.models(SOME))
def test_a_mask_that_changes_nothing_gives_exactly_zero(build: Any) -> None:
    model = build()
    ids = zoo.prompt(model, 6)
    attribution = explain(model, ids, variant="kl_only", mask=int(ids[0, 3]))
    same = ids[0] == ids[0, 3]
    assert (attribution.parts["information"][same] == 0).all()
    assert (attribution.parts["information"][~same] > 0).any()
    assert attribution.diagnostics["forwards"] == int((~same).sum()) + 1  # in which all tokens are masked


def effects(
    predictions: list[Prediction], mask: Any, batch: int, floor: bool = False
) -> tuple[MaskedEffects, list[int]]:
    """What masking does, and how many copies ran in each batch."""
    counted: list[int] = []
    with torch.no_grad():
        information_of = masked_effects(predictions, mask, kl, batches=Batches(batch), done=counted.append, floor=floor)
    return information_of, counted


@pytest.mark.parametrize("build", zoo.models("gpt2|llama"))
def test_one_set_of_masked_forwards_serves_many_targets(build: Any) -> None:
    model = build()
    ids = zoo.prompt(model, 6)
    cache = model.run_with_cache(ids)[1]
    adapter = ModelAdapter.of(cache)
    with adapter.undisturbed():
        both = predictions(adapter, Activations.of(cache), {4: 7, 6: None}, tokens=ids, follow=False)
    together, counted = effects(both, "zero", 4)
    assert sum(counted) == 6
    for row, prediction in zip(together.divergence, both, strict=True):
        n = len(prediction)
        assert relative(row[:n], information_of(model, ids[:, :n])) < 1e-9
        assert not row[n:].any()


@pytest.mark.parametrize("floor", [False, True])
def test_what_is_no_number_stays_none(floor: bool) -> None:
    """So that it is refused where it is read, and no floor makes it 0."""
    broken = Toy(lambda e: (e.sum() * torch.nan).expand(3), torch.ones(2, 4))
    information_of = effects([broken], torch.zeros(4), 4, floor)[0]
    assert information_of.divergence.isnan().all() and information_of.drop.isnan().all()


def test_a_run_begins_at_its_first_masked_token_and_only_whole_masks_are_left_out() -> None:
    """A token that shares an entry with the mask is still masked."""
    embeddings = torch.tensor([[1.0, 2.0], [0.0, 1.0], [0.0, 0.0], [3.0, 0.0], [2.0, 2.0]])
    toy = Toy(lambda e: e.sum(0), embeddings, target=1)
    toy.prompt.by_start = lambda *_: [[0, 1, 2, 3], [4]]
    information_of, counted = effects([toy], torch.zeros(2), 9)
    clean, masked = embeddings.sum(0).log_softmax(-1), (embeddings.sum(0) - embeddings).log_softmax(-1)
    torch.testing.assert_close(information_of.divergence[0], kl(clean, masked))
    torch.testing.assert_close(information_of.drop[0], (clean - masked)[:, 1])
    assert counted == [3, 1]
