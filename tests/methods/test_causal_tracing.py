"""Causal tracing against one run per restored state."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from helpers import zoo
from helpers.asking import explain_by as explain
from helpers.asking import plain_embeddings, predict, relative
from heta_lens.methods.causal_tracing import CausalTracing

N, TARGET, OTHER = 4, 7, 9

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
    assert relative(score(model, CausalTracing(samples=1, seed=5, noise=1)), expected.max(0).values) < 1e-6


@ONE_EACH
def test_a_prompt_that_does_not_begin_with_a_beginning_is_drowned_as_a_whole(build: Callable[..., Any]) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    ids[0, 0] = 5
    assert CausalTracing(**QUICK)(predict(model, ids, TARGET)).diagnostics["effects"][0, 0].abs() > 1e-6


@FAMILIES
def test_a_contrast_is_the_difference_of_two_tables(build: Callable[..., Any]) -> None:
    model, method = build(), CausalTracing(samples=1, scale="log_prob")
    targets = (TARGET, OTHER, (TARGET, OTHER))
    first, second, both = (explain(model, method, target).diagnostics["effects"] for target in targets)
    assert relative(both, first - second) < 1e-6
