"""Causal validation: validation by patching, value swaps, and the heads behind the gate."""

from collections.abc import Callable
from dataclasses import replace
from math import isnan
from typing import Any

import pytest
import torch
from torch import Tensor

import heta_lens
from helpers import zoo
from helpers.asking import cache_of, explain, predict
from heta_lens.causal import effects, validate
from heta_lens.prediction.patching import How

N, TARGET = 6, 7
FAMILIES = pytest.mark.parametrize("build", zoo.models("-(gpt2|llama|gptj)$"))
ONE_EACH = pytest.mark.parametrize("build", zoo.models("-gpt2$"))


def explained(model: Any, ids: Tensor, **options: Any) -> heta_lens.Attribution:
    return explain(model, ids, TARGET, method="leave_one_out", **options)


def with_scores(attribution: heta_lens.Attribution, scores: Tensor) -> heta_lens.Attribution:
    return replace(attribution, scores=scores)


@pytest.mark.slow
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
def test_what_was_left_out_and_special_tokens_are_not_evaluated(build: Callable[[], Any]) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    cache, attribution = cache_of(model, ids), explained(model, ids)
    some = validate(cache, attribution.without([2]), tokens=ids)
    evaluated = [at for at in range(N) if at != 2 and not attribution.special[at]]
    assert list(some.positions) == evaluated
    assert some.tokens == tuple(attribution.tokens[at] for at in evaluated)
    torch.testing.assert_close(some.scores, attribution.scores[evaluated].double())
    frame = some.to_frame()
    assert list(frame["position"]) == evaluated and list(frame["effect"]) == some.effects.tolist()
    assert "rank correlation" in repr(some) and "score" in some.plot().fragment
    flat = validate(cache, with_scores(attribution, torch.ones(N)), tokens=ids)
    assert isnan(flat.patch_correlation) and "undefined" in repr(flat)


@ONE_EACH
def test_what_effects_are_measured_in_is_named(build: Callable[[], Any]) -> None:
    model = build()
    ids = zoo.prompt(model, N)

    def gap(logits: Tensor) -> Tensor:
        return logits[TARGET] - logits[3]

    for target, said in {
        (TARGET, 3): "the difference of the two in log_prob",
        TARGET: "log_prob",
        gap: "gap(logits)",
    }.items():
        scored = explain(model, ids, target, method="leave_one_out", effect="log_prob")
        found = validate(cache_of(model, ids), scored, tokens=ids)
        assert f"highest lowers {said} by " in repr(found)


@pytest.mark.slow
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
    with pytest.raises(TypeError, match="expected an Attribution of one token, got Tensor: pass what attr"):
        validate(cache_of(model, ids), attribution.scores, tokens=ids)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"expected an Attribution of one token, got list: .*, one at a time"):
        validate(cache_of(model, ids), [attribution], tokens=ids)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="reference_tokens= are the ids of a reference, and there is none"):
        validate(cache_of(model, ids), attribution, tokens=ids, reference_tokens=others)
    with pytest.raises(ValueError, match="reference_tokens= do not match the cache"):
        validate(cache_of(model, ids), attribution, tokens=ids, reference=cache_of(model, others), reference_tokens=ids)
    with pytest.raises(TypeError, match="expected a Prediction, got ActivationCache: heta_lens"):
        effects(cache_of(model, ids))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="how='edge' is not one of"):
        validate(cache_of(model, ids), attribution, tokens=ids, how="edge")  # type: ignore[arg-type]
