"""AttnLRP and its relatives against plain re-implementations of three families."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers import zoo
from helpers.asking import busy, plain_embeddings, plain_log_probs, predict, relative
from helpers.relevance_oracles import Rules, relevances
from heta_lens.methods.relevance import RULES, AttnLrp, rules

N, TARGET, FOIL = 9, 7, 20
PLAIN = {
    "attn_lrp": Rules(query=0.25, key=0.25, value=0.5, gate=0.5, other=0.5),
    "cp_lrp": Rules(query=0, key=0, value=1, gate=0, other=1),
    "relp": Rules(query=1, key=1, value=1, gate=0.5, other=0.5),
}

RULE = pytest.mark.parametrize("rule", PLAIN)
FAMILY = pytest.mark.parametrize("build", zoo.models("-(gpt2|llama|gptj)$"))
ALL = pytest.mark.parametrize("build", zoo.models("^(?!.*(gemma2|gptoss)$)"))
ONE_EACH = pytest.mark.parametrize("build", zoo.models("-(gpt2|llama)$"))


def scores(model: Any, target: Any = TARGET, **options: Any) -> Tensor:
    return AttnLrp(**options)(predict(model, zoo.prompt(model, N), target)).scores


def exact(build: Any) -> bool:
    """Whether all of it is computed in float64: bridges of some families have norms and softmax in float32."""
    return build.args[0] == "gpt2" or build.func is zoo.hooked


# ----------------------------------------------------------------------------------------------------------- exactly so
@RULE
@FAMILY
def test_relevances_are_those_of_a_plain_implementation(build: Any, rule: str) -> None:
    model, (family, *_) = build(), build.args
    wanted, log_probs = relevances(model, family, PLAIN[rule], TARGET, N)
    plain = plain_log_probs(model, zoo.prompt(model, N))(plain_embeddings(model, zoo.prompt(model, N)))
    assert (
        relative(plain.detach(), log_probs) < 1e-6
    )  # of the same model, but for norms that Hugging Face takes in float32
    assert relative(scores(model, rule=rule), wanted) < (1e-9 if exact(build) else 1e-6)


@ONE_EACH
def test_a_contrast_is_the_difference_of_logits(build: Any) -> None:
    model = build()
    both = scores(model, (TARGET, FOIL))
    assert relative(both, scores(model) - scores(model, FOIL)) < 1e-6
    assert relative(both, relevances(model, build.args[0], PLAIN["attn_lrp"], (TARGET, FOIL), N)[0]) < 1e-6


@ALL
def test_every_value_stays_as_it_is(build: Any) -> None:
    model = build()
    prediction = predict(model, zoo.prompt(model, N), TARGET)
    adapter, states = prediction.adapter, prediction.embeddings[None]
    with prediction.running():
        clean = prediction.logits_from()(states)
        for rule in RULES.values():
            with adapter.hooked(rules(adapter, *rule)):
                changed = prediction.logits_from()(states.clone().requires_grad_())
            assert relative(changed.detach(), clean) < 1e-12
    assert not any(point.fwd_hooks for point in model.hook_dict.values())


def test_processing_weights_changes_no_contrast() -> None:
    raw = scores(zoo.bridge("gpt2"), (TARGET, FOIL))
    processed = zoo.bridge.__wrapped__("gpt2")  # a new one
    processed.enable_compatibility_mode(disable_warnings=True)
    assert relative(scores(processed, (TARGET, FOIL)), raw) < 1e-6


# -------------------------------------------------------------------------------------------------- what is conserved
@contextmanager
def without(model: Any, pattern: str) -> Iterator[None]:
    """The model, with these parameters at 0."""
    named = [(name, weight) for name, weight in model.named_parameters() if re.search(pattern, name)]
    kept = [weight.detach().clone() for _, weight in named]
    try:
        for _, weight in named:
            weight.data.zero_()
        yield
    finally:
        for (_, weight), before in zip(named, kept, strict=True):
            weight.data.copy_(before)


BIASES = r"(?<![a-zA-Z])b(_[A-Z]|_in|_out)?$|bias$|wpe|W_pos|\bpos\b|pos_embed"


def logit(model: Any) -> float:
    with torch.no_grad():
        return float(model(zoo.prompt(model, N))[0, -1, TARGET])


@ALL
def test_without_biases_and_positions_constant_attention_hands_all_of_the_logit_on(build: Any) -> None:
    model = build()
    with without(model, BIASES):
        found = AttnLrp(rule="cp_lrp")(predict(model, zoo.prompt(model, N), TARGET))
        assert abs(float(found.scores.sum()) / logit(model) - 1) < 1e-4
        assert abs(found.diagnostics["absorbed"]) < 1e-4 * abs(logit(model))


@RULE
@ONE_EACH
def test_without_attention_all_of_it_comes_from_the_last_token(build: Any, rule: str) -> None:
    model = build()
    with without(model, BIASES + r"|attn.*(W_V|v_proj|c_attn|\bv\b|qkv)"):
        found = scores(model, rule=rule)
        assert found[:-1].abs().max() < 1e-12
        assert abs(float(found[-1]) / logit(model) - 1) < 1e-4


def test_what_no_token_received_is_what_biases_and_positions_receive() -> None:
    model = zoo.bridge("gpt2")
    prediction = predict(model, zoo.prompt(model, N), TARGET)
    weights = [weight for name, weight in model.named_parameters() if re.search(BIASES, name)]
    with prediction.adapter.hooked(rules(prediction.adapter, *RULES["cp_lrp"])):
        value = prediction.read(prediction.logits_from()(prediction.embeddings[None])[0], "logit")
    gradients = torch.autograd.grad(value, weights, allow_unused=True)
    pairs = zip(weights, gradients, strict=True)
    received = sum(float((weight.detach() * gradient).sum()) for weight, gradient in pairs if gradient is not None)
    found = AttnLrp(rule="cp_lrp")(prediction)
    assert abs(received) > 0.1 and found.diagnostics["absorbed"] == pytest.approx(received, rel=1e-6)


# ------------------------------------------------------------------------------------------------------- and the rest
@ONE_EACH
def test_the_rules_differ_and_are_no_plain_gradient(build: Any) -> None:
    model = build()
    e = plain_embeddings(model, zoo.prompt(model, N)).requires_grad_()
    place = [("hook_embed", lambda live, hook: e[None])]  # noqa: ARG005
    plain = model.run_with_hooks(zoo.prompt(model, N), fwd_hooks=place)[0, -1, TARGET]
    (gradient,) = torch.autograd.grad(plain, e)
    kinds = [*(scores(model, rule=rule) for rule in PLAIN), (e * gradient).sum(-1).detach()]
    assert all(relative(one, other) > 0.05 for one in kinds for other in kinds if one is not other)


@FAMILY
def test_somebodys_hooks_stay_and_what_they_put_in_place_passes_on_nothing(build: Any) -> None:
    model, (family, *_) = build(), build.args
    ids, name = zoo.prompt(model, N), "blocks.0.mlp.hook_post"
    clean = model.run_with_cache(ids, names_filter=[name])[1][name]
    with model.hooks(fwd_hooks=[(name, lambda live, hook: clean)]):  # noqa: ARG005
        found = scores(model)
    assert relative(found, relevances(model, family, PLAIN["attn_lrp"], TARGET, N, still=0)[0]) < 1e-6
    assert relative(found, scores(model)) > 0.01


@ONE_EACH
def test_the_model_is_as_it_was(build: Any) -> None:
    model = busy(build())
    flags = [parameter.requires_grad for parameter in model.parameters()]
    try:
        scores(model)
        assert [parameter.requires_grad for parameter in model.parameters()] == flags
        assert sum(len(point.fwd_hooks) for point in {id(at): at for at in model.hook_dict.values()}.values()) == 1
    finally:
        model.reset_hooks()
        model.requires_grad_(True)


@ONE_EACH
def test_half_precision_is_close(build: Any) -> None:
    found = scores(build(torch.bfloat16))
    assert found.isfinite().all()
    assert relative(found, scores(build())) < 0.1


@pytest.mark.parametrize(
    ("family", "says"),
    [("gemma2", "a model that caps its attention scores or logits: choose another"), ("gptoss", "mixes experts")],
)
def test_what_has_no_rule_is_refused_before_any_work(family: str, says: str, forwards: Any) -> None:
    model = zoo.bridge(family)
    prediction = predict(model, zoo.prompt(model, N), TARGET)
    runs = forwards(model)
    with pytest.raises(ValueError, match=f"method='attn_lrp' has no rule for .*{says}"):
        AttnLrp()(prediction)
    assert not runs


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"act_fn": "solu"}, "has the activation 'solu'"),
        ({"act_fn": "gelu_ln"}, "has the activation 'gelu_ln'"),
        ({"gated_mlp": True}, "has MLPs of which layer 0 is not seen to be gated"),
        ({"clip_qkv": 8.0}, "clips queries, keys and values"),
    ],
)
def test_what_the_config_tells_is_refused(settings: dict[str, Any], says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = zoo.bridge("gpt2")
    prediction = predict(model, zoo.prompt(model, N), TARGET)
    for name, value in settings.items():
        monkeypatch.setattr(model.cfg, name, value, raising=False)
    with pytest.raises(ValueError, match=says):
        AttnLrp()(prediction)


def test_what_no_hook_shows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = zoo.bridge("gpt2")
    prediction = predict(model, zoo.prompt(model, N), TARGET)
    points = prediction.adapter.points
    missing = {name: point for name, point in points.items() if name != "blocks.1.attn.hook_k"}
    monkeypatch.setitem(vars(prediction.adapter), "points", missing)
    with pytest.raises(ValueError, match=re.escape("has no blocks.1.attn.hook_k")):
        AttnLrp()(prediction)
    gated = {**points, "blocks.0.attn.hook_q_gate": points["hook_embed"]}
    monkeypatch.setitem(vars(prediction.adapter), "points", gated)
    with pytest.raises(ValueError, match=re.escape("gates what attention writes (blocks.0.attn.hook_q_gate)")):
        AttnLrp()(prediction)
    monkeypatch.setitem(vars(prediction.adapter), "points", points)
    model.blocks[0].mlp.add_module("inner", torch.nn.LayerNorm(2))
    try:
        with pytest.raises(ValueError, match="has a LayerNorm that shows no scale"):
            AttnLrp()(prediction)
    finally:
        del model.blocks[0].mlp.inner


@pytest.mark.usefixtures("unchecked")
def test_a_rule_there_is_not() -> None:
    with pytest.raises(ValueError, match="rule='lrp' is not one of 'attn_lrp', 'cp_lrp'"):
        AttnLrp(rule="lrp")  # type: ignore[arg-type]
