"""Activations as targets, against full runs of the model: what is read, masked effects, gradients and the curvature."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import heta_lens
from helpers import oracles, zoo
from helpers.asking import cache_of, hooked, missing, plain_embeddings, predict, refusal, relative, signs
from heta_lens import activation, attribute, attribute_batch, attribute_span
from heta_lens._util.target_kinds import function_name
from heta_lens.prediction.patching import redrawn

pytestmark = [pytest.mark.usefixtures("unchecked"), pytest.mark.both_lines]
STREAM = "blocks.0.hook_resid_post"
DIRECTION = torch.linspace(-1, 1, 8, dtype=torch.float64)


def number(model: Any, ids: Tensor, hook_name: str, pick: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The number as a function of the embeddings: one full run, nothing shared."""

    def read(embeddings: Tensor) -> Tensor:
        seen: list[Tensor] = []
        replace = ("hook_embed", lambda live, hook: embeddings[None].to(live.dtype))  # noqa: ARG005
        model.run_with_hooks(ids, fwd_hooks=[replace, (hook_name, lambda live, hook: seen.append(live))])  # noqa: ARG005
        return pick(seen[0][0, ids.shape[1] - 1])

    return read


def along(state: Tensor) -> Tensor:
    return state @ DIRECTION.to(state)


@pytest.mark.parametrize(("name", "build"), zoo.named(""))
def test_scores_are_those_of_full_runs(name: str, build: Any) -> None:
    model, off = build(), zoo.tolerance(name)
    ids = zoo.prompt(model, 5)
    embeddings, read = plain_embeddings(model, ids), number(model, ids, STREAM, along)
    cache, target = cache_of(model, ids), activation(STREAM, direction=DIRECTION)
    leaf = embeddings.clone().requires_grad_()
    value = read(leaf)
    (gradient,) = torch.autograd.grad(value, leaf)

    found = attribute(cache, target, tokens=ids, method="gradient_norm")
    assert found.diagnostics.target_value == pytest.approx(value.item(), rel=10 * off)
    assert relative(found.scores, gradient.norm(dim=-1)) < 10 * off
    masked = embeddings.repeat(5, 1, 1)
    masked[range(5), range(5)] = 0
    with torch.no_grad():
        drops = torch.stack([read(embeddings) - read(each) for each in masked])
    found = attribute(cache, target, tokens=ids, method="leave_one_out")
    assert relative(found.scores, drops) < 10 * off

    options = {"probes": 2, "groups": None, "beta": 1.0, "gamma": 1.0}
    found = attribute(cache, target, tokens=ids, **options)
    hessian = oracles.dense_hessian(read, embeddings, functional=True)
    curvature = oracles.block_l1(hessian, signs(0, 2, 5, 8)).mean(0)
    assert relative(found.parts["curvature"], curvature) < 1000 * off
    assert relative(found.parts["information"], drops.abs()) < 10 * off


@pytest.mark.parametrize("build", zoo.models("bridge-(gpt2|llama|native)$|hooked-(gpt2|llama)$"))
def test_the_gate_is_over_the_layers_below(build: Any) -> None:
    model = build()
    ids = zoo.prompt(model, 5)
    _, cache = model.run_with_cache(ids)
    found = attribute(cache, activation(STREAM, index=1), tokens=ids, probes=2)
    norms = (cache["blocks.0.attn.hook_v"][0].double()).norm(dim=-1)
    assert norms.shape[0] == 5
    flow = cache["blocks.0.attn.hook_pattern"][0, :, -1].double()
    output = heta_lens.Prediction.from_cache(cache, 5, tokens=ids).output_weights[0].double()
    values = cache["blocks.0.attn.hook_v"][0].double()
    values = values.repeat_interleave(len(output) // values.shape[1], 1)
    sizes = torch.einsum("phk,hkd->hpd", values, output).norm(p=1, dim=-1)
    expected = (flow * sizes).sum(0)
    assert relative(found.parts["gate"], expected / expected.sum()) < 1e-4


@pytest.mark.parametrize("build", zoo.models("bridge-(gpt2|llama|neox|gptj|native)$|hooked-(gpt2|llama|gptj)$"))
def test_a_head_a_neuron_and_a_function_are_read_where_they_are(build: Any) -> None:
    model = build()
    ids = zoo.prompt(model, 6)
    _, cache = model.run_with_cache(ids)
    z = "blocks.1.attn.hook_z"
    ways = [
        (activation(name, index=3), cache[name][0, -1, 3])
        for name in ("blocks.0.hook_resid_pre", STREAM, "blocks.1.hook_resid_pre", "blocks.1.hook_resid_post")
    ]
    if cache[z].ndim == 4:
        ways += [
            (activation(z, head=1, index=0), cache[z][0, -1, 1, 0]),
            (activation(z, head=0, function=torch.sum), cache[z][0, -1, 0].sum()),
        ]
    last = cache["blocks.1.hook_resid_post"][0]
    ways += [(activation("blocks.1.hook_resid_post", index=3, at=2), last[2, 3])]
    ways += [
        (
            (activation(STREAM, index=3), activation("blocks.1.hook_resid_post", index=0)),
            cache[STREAM][0, -1, 3] - last[-1, 0],
        )
    ]
    for target, expected in ways:
        found = attribute(cache, target, tokens=ids, method="input_x_gradient")
        assert found.diagnostics.target_value == pytest.approx(float(expected), rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("options", [{"method": "input_x_gradient"}, {"method": "fast"}, {"probes": 2}], ids=str)
def test_a_pair_in_two_blocks_is_the_same_by_blocks(options: dict[str, Any]) -> None:
    model = zoo.bridge.__wrapped__("gpt2", n_layers=4)
    ids, pair = zoo.prompt(model, 6), tuple(activation(f"blocks.{layer}.mlp.hook_post", index=1) for layer in (2, 0))
    cache = cache_of(model, ids)
    whole, by_block = (attribute(cache, pair, tokens=ids, checkpoint=each, **options) for each in (False, True))
    assert relative(by_block.scores, whole.scores) < 1e-4
    prediction = predict(model, ids, pair)
    with prediction.running(), torch.no_grad():
        found = prediction.rerun(layer=2).g(prediction.states(2)[None])[0]
    assert float(found) == pytest.approx(float(prediction.value), rel=1e-5)


def test_one_component_is_explained_and_a_tensor_is_an_index(tmp_path: Path) -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, 6)
    found = attribute(
        cache_of(model, ids), activation("blocks.1.ln2.hook_scale", index=torch.tensor(0)), tokens=ids, probes=2
    )
    found.save(tmp_path / "a.safetensors")
    assert heta_lens.Attribution.load(tmp_path / "a.safetensors").target.index == 0


@pytest.mark.parametrize("name", ["mlp.hook_pre", "attn.hook_q", "attn.hook_v"])
@pytest.mark.parametrize("method", ["fast", "attn_lrp"])
@pytest.mark.parametrize("build", zoo.models("hooked-llama$"))
def test_what_a_rule_changes_is_no_target(build: Any, method: str, name: str) -> None:
    model = build()
    ids, target = zoo.prompt(model, 6), activation(f"blocks.1.{name}", index=1, head=0 if "attn" in name else None)
    refused = refusal(cache_of(model, ids), target, tokens=ids, method=method)
    assert f"changes the gradient at blocks.1.{name}" in refused
    assert attribute(cache_of(model, ids), target, tokens=ids, method="input_x_gradient").scores.any()


@pytest.mark.parametrize("build", zoo.models("hooked-gpt2$"))
def test_gim_explains_what_enters_a_block(build: Any) -> None:
    model = build()
    ids, target = zoo.prompt(model, 6), activation("blocks.1.hook_resid_pre", index=0)
    assert attribute(cache_of(model, ids), target, tokens=ids, method="gim").scores.any()


def test_tokens_are_drawn_from_the_models_prediction_of_tokens() -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, 6)
    of_token, of_number = (predict(model, ids, target) for target in (7, activation(STREAM, index=1)))
    for one, other in zip(redrawn(of_token, 3, 0), redrawn(of_number, 3, 0), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("rule", ["attn_lrp", "cp_lrp"])
def test_relevance_of_the_last_norm_is_that_of_the_logits_it_makes(rule: str) -> None:
    """Where an unembedding has no bias, a logit is a direction of what the last norm gives."""
    model = zoo.bridge("llama")
    ids = zoo.prompt(model, 6)
    cache, direction = cache_of(model, ids), model.unembed.W_U[:, 7].detach()
    found = attribute(
        cache, activation("ln_final.hook_out", direction=direction), tokens=ids, method="attn_lrp", rule=rule
    )
    expected = attribute(cache, 7, tokens=ids, method="attn_lrp", rule=rule)
    assert relative(found.scores, expected.scores) < 1e-4


def test_a_span_and_a_batch_read_a_row_a_position() -> None:
    model = zoo.bridge("gpt2")
    ids, target = zoo.prompt(model, 6), activation(STREAM, index=2)
    cache = cache_of(model, ids)
    span = attribute_span(cache, 3, targets=target, tokens=ids, method="gradient_norm")
    assert [step.diagnostics.target_value for step in span.steps] == pytest.approx(
        [float(model.run_with_cache(ids)[1][STREAM][0, place - 1, 2]) for place in (3, 4, 5)]
    )
    for place, step in zip((3, 4, 5), span.steps, strict=True):
        alone = attribute(cache, target, position=place, tokens=ids, method="gradient_norm")
        torch.testing.assert_close(step.scores, alone.scores)
    both = torch.cat([ids, ids.flip(1)])
    batch = attribute_batch(cache_of(model, both), target, tokens=both, method="gradient_norm")
    torch.testing.assert_close(batch[0].scores, attribute(cache, target, tokens=ids, method="gradient_norm").scores)


def test_no_block_above_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for five tokens, with which it is tried whether the activation can be read."""
    model, lengths = zoo.bridge.__wrapped__("gpt2"), list[int]()
    ids = zoo.prompt(model, 9)
    cache, before = cache_of(model, ids), model(ids)
    mlp = model.blocks[1].mlp.original_component
    forward = mlp.forward
    monkeypatch.setattr(mlp, "forward", lambda states: lengths.append(states.shape[1]) or forward(states))
    attribute(cache, activation(STREAM, index=0), tokens=ids, probes=2)
    assert set(lengths) <= {5}
    assert torch.equal(model(ids), before)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"hook_name": "blocks.0.hook_resid_pots", "index": 0}, ["hook_resid_pots", "did you mean", STREAM]),
        (
            {"hook_name": "blocks.0.attn.hook_pattern", "index": 0},
            ["hook_pattern", "has no row for every token", "hook_z'"],
        ),
        ({"hook_name": "unembed.hook_in", "index": 0}, ["unembed.hook_in", "function of the logits"]),
        ({"hook_name": STREAM, "index": 8}, ["index=8", "none of the 8"]),
        ({"hook_name": STREAM, "index": 0, "head": 0}, ["head=0", "without heads"]),
        ({"hook_name": "blocks.0.attn.hook_v", "index": 0}, ["heads of", "give head="]),
        ({"hook_name": STREAM, "direction": torch.ones(5)}, ["(5,)", "8 components"]),
        ({"hook_name": STREAM, "index": 0, "at": 5}, ["at=5", "none of the 5 tokens"]),
        ({"hook_name": STREAM, "index": 0, "at": 0.5}, ["at=0.5", "none of the 5 tokens"]),
        ({"hook_name": STREAM, "function": lambda state: state.detach().sum()}, ["no gradient by the activation"]),
    ],
    ids=lambda value: " ".join(value),  # of words; a function would be named by its address
)
def test_what_does_not_fit_is_refused(options: dict[str, Any], words: list[str]) -> None:
    model = zoo.bridge("gpt2")
    assert missing(words, refusal(cache_of(model, zoo.prompt(model, 5)), activation(**options))) == ""


def test_every_token_may_be_named_from_either_end() -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, 5)
    _, cache = model.run_with_cache(ids)
    for at in range(-5, 5):
        found = attribute(cache, activation(STREAM, index=0, at=at), tokens=ids, method="input_x_gradient")
        assert found.diagnostics.target_value == pytest.approx(float(cache[STREAM][0, at, 0]))
        assert len(found) == at % 5 + 1


@pytest.mark.skipif(not zoo.HAS_HOOKED, reason="a HookedTransformer")
def test_an_option_of_the_model_may_let_runs_reach_more() -> None:
    model = zoo.hooked.__wrapped__("gpt2")  # a new one
    ids, target = zoo.prompt(model, 5), activation("blocks.1.attn.hook_result", head=1, index=3)
    assert "no run of this model reaches it" in refusal(cache_of(model, ids), target)
    model.set_use_attn_result(True)
    _, cache = model.run_with_cache(ids)
    found = attribute(cache, target, tokens=ids, method="input_x_gradient")
    assert found.diagnostics.target_value == pytest.approx(float(cache[target.hook_name][0, -1, 1, 3]))


def test_a_hook_may_be_for_a_late_position() -> None:
    model = zoo.bridge.__wrapped__("gpt2")  # a new one
    ids, name = zoo.prompt(model, 8), "blocks.0.hook_resid_post"

    def moved(state: Tensor, hook: Any) -> Tensor:  # noqa: ARG001
        return torch.cat([state[:, :6], 2 * state[:, [6]], state[:, 7:]], 1)

    target = activation("blocks.1.hook_resid_pre", index=3, at=6)
    before = model.run_with_cache(ids)[1][target.hook_name][0, 6, 3]
    with hooked(model, (name, moved)):
        found = attribute(cache_of(model, ids), target, tokens=ids, method="input_x_gradient")
    assert found.diagnostics.target_value == pytest.approx(2 * float(before))


def test_a_method_that_needs_a_distribution_says_so(cache: Any) -> None:
    target = activation(STREAM, index=0)
    assert missing(["activation", STREAM], refusal(cache, target, method="attention_rollout")) == ""
    assert missing(["activation", "leave_one_out"], refusal(cache, target, method="leave_one_out", effect="kl")) == ""
    pair = (target, activation(STREAM, index=1, at=2))
    assert missing(["at=2", "second activation"], refusal(cache, pair)) == ""
    with pytest.raises(TypeError, match=rf"one of index=, direction= and function=.*'{STREAM}', index=0\)$"):
        activation(STREAM)
    with pytest.raises(TypeError, match=r"'blocks.0.attn.hook_z', head=3, index=0\)$"):
        activation("blocks.0.attn.hook_pattern", head=3)


def test_a_saved_activation_can_be_asked_about_again(cache: Any, tmp_path: Any) -> None:
    target = (activation(STREAM, direction=DIRECTION.numpy()), activation(STREAM, index=0))
    found = attribute(cache, target, method="gradient_norm")
    found.save(tmp_path / "one.safetensors")
    loaded = heta_lens.Attribution.load(tmp_path / "one.safetensors")
    assert function_name(loaded.target) == function_name(found.target) == f"direction · {STREAM} − {STREAM}[0]"
    again = attribute(cache, loaded.target, method="gradient_norm")
    torch.testing.assert_close(again.scores, found.scores)
    assert function_name(found.target) in str(found)
    attribute(cache, activation(STREAM, function=torch.norm), method="gradient_norm").save(tmp_path / "two.safetensors")
    named = heta_lens.Attribution.load(tmp_path / "two.safetensors").target
    assert missing([f"only the name of norm({STREAM})", "function=…) anew"], refusal(cache, named)) == ""
