"""Causal tracing against one run per restored state."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from helpers import zoo
from helpers.activations import OTHER, TARGET, N, alike_by_loops, explain
from helpers.asking import plain_embeddings, predict, relative
from heta_lens.methods.causal_tracing import CausalTracing, evenly
from heta_lens.methods.peering import Peering

FAMILIES = pytest.mark.parametrize("build", zoo.models("-(gpt2|llama|gptj)$"))
ONE_EACH = pytest.mark.parametrize("build", zoo.models("-gpt2$"))
QUICK = {"samples": 2}


def score(model: Any, method: Any) -> Tensor:
    return explain(model, method).scores


def drowned(model: Any, ids: Tensor, seed: int, sample: int, amount: float) -> Tensor:
    clean = plain_embeddings(model, ids)
    noise = np.random.default_rng([seed, sample, *ids[0].tolist()]).standard_normal(clean.shape)
    spread = float(((clean - clean.mean()) ** 2).mean() ** 0.5)
    noisy = clean + amount * spread * torch.from_numpy(noise)
    noisy[0] = clean[0]  # the zoo's prompts begin with <bos>
    return noisy


@torch.no_grad()
def probability(model: Any, ids: Tensor, hooks: list[Any]) -> float:
    return float(model.run_with_hooks(ids, fwd_hooks=hooks)[0, -1].double().softmax(-1)[TARGET])


def embedded(states: Tensor) -> tuple[str, Any]:
    return "hook_embed", lambda live, hook: states[None].to(live)  # noqa: ARG005


def restored(layer: int, position: int, clean: Tensor) -> tuple[str, Any]:
    def put_back(live: Tensor, hook: Any) -> Tensor:  # noqa: ARG001
        live = live.clone()
        live[0, position] = clean[position]
        return live

    return f"blocks.{layer}.hook_resid_post", put_back


def effects_by_runs(model: Any, ids: Tensor, seed: int, samples: int, amount: float) -> Tensor:
    """Meng's table, a run for each sample, layer and token."""
    _, cache = model.run_with_cache(ids)
    layers, n = model.cfg.n_layers, ids.shape[1]
    table = torch.zeros(layers, n, dtype=torch.float64)
    for sample in range(samples):
        noisy = embedded(drowned(model, ids, seed, sample, amount))
        low = probability(model, ids, [noisy])
        for layer in range(layers):
            clean = cache[f"blocks.{layer}.hook_resid_post"][0]
            for i in range(n):
                table[layer, i] += (probability(model, ids, [noisy, restored(layer, i, clean)]) - low) / samples
    return table


@FAMILIES
def test_tracing_equals_one_run_for_each_state_put_back(build: Callable[..., Any]) -> None:
    model = build()
    expected = effects_by_runs(model, zoo.prompt(model, N), seed=0, samples=2, amount=3.0)
    found = explain(model, CausalTracing(**QUICK))
    assert relative(found.diagnostics["effects"], expected) < 1e-6
    assert relative(found.scores, expected.max(0).values) < 1e-6
    expected = effects_by_runs(model, zoo.prompt(model, N), seed=5, samples=1, amount=1.0)
    mean = score(model, CausalTracing(samples=1, seed=5, noise=1, reduce="mean"))
    assert relative(mean, expected.mean(0)) < 1e-6


@FAMILIES
def test_drowning_one_token_equals_one_run_each(build: Callable[..., Any]) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    clean, expected = plain_embeddings(model, ids), torch.zeros(N, dtype=torch.float64)
    for sample in range(2):
        noisy = drowned(model, ids, 0, sample, 2.0)
        for i in range(N):
            one = clean.clone()
            one[i] = noisy[i]
            expected[i] += (probability(model, ids, []) - probability(model, ids, [embedded(one)])) / 2
    found = explain(model, CausalTracing(mode="noise_one", samples=2, noise=2.0))
    assert relative(found.scores, expected) < 1e-6
    assert found.scores[0].abs() < 1e-9 and "effects" not in found.diagnostics


@FAMILIES
def test_all_that_the_last_layer_hands_on_is_what_the_last_position_holds(build: Callable[..., Any]) -> None:
    model = build()
    found = explain(model, CausalTracing(**QUICK))
    after_last = found.diagnostics["effects"][-1]
    assert torch.equal(found.without([1]).diagnostics["effects"][-1], torch.cat([after_last[:1], after_last[2:]]))
    low = np.mean(
        [
            probability(model, zoo.prompt(model, N), [embedded(drowned(model, zoo.prompt(model, N), 0, k, 3.0))])
            for k in (0, 1)
        ]
    )
    assert float(after_last[-1]) == pytest.approx(probability(model, zoo.prompt(model, N), []) - low, rel=1e-6)
    assert after_last[:-1].abs().max() < 1e-7 * after_last[-1].abs()
    assert found.diagnostics["effects"][:, 0].abs().max() < 1e-7 * after_last[-1].abs()  # <bos> was never drowned


@ONE_EACH
def test_without_noise_nothing_is_to_be_restored(build: Callable[..., Any]) -> None:
    for mode in ("restore", "noise_one"):
        assert score(build(), CausalTracing(samples=1, mode=mode, noise=0)).abs().max() < 1e-12


@ONE_EACH
def test_a_prompt_that_does_not_begin_with_a_beginning_is_drowned_as_a_whole(build: Callable[..., Any]) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    ids[0, 0] = 5
    assert CausalTracing(**QUICK)(predict(model, ids, TARGET)).diagnostics["effects"][0, 0].abs() > 1e-6
    assert CausalTracing(**QUICK, mode="noise_one")(predict(model, ids, TARGET)).scores[0].abs() > 1e-6


def test_layers_are_taken_evenly_and_the_last_only_among_all() -> None:
    assert evenly(5, 12) == [0, 2, 4, 7, 9]
    assert evenly(1, 9) == [0]
    assert evenly(5, 2) == [0, 1] and evenly(3, 3) == [0, 1, 2]


@ONE_EACH
def test_tracing_takes_the_layers_it_is_told(build: Callable[..., Any]) -> None:
    every, first = (explain(build(), CausalTracing(**QUICK, layers=layers)) for layers in (2, 1))
    assert every.diagnostics["layers"] == [0, 1] and first.diagnostics["layers"] == [0]
    assert relative(first.scores, every.diagnostics["effects"][0]) < 1e-12


@ONE_EACH
@pytest.mark.parametrize("mode", ["restore", "noise_one"])
def test_more_draws_average_and_scales_differ(build: Callable[..., Any], mode: Any) -> None:
    model = build()
    one, two = (score(model, CausalTracing(mode=mode, samples=samples)) for samples in (1, 2))
    prob, logit = (score(model, CausalTracing(mode=mode, samples=1, scale=scale)) for scale in ("prob", "logit"))
    assert torch.equal(one, prob)
    assert relative(two, one) > 1e-3 and relative(logit, prob) > 1e-3


@FAMILIES
@pytest.mark.parametrize("mode", ["restore", "noise_one"])
def test_a_contrast_is_the_difference_of_two_tables(build: Callable[..., Any], mode: Any) -> None:
    model, method = build(), CausalTracing(samples=1, mode=mode, scale="log_prob")
    first, second, both = (explain(model, method, target) for target in (TARGET, OTHER, (TARGET, OTHER)))
    if mode == "restore":
        first, second, both = (found.diagnostics["effects"] for found in (first, second, both))
    else:
        first, second, both = (found.scores for found in (first, second, both))
    assert relative(both, first - second) < 1e-6


@ONE_EACH
def test_hooks_of_others_stay_and_see_the_prompt_they_know(build: Callable[..., Any]) -> None:
    """A hook that speaks of positions is in the clean runs, the noisy ones and the oracle's."""
    model, ids = build(), zoo.prompt(build(), N + 2)
    seen: set[tuple[int, int]] = set()

    def turn(live: Tensor, hook: Any) -> Tensor:  # noqa: ARG001
        seen.add((len(live), live.shape[1]))
        return live * torch.linspace(0.5, 2, live.shape[1], dtype=live.dtype)[:, None]

    try:
        model.add_hook("blocks.0.hook_resid_post", turn)
        prediction = predict(model, ids, TARGET, position=N)
        found = [method(prediction).scores for method in (CausalTracing(**QUICK), Peering())]
        assert seen == {(1, N + 2)}
        ids[0, N] = TARGET
        _, cache = model.run_with_cache(ids)
        expected = alike_by_loops(cache["blocks.1.hook_resid_post"][0], N, center=False)
        assert relative(found[1], (expected - expected.mean()).clamp(min=0)) < 1e-9
    finally:
        model.reset_hooks()
    assert relative(found[0], score(model, CausalTracing(**QUICK))) > 1e-3
