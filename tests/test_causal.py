"""Is it true? Validation by patching, value swaps, and the heads behind the gate."""

import gc
import warnings
from collections.abc import Callable
from dataclasses import replace
from math import isnan
from typing import Any

import pytest
import torch
from asking import cache_of, explain, predict
from torch import Tensor

import heta_lens
import oracles
import zoo
from heta_lens.causal import ablate_heads, effects, gate_heads, swap_values, validate
from heta_lens.interventions import How

N, TARGET = 6, 7
FAMILIES = pytest.mark.parametrize("build", zoo.models("-(gpt2|llama|gptj)$"))
ONE_EACH = pytest.mark.parametrize("build", zoo.models("-gpt2$"))
FLOWS = ["suffix", "suffix_input", "prefix_head", "rollout", "direct"]


def explained(model: Any, ids: Tensor, **options: Any) -> heta_lens.Attribution:
    return explain(model, ids, TARGET, method="leave_one_out", **options)


def with_scores(attribution: heta_lens.Attribution, scores: Tensor) -> heta_lens.Attribution:
    return replace(attribution, scores=scores)


# --------------------------------------------------------------------------------------------------------- validation
@FAMILIES
@pytest.mark.parametrize("how", ["edge_patch", "resid_patch", "input"])
def test_effects_agree_with_themselves_and_not_with_their_opposite(build: Callable[[], Any], how: How) -> None:
    model = build()
    ids, way = zoo.prompt(model, N), {"how": how, "layer": 1 if how == "resid_patch" else None}
    cache, attribution = cache_of(model, ids), explained(model, ids)
    own = effects(predict(model, ids, TARGET), **way).cpu().double()
    same = validate(cache, with_scores(attribution, own), tokens=ids, special=True, k=2, top=3, **way)
    torch.testing.assert_close(same.effects, own)
    torch.testing.assert_close(same.scores, own)
    assert same.patch_correlation == pytest.approx(1)
    other = validate(cache, with_scores(attribution, -own), tokens=ids, special=True, k=2, top=3, **way)
    assert other.patch_correlation == pytest.approx(-1)
    best = own.argsort(descending=True).tolist()
    together = effects(predict(model, ids, TARGET), **way, groups=[best[:2]])
    assert same.joint == pytest.approx(float(together[0])) and same.mean_single == pytest.approx(own[best[:2]].mean())
    assert same.misattribution == pytest.approx(float((own[best[:3]] < 0.01).double().mean()))
    assert same.misattribution <= other.misattribution


@ONE_EACH
def test_what_was_left_out_and_special_tokens_are_not_judged(build: Callable[[], Any]) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    cache, attribution = cache_of(model, ids), explained(model, ids)
    some = validate(cache, attribution.without([2]), tokens=ids)
    judged = [at for at in range(N) if at != 2 and not attribution.special[at]]
    assert list(some.positions) == judged
    assert some.tokens == tuple(attribution.tokens[at] for at in judged)
    torch.testing.assert_close(some.scores, attribution.scores[judged].double())
    frame = some.to_frame()
    assert list(frame["position"]) == judged and list(frame["effect"]) == some.effects.tolist()
    assert "rank correlation" in repr(some) and "score" in some.plot().fragment
    flat = validate(cache, with_scores(attribution, torch.ones(N)), tokens=ids)
    assert isnan(flat.patch_correlation) and "none" in repr(flat)


@ONE_EACH
def test_an_inner_position_and_a_counterfactual_can_be_validated(build: Callable[[], Any]) -> None:
    model = build()
    ids, others = zoo.prompt(model, N), zoo.prompt(model, N, seed=1)
    inner = explain(model, ids, position=4, method="leave_one_out")
    found = validate(cache_of(model, ids), inner, position=4, tokens=ids, special=True)
    expected = effects(predict(model, ids, position=4))
    torch.testing.assert_close(found.effects, expected.cpu().double())
    whole = explained(model, ids)
    patched = validate(cache_of(model, ids), whole, tokens=ids, reference=cache_of(model, others), special=True)
    reference = predict(model, others, TARGET)
    torch.testing.assert_close(
        patched.effects, effects(predict(model, ids, TARGET), reference=reference).cpu().double()
    )
    assert patched.options["counterfactual"] and not found.options["counterfactual"]


@pytest.mark.usefixtures("unchecked")
@ONE_EACH
def test_what_cannot_be_validated_is_refused(build: Callable[[], Any]) -> None:
    model = build()
    ids, others = zoo.prompt(model, N), zoo.prompt(model, N, seed=1)
    attribution = explained(model, ids)
    with pytest.raises(ValueError, match="this attribution is of another prompt than the cache"):
        validate(cache_of(model, others), attribution, tokens=others)
    with pytest.raises(ValueError, match="this attribution is of another prompt"):
        validate(cache_of(model, ids[:, :4]), attribution, tokens=ids[:, :4])
    with pytest.raises(ValueError, match="k=0 must be at least 1"):
        validate(cache_of(model, ids), attribution, tokens=ids, k=0)
    with pytest.raises(ValueError, match="least=-1 must be at least 0"):
        validate(cache_of(model, ids), attribution, tokens=ids, least=-1)
    inner = explain(model, ids, TARGET, position=4, method="leave_one_out")
    with pytest.raises(ValueError, match="of another prompt than the cache, or of another position=: it explains"):
        validate(cache_of(model, ids), inner, tokens=ids)
    with pytest.raises(ValueError, match="or of another position="):
        validate(cache_of(model, ids), attribution.without([4, 5]), tokens=ids, position=4)
    with pytest.raises(TypeError, match="a Tensor is no attribution of one token: pass what attribute returns"):
        validate(cache_of(model, ids), attribution.scores, tokens=ids)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"a list is no attribution of one token: .*, one at a time"):
        validate(cache_of(model, ids), [attribution], tokens=ids)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="reference_tokens= are the ids of a reference, and there is none"):
        validate(cache_of(model, ids), attribution, tokens=ids, reference_tokens=others)
    with pytest.raises(ValueError, match="reference_tokens= do not match the cache"):
        validate(cache_of(model, ids), attribution, tokens=ids, reference=cache_of(model, others), reference_tokens=ids)
    with pytest.raises(TypeError, match="a ActivationCache is no prediction: heta_lens"):
        effects(cache_of(model, ids))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="how='edge' is not one of"):
        validate(cache_of(model, ids), attribution, tokens=ids, how="edge")  # type: ignore[arg-type]


# --------------------------------------------------------------------------------------------------------- value swaps
@FAMILIES
def test_any_method_explains_what_the_swapped_model_says(build: Callable[[], Any]) -> None:
    model = build()
    a, b, layer, places = zoo.prompt(model, N), zoo.prompt(model, N, seed=1), 1, [1, 3]
    name = f"blocks.{layer}.attn.hook_v"
    values = model.run_with_cache(a)[1][name][0]

    def put(found: Tensor, hook: Any) -> Tensor:  # noqa: ARG001
        found = found.clone()
        found[:, places] = values[places]
        return found

    with torch.no_grad():
        clean = model(b)
        expected = model.run_with_hooks(b, fwd_hooks=[(name, put)])
    with swap_values(cache_of(model, a), cache_of(model, b), layer, places, tokens=b) as cache:
        with torch.no_grad():
            torch.testing.assert_close(model(b), expected)
        found = heta_lens.attribute(cache, TARGET, tokens=b, method="leave_one_out", effect="log_prob")
        log_probs = expected[0, -1].double().log_softmax(-1)
        assert found.diagnostics["target_log_prob"] == pytest.approx(float(log_probs[TARGET]), rel=1e-6)
        scores = []
        for at in range(N):
            embeddings = model.run_with_cache(b, names_filter=["hook_embed"])[1]["hook_embed"].clone()
            embeddings[0, at] = 0
            hooks = [("hook_embed", lambda live, hook, e=embeddings: e), (name, put)]  # noqa: ARG005
            with torch.no_grad():
                left = model.run_with_hooks(b, fwd_hooks=hooks)[0, -1].double().log_softmax(-1)
            scores.append(float(log_probs[TARGET] - left[TARGET]))
    torch.testing.assert_close(found.scores.double(), torch.tensor(scores).double(), rtol=1e-5, atol=1e-7)
    with torch.no_grad():
        torch.testing.assert_close(model(b), clean)
    assert not torch.allclose(clean, expected)


@ONE_EACH
def test_a_swap_ends_whatever_happens_under_it(build: Callable[[], Any]) -> None:
    model = build()
    a, b = zoo.prompt(model, N), zoo.prompt(model, N, seed=1)
    before = model(b)
    caches = cache_of(model, a), cache_of(model, b)
    with pytest.raises(KeyError, match="in the middle"), swap_values(*caches, 0, [1], tokens=b):
        raise KeyError("in the middle")
    torch.testing.assert_close(model(b), before)
    with swap_values(cache_of(model, b), cache_of(model, b), 0, [1, 2], tokens=b) as cache:  # its own: nothing
        torch.testing.assert_close(model(b), before)
        assert "hook_embed" in cache


def test_a_swap_that_is_never_begun_says_that_nothing_was_changed() -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, N)
    caches = cache_of(model, ids), cache_of(model, zoo.prompt(model, N, seed=1))
    with pytest.warns(UserWarning, match=r"swap_values has changed nothing.*with swap_values"):
        swap_values(*caches, 0, [1])
    swap = swap_values(*caches, 0, [1])
    assert "changed nothing" in repr(swap)
    with pytest.raises(TypeError, match="Swap"):
        heta_lens.attribute(swap, TARGET)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with swap:
            assert "begun" in repr(swap)
        with pytest.raises(RuntimeError, match="call swap_values again"), swap:
            pass
        del swap
        gc.collect()


@ONE_EACH
@pytest.mark.parametrize(
    ("layer", "places", "message"),
    [
        (2, [1], "layer=2 is none of the layers 0 to 1 this model has"),
        (True, [1], "layer=True is none of the layers"),
        (0, [], "positions is empty: name a position"),
        (0, [N], "position 6 is none of the 6 positions that both prompts have"),
        (0, [-1], "position -1 is none of the 6"),
    ],
)
def test_a_swap_of_what_is_not_there_is_refused(
    build: Callable[[], Any], layer: Any, places: list[int], message: str
) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    with (
        pytest.raises(ValueError, match=message),
        swap_values(cache_of(model, ids), cache_of(model, ids), layer, places),
    ):
        pass


# --------------------------------------------------------------------------------------------------- heads of the gate
@FAMILIES
@pytest.mark.parametrize("flow", FLOWS)
def test_heads_together_are_the_gate(build: Callable[[], Any], flow: Any) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    whole = explain(model, ids, TARGET, variant="transition_only", flow=flow).parts["gate"]
    heads = gate_heads(cache_of(model, ids), flow=flow, tokens=ids)
    torch.testing.assert_close(heads.shares.sum((0, 1)), whole.cpu(), rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(heads.of(2).values, heads.shares[:, :, 2])
    layer, head, share = heads.top(1, source=2)[0]
    assert share == float(heads.of(2).values.max()) == float(heads.shares[layer, head, 2])
    assert f"most by {heads.top(1)[0].layer}." in repr(heads) and "layer 1" in heads.plot(2).fragment
    frame = heads.to_frame()
    assert frame["share"].sum() == pytest.approx(1)
    row = frame[(frame["layer"] == 1) & (frame["head"] == 1) & (frame["position"] == 3)]
    assert float(row["share"].iloc[0]) == float(heads.shares[1, 1, 3])


@ONE_EACH
def test_the_flow_of_a_head_is_that_of_its_paths(build: Callable[[], Any]) -> None:
    model = build()
    ids = zoo.prompt(model, 4)
    asked = predict(model, ids, TARGET)
    patterns = [pattern.double() for pattern in asked.patterns]
    flows = oracles.phi_by_paths(patterns, "suffix")
    norms = torch.stack(
        [
            torch.einsum("pgk,gkd->gpd", values.double(), output.double()).abs().sum(-1)
            for values, output in zip(asked.values, asked.output_weights, strict=True)
        ]
    )
    expected = flows * norms
    found = gate_heads(cache_of(model, ids), tokens=ids).shares
    torch.testing.assert_close(found.double(), expected / expected.sum(), rtol=1e-6, atol=1e-9)


# ------------------------------------------------------------------------------------------------------ without a head
@FAMILIES
@pytest.mark.parametrize("fill", ["zero", "mean"])
@pytest.mark.parametrize("places", [None, [2, N - 1]])
def test_a_prediction_without_a_head_is_what_a_hook_makes_of_it(
    build: Callable[[], Any], fill: Any, places: list[int] | None
) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    found = ablate_heads(cache_of(model, ids), TARGET, fill=fill, positions=places, tokens=ids).values
    with torch.no_grad():
        full = model.run_with_cache(ids)[1]
        clean = model(ids)[0, -1].double().log_softmax(-1)[TARGET]
    for layer, row in enumerate(found):
        name = f"blocks.{layer}.attn.hook_z"
        for head, effect in enumerate(row):

            def empty(live: Tensor, hook: Any, head: int = head, name: str = name) -> Tensor:  # noqa: ARG001
                live = live.clone()
                instead = full[name][0, :, head].mean(0) if fill == "mean" else 0
                live[0, places if places else slice(None), head] = instead
                return live

            with torch.no_grad():
                left = model.run_with_hooks(ids, fwd_hooks=[(name, empty)])[0, -1].double().log_softmax(-1)[TARGET]
            assert float(effect) == pytest.approx(float(clean - left), rel=1e-5, abs=1e-9)
    one_by_one = ablate_heads(cache_of(model, ids), TARGET, fill=fill, positions=places, batch=1)
    torch.testing.assert_close(one_by_one.values, found)
    first, second = one_by_one.top(2)
    values = one_by_one.values
    assert first.value == float(values.max()) >= second.value == float(values[second.layer, second.head])
    assert len(one_by_one.to_frame()) == found.numel() and "layer 1" in one_by_one.plot().fragment
    assert f"most by {first.layer}.{first.head} {first.value:.3g}" in repr(one_by_one)


@pytest.mark.usefixtures("unchecked")
@ONE_EACH
def test_ablations_refuse_what_they_cannot_do(build: Callable[[], Any]) -> None:
    cache = cache_of(build(), zoo.prompt(build(), N))
    with pytest.raises(ValueError, match="positions is empty: name a position"):
        ablate_heads(cache, TARGET, positions=[])
    with pytest.raises(TypeError, match="positions=3 is no list of positions"):
        ablate_heads(cache, TARGET, positions=3)  # type: ignore[arg-type]
    part = build().run_with_cache(zoo.prompt(build(), N), pos_slice=-1)[1]
    with pytest.raises(ValueError, match="the cache holds 1 of the prompt's 6 positions: it was taken with pos_slice="):
        ablate_heads(part, TARGET, tokens=zoo.prompt(build(), N))
    with pytest.raises(ValueError, match="k=0 must be at least 1"):
        gate_heads(cache).top(0)
    with pytest.raises(ValueError, match="fill='noise' is not one of 'zero', 'mean'"):
        ablate_heads(cache, TARGET, fill="noise")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="position 9 is none of the 6 positions of the context"):
        ablate_heads(cache, TARGET, positions=[9])
    with pytest.raises(ValueError, match="position 9 is none of the 6 positions of the context"):
        gate_heads(cache).of(9)
    with pytest.raises(ValueError, match="flow='suffixes' is not one of"):
        gate_heads(cache, flow="suffixes")  # type: ignore[arg-type]
