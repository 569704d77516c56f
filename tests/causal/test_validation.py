"""Causal validation: scores against effects, and the interval of their correlation."""

from collections.abc import Callable
from dataclasses import replace
from math import isnan, nan
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import norm, spearmanr

from helpers import oracles, zoo
from helpers.asking import cache_of, explain, predict
from heta_lens.causal import effects, validate
from heta_lens.causal.validation import Z95, with_interval
from heta_lens.prediction.patching import How
from heta_lens.span_attribution import SpanAttribution

N, TARGET = 6, 7


FAMILIES = pytest.mark.parametrize("build", zoo.models("-(gpt2|llama|gptj)$"))


ONE_EACH = pytest.mark.parametrize("build", zoo.models("-gpt2$"))


@pytest.mark.slow
@FAMILIES
@pytest.mark.parametrize("how", ["edge_patch", "resid_patch", "input"])
def test_effects_agree_with_themselves_and_not_with_their_opposite(build: Callable[[], Any], how: How) -> None:
    model = build()
    ids, way = zoo.prompt(model, N), {"how": how, "layer": 1 if how == "resid_patch" else None}
    attribution = explain(model, ids, TARGET, method="leave_one_out")
    cache, own = cache_of(model, ids), effects(predict(model, ids, TARGET), **way).cpu().double()
    same = validate(cache, replace(attribution, scores=own), tokens=ids, special=True, k=2, top=3, **way)
    torch.testing.assert_close(same.effects, own)
    torch.testing.assert_close(same.scores, own)
    assert same.patch_correlation == pytest.approx(1)
    other = validate(cache, replace(attribution, scores=-own), tokens=ids, special=True, k=2, top=3, **way)
    assert other.patch_correlation == pytest.approx(-1)
    best = own.argsort(descending=True).tolist()
    together = effects(predict(model, ids, TARGET), **way, groups=[best[:2]])
    assert same.joint == pytest.approx(float(together[0])) and same.mean_single == pytest.approx(own[best[:2]].mean())
    assert same.misattribution == pytest.approx(float((own[best[:3]] < 0.01).double().mean()))
    assert same.misattribution <= other.misattribution


@FAMILIES
@pytest.mark.parametrize("signed", [True, False])
def test_scores_without_signs_are_compared_with_sizes(build: Callable[[], Any], signed: bool) -> None:
    model = build()
    ids, least, top = zoo.prompt(model, N), 0.01, 3
    effect = "log_prob" if signed else "kl"
    attribution = explain(model, ids, TARGET, method="leave_one_out", effect=effect)
    own = effects(predict(model, ids, TARGET), how="input").cpu().double()
    assert attribution.signed == signed and own.min() < -least
    found = validate(cache_of(model, ids), attribution, tokens=ids, special=True, how="input", top=top, least=least)
    agreement, share = oracles.agreement_with_effects(attribution.scores.double(), own, top, least, signed=signed)
    assert found.patch_correlation == pytest.approx(agreement) and found.misattribution == pytest.approx(share)
    torch.testing.assert_close(found.effects, own)
    assert found.signed == signed and ("effects by size" in repr(found)) != signed
    sizes = replace(attribution, scores=own.abs())
    of_sizes = validate(cache_of(model, ids), sizes, tokens=ids, special=True, how="input")
    assert (of_sizes.patch_correlation == pytest.approx(1)) != signed


@ONE_EACH
def test_what_was_left_out_and_special_tokens_are_not_evaluated(build: Callable[[], Any]) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    cache, attribution = cache_of(model, ids), explain(model, ids, TARGET, method="leave_one_out")
    some = validate(cache, attribution.without([2]), tokens=ids)
    evaluated = [at for at in range(N) if at != 2 and not attribution.special[at]]
    assert list(some.positions) == evaluated
    assert some.tokens == tuple(attribution.tokens[at] for at in evaluated)
    torch.testing.assert_close(some.scores, attribution.scores[evaluated].double())
    frame = some.to_frame()
    assert list(frame["position"]) == evaluated and list(frame["effect"]) == some.effects.tolist()
    assert "rank correlation" in repr(some) and "score" in some.plot().fragment
    flat = validate(cache, replace(attribution, scores=torch.ones(N)), tokens=ids)
    assert isnan(flat.patch_correlation) and "undefined" in repr(flat)


@pytest.mark.slow
@ONE_EACH
def test_an_inner_position_can_be_validated(build: Callable[[], Any]) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    inner = explain(model, ids, position=4, method="leave_one_out")
    found = validate(cache_of(model, ids), inner, position=4, tokens=ids, special=True)
    expected = effects(predict(model, ids, position=4))
    torch.testing.assert_close(found.effects, expected.cpu().double())


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    rng, n = np.random.default_rng(0), 30
    rho = 0.6
    truth = 6 / np.pi * np.arcsin(rho / 2)  # Spearman's of the bivariate normal distribution
    covered = 0
    for _ in range(2000):
        pairs = rng.multivariate_normal([0, 0], [[1, rho], [rho, 1]], n)
        interval = with_interval(float(spearmanr(pairs[:, 0], pairs[:, 1])[0]), n)
        covered += interval.low <= truth <= interval.high
    assert covered / 2000 == pytest.approx(0.95, abs=0.015)
    assert norm.ppf(0.975) == pytest.approx(Z95, abs=1e-6)


@pytest.mark.parametrize(
    ("correlation", "tokens", "verdict"),
    [
        (0.9, 20, "patching agrees with the scores"),
        (-0.9, 20, "patching contradicts the scores"),
        (0.1, 20, "cannot tell: the interval includes 0"),
        (0.9, 3, "cannot tell: there are 3 tokens"),
        (1.0, 5, "cannot tell: the interval includes 0"),
        (nan, 1, "undefined: there is one token"),
        (nan, 20, "undefined: the scores or the effects are all equal"),
    ],
)
def test_the_verdict_is_that_of_the_interval(correlation: float, tokens: int, verdict: str) -> None:
    assert with_interval(correlation, tokens).verdict == verdict


@pytest.mark.usefixtures("unchecked")
def test_wrong_requests_are_refused() -> None:
    model = zoo.bridge("gpt2")
    ids, others = zoo.prompt(model, N), zoo.prompt(model, N, seed=1)
    cache, attribution = cache_of(model, ids), explain(model, ids, TARGET, method="leave_one_out")
    inner = explain(model, ids, TARGET, position=4, method="leave_one_out")
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (attribution, {"k": 0}, "k=0"),
        (attribution, {"least": -1}, "least=-1"),
        (attribution, {"how": "edge"}, "how='edge'"),
        (SpanAttribution((inner,), (*inner.tokens, "x")), {}, "validate takes the attribution of one target"),
        (inner, {}, "another prompt than the cache, or of another position="),
        (attribution.without([4, 5]), {"position": 4}, "of another position="),
    ]
    for given, options, message in cases:
        with pytest.raises((TypeError, ValueError), match=message):
            validate(cache, given, tokens=ids, **options)
    with pytest.raises(ValueError, match="of another prompt than the cache"):
        validate(cache_of(model, others), attribution, tokens=others)
    with pytest.raises(TypeError, match="expected a Prediction, got ActivationCache"):
        effects(cache)  # type: ignore[arg-type]
