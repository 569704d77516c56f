"""Sets of tokens and functions of the logits as targets: every method, both kinds of model, and the slow oracles.

A set of one token is that token; a function that computes what a method reads of a token explains the same.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor

import heta_lens
from helpers import oracles, zoo
from helpers.asking import QUICK, cache_of, explain, plain_embeddings, plain_log_probs, predict, relative, signs
from helpers.heta import oracle_gate
from heta_lens import METHODS, Attribution, causal
from heta_lens._util.target_kinds import KINDS
from heta_lens.metrics import Drops, curve

N, TARGET, OTHER = 7, 7, 9
SET = frozenset((TARGET, OTHER))
ONE_EACH = pytest.mark.parametrize("build", zoo.models("-(gpt2|llama)$"))
pytestmark = pytest.mark.usefixtures("few_words")
METHOD = pytest.mark.parametrize("method", METHODS)


def on_scale(logits: Tensor, tokens: Iterable[int], scale: str) -> Tensor:
    """What a method reads of any of these tokens, from the definition: of one, or of their joint probability."""
    p = logits.softmax(-1)[[*tokens]].sum()
    logit = logits[[*tokens]].exp().sum().log()
    return {"log_prob": p.log(), "prob": p, "logit": logit, "log_odds": p.log() - (1 - p).log()}[scale]


def as_read(method: str, tokens: Iterable[int]) -> Callable[[Tensor], Tensor]:
    """The function that this method would read of these tokens."""
    scale = "logit" if method in ("attn_lrp", "gim", "depass") else getattr(METHODS[method](), "scale", "log_prob")
    return lambda logits: on_scale(logits, tokens, scale)


def asked(model: Any, method: str, target: Any, **changes: Any) -> Attribution:
    return explain(model, zoo.prompt(model, N), target, method=method, **QUICK.get(method, {}) | changes)


# ---------------------------------------------------------------------------------------------------- every method
@METHOD
@ONE_EACH
@pytest.mark.sample(quick=4, test=12)
def test_a_set_of_one_token_is_that_token(build: Callable[..., Any], method: str) -> None:
    model = build()
    one, other = asked(model, method, TARGET), asked(model, method, {TARGET})
    assert torch.equal(one.scores, other.scores)
    assert (one.target, one.target_text, repr(one)) == (other.target, other.target_text, repr(other))


@METHOD
@ONE_EACH
@pytest.mark.sample(quick=10)
def test_a_function_that_computes_what_is_read_explains_the_same(build: Callable[..., Any], method: str) -> None:
    model = build()
    function = as_read(method, [TARGET])
    if "function" not in METHODS[method](**QUICK.get(method, {})).takes:
        with pytest.raises(ValueError, match=rf"method='{method}'.* the function (target=)?<lambda>: "):
            asked(model, method, function)
        return
    expected, found = asked(model, method, TARGET), asked(model, method, function)
    assert relative(found.scores, expected.scores) < 1e-9
    for name, part in expected.parts.items():
        assert relative(found.parts[name], part) < 1e-9, name
    assert (found.target, found.target_text) == (function, "<lambda>")
    assert "<lambda>(logits)" in repr(found)


@METHOD
@ONE_EACH
@pytest.mark.sample(quick=4, test=12)
def test_a_set_is_its_joint_probability(build: Callable[..., Any], method: str) -> None:
    model, takes = build(), METHODS[method](**QUICK.get(method, {})).takes
    if "set" not in takes:
        with pytest.raises(ValueError, match=rf"method='{method}'.*(explains one token, not|the set) any of .*: "):
            asked(model, method, SET)
        return
    found = asked(model, method, SET)
    assert found.scores.isfinite().all()
    assert found.target == SET
    if "function" in takes:
        assert relative(found.scores, asked(model, method, as_read(method, SET)).scores) < 1e-9
    if "contrast" in takes:
        both = asked(model, method, (SET, 20))
        assert both.target == (SET, 20)
        if "function" in takes:
            first, second = as_read(method, SET), as_read(method, [20])
            difference = asked(model, method, lambda logits: first(logits) - second(logits))
            assert relative(both.scores, difference.scores) < 1e-9


@METHOD
def test_a_method_says_of_every_kind_whether_it_takes_it(method: str) -> None:
    model = zoo.bridge("gpt2")
    targets = {"token": TARGET, "set": SET, "contrast": (TARGET, OTHER), "function": as_read(method, [TARGET])}
    targets["activation"] = heta_lens.activation("blocks.0.hook_resid_post", index=0)
    prediction = {kind: predict(model, zoo.prompt(model, N), target) for kind, target in targets.items()}
    made = METHODS[method](**QUICK.get(method, {}))
    for kind in KINDS:
        if kind in made.takes:
            made.check(prediction[kind])
        else:
            with pytest.raises(ValueError, match=f"method='{method}'.*( explains| gives every target the same)"):
                made.check(prediction[kind])


# ------------------------------------------------------------------------------------------------------ HETA's oracle
def lopsided(logits: Tensor) -> Tensor:
    """Neither a log-probability nor linear: curved in the logits by itself."""
    return (logits[3] * logits[5]).tanh() + 0.3 * logits.square().mean() - logits.log_softmax(-1)[8]


def curved(log_probs: Tensor) -> Tensor:
    return -(log_probs.exp() * log_probs).sum()


ORACLE: dict[str, tuple[Any, Callable[[Tensor], Tensor]]] = {
    "set": (SET, lambda logits: on_scale(logits, SET, "log_prob")),
    "contrast of sets": (
        (SET, frozenset((20, 30))),
        lambda logits: on_scale(logits, SET, "log_prob") - on_scale(logits, [20, 30], "log_prob"),
    ),
    "function": (lopsided, lopsided),
    "entropy": (lambda logits: curved(logits.log_softmax(-1)), lambda logits: curved(logits.log_softmax(-1))),
    "raw logit": (lambda logits: logits[TARGET], lambda logits: logits[TARGET]),
}


def plain_logits(model: Any, ids: Tensor) -> Callable[[Tensor], Tensor]:
    def logits(embeddings: Tensor) -> Tensor:
        replace = [("hook_embed", lambda live, hook: embeddings[None].to(live.dtype))]  # noqa: ARG005
        return model.run_with_hooks(ids, fwd_hooks=replace)[0, -1]

    return logits


@pytest.mark.parametrize("name", ORACLE)
@pytest.mark.parametrize("kind", [name for name, _ in zoo.KINDS if re.search("-(gpt2|llama|gptj|native|sinks)$", name)])
@pytest.mark.sample(quick=4)
def test_heta_equals_the_oracle(kind: str, name: str) -> None:
    model, (target, g) = dict(zoo.KINDS)[kind](), ORACLE[name]
    ids, probes = zoo.prompt(model, 5), 3
    attribution = explain(model, ids, target, probes=probes)
    gate = oracle_gate(model, ids)
    embeddings, logits = plain_embeddings(model, ids).double(), plain_logits(model, ids)
    hessian = oracles.dense_hessian(lambda e: g(logits(e)), embeddings, functional=True)
    curvature = oracles.block_l1(hessian, signs(0, probes, *embeddings.shape)).mean(0)
    with torch.no_grad():
        zero = torch.zeros_like(embeddings[0])
        information = oracles.information(plain_log_probs(model, ids), embeddings, zero, "orig_masked")
        drops = [g(logits(embeddings)) - g(logits(oracles._masked(embeddings, i, zero))) for i in range(5)]
    close = max(zoo.tolerance(kind), 1e-7)
    assert relative(attribution.parts["curvature"], curvature) < close
    assert relative(attribution.parts["information"], information) < close
    assert relative(attribution.scores, oracles.eq4(gate, curvature, information, 0.5, 0.5)) < close
    assert relative(attribution.diagnostics["drop"], torch.stack(drops)) < close
    note = {"function": "function", "entropy": "function", "raw logit": "function", "set": "set"}.get(name, "contrast")
    same = float((gate * information).sum() / (gate * (curvature + information)).sum())
    assert attribution.diagnostics.note == (
        f"information is about the whole next-token distribution, not about the {note}: "
        f"{same:.1%} of the score is the same for every target"
    )


# ------------------------------------------------------------------------------------------------- spans and batches
@pytest.mark.parametrize("build", zoo.models("-(gpt2|llama)$"))
def test_spans_and_batches_explain_each_as_if_it_were_alone(build: Callable[..., Any]) -> None:
    model = build()
    ids = zoo.prompt(model, 8)
    cache, targets = cache_of(model, ids), [SET, lopsided, (SET, 20)]
    span = heta_lens.attribute_span(cache, 5, targets=targets, tokens=ids, probes=2)
    for step, place, target in zip(span.steps, (5, 6, 7), targets, strict=True):
        alone = heta_lens.attribute(cache, target, position=place, tokens=ids, probes=2)
        assert relative(step.scores, alone.scores) < 1e-8
        assert relative(step.diagnostics["drop"], alone.diagnostics["drop"]) < 1e-8
        assert step.target == target
    assert span.targets[1] == "lopsided(logits)"
    assert all(words in repr(span) for words in ("any of", "lopsided(logits)"))
    everywhere = heta_lens.attribute_span(cache, 6, targets=lopsided, tokens=ids, probes=2)
    assert everywhere.targets == ("lopsided(logits)",) * 2
    assert everywhere.title.count("lopsided") == 1
    batch = torch.cat([ids, zoo.prompt(model, 8, seed=1)])
    both = heta_lens.attribute_batch(cache_of(model, batch), [SET, lopsided], tokens=batch, probes=2)
    for row, target, found in zip(batch, (SET, lopsided), both, strict=True):
        assert relative(found.scores, explain(model, row[None], target, probes=2).scores) < 1e-8
    for all_alike in (SET, lopsided):
        found = heta_lens.attribute_batch(cache_of(model, batch), all_alike, tokens=batch, variant="gs", gamma=0)
        assert [one.target for one in found] == [all_alike] * 2


# ---------------------------------------------------------------------------------------------------- interventions
@pytest.mark.slow
def test_interventions_and_metrics_take_any_target() -> None:
    model = zoo.bridge("gpt2")
    ids, other = zoo.prompt(model, N), zoo.prompt(model, N, seed=1)
    cache, corrupted = cache_of(model, ids), cache_of(model, other)

    def as_token(call: Callable[[Any], Any], scale: str) -> None:
        reads = {
            kind: (lambda logits, s=set_: on_scale(logits, s, scale))
            for kind, set_ in (("one", [TARGET]), ("any", SET))
        }
        for target, function in ((TARGET, reads["one"]), (SET, reads["any"])):
            expected, found = call(target), call(function)
            assert relative(found, expected) < 1e-9

    as_token(lambda target: causal.effects(predict(model, ids, target)), "log_prob")
    as_token(lambda target: causal.patch(cache, corrupted, target).values, "log_prob")
    as_token(lambda target: causal.trace(cache, target, samples=1).values, "prob")
    as_token(lambda target: causal.ablate_heads(cache, target).values, "log_prob")
    scores = torch.linspace(1, 2, N)
    as_token(lambda target: torch.tensor(curve(predict(model, ids, target), scores).values), "prob")
    as_token(lambda target: Drops.of(predict(model, ids, target)).each, "log_prob")
    explained = explain(model, ids, lopsided)
    assert causal.validate(cache, explained, tokens=ids).effects.isfinite().all()
    assert "lopsided(logits)" in causal.patch(cache, corrupted, lopsided).title
