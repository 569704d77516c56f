"""Causal tracing against runs with an activation at a position put back at a time."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from helpers import zoo
from helpers.asking import cache_of, hooked, plain_embeddings, predict, relative
from heta_lens import activation
from heta_lens.causal import Grid, trace
from heta_lens.methods.causal_tracing import CausalTracing
from heta_lens.model.adapter import ModelAdapter

N, LAYERS, TARGET, OTHER = 4, 4, 7, 9
WAYS: list[dict[str, Any]] = [
    {"what": "resid_post"},
    {"what": "mlp_out"},
    {"what": "attn_out"},
    {"what": "mlp_out", "window": 3},
    {"what": "attn_out", "window": 3},
]


def traced(model: Any, ids: Tensor, target: Any = TARGET, **options: Any) -> Grid:
    return trace(cache_of(model, ids), target, tokens=ids, **{"samples": 2, **options})


FAMILIES = pytest.mark.parametrize("build", zoo.models("-(gpt2|llama|gptj)$"))


ONE_EACH = pytest.mark.parametrize("build", zoo.models("-gpt2$"))


EVERY_WAY = pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(map(str, way.values())))


SITES = {"resid_post": "hook_resid_post", "mlp_out": "hook_mlp_out", "attn_out": "hook_attn_out"}


@torch.no_grad()
def probability(model: Any, ids: Tensor, hooks: Sequence[Any] = (), n: int = N) -> float:
    return float(model.run_with_hooks(ids, fwd_hooks=[*hooks])[0, n - 1].double().softmax(-1)[TARGET])


@torch.no_grad()
def clean_at(model: Any, ids: Tensor, site: str) -> list[Tensor]:
    kept: dict[int, Tensor] = {}
    hooks = [
        (f"blocks.{layer}.{site}", lambda live, hook, layer=layer: kept.update({layer: live[0].clone()}))  # noqa: ARG005
        for layer in range(LAYERS)
    ]
    model.run_with_hooks(ids, fwd_hooks=hooks)
    return [kept[layer] for layer in range(LAYERS)]


def row_put(name: str, place: int, states: Tensor) -> tuple[str, Any]:
    def put(live: Tensor, hook: Any) -> Tensor:  # noqa: ARG001
        live = live.clone()
        live[0, place] = states[place]
        return live

    return name, put


def under_noise(
    model: Any, ids: Tensor, subject: Sequence[int], noise: float, seed: int, sample: int, n: int
) -> list[Any]:
    clean = plain_embeddings(model, ids)
    drawn = torch.from_numpy(np.random.default_rng([seed, sample, *ids[0, :n].tolist()]).standard_normal((n, 8)))
    spread = float(((clean[:n] - clean[:n].mean()) ** 2).mean() ** 0.5)
    noisy = clean.clone()
    for place in subject:
        noisy[place] += noise * spread * drawn[place]
    return [row_put("hook_embed", place, noisy) for place in range(n)]


def by_runs(
    model: Any,
    ids: Tensor,
    *,
    what: str = "resid_post",
    window: int = 1,
    subject: Sequence[int] = (1, 2, 3),  # the zoo's prompts begin with <bos>
    noise: float = 3.0,
    samples: int = 2,
    seed: int = 0,
    n: int = N,
) -> tuple[Tensor, float]:
    """Meng's table, and how likely the target is under noise alone."""
    clean = clean_at(model, ids, SITES[what])
    table, low = torch.zeros(LAYERS, n, dtype=torch.float64), 0.0
    for sample in range(samples):
        noisy = under_noise(model, ids, subject, noise, seed, sample, n)
        low += probability(model, ids, noisy, n) / samples
        for layer in range(LAYERS):
            # As in the authors' code.
            around = range(max(0, layer - window // 2), min(LAYERS, layer - (-window // 2)))
            for place in range(n):
                back = [row_put(f"blocks.{other}.{SITES[what]}", place, clean[other]) for other in around]
                table[layer, place] += probability(model, ids, [*noisy, *back], n) / samples
    return table, low


@pytest.mark.sample(quick=1, test=3)
@pytest.mark.slow
@pytest.mark.parametrize("way", [*WAYS, {"what": "mlp_out", "window": 2}, {"what": "mlp_out", "window": 10}], ids=str)
@FAMILIES
def test_a_grid_equals_one_run_for_each_cell(build: Callable[..., Any], way: dict[str, Any]) -> None:
    model = build(n_layers=LAYERS)
    ids = zoo.prompt(model, N)
    expected, low = by_runs(model, ids, **way)
    found = traced(model, ids, **way)
    assert relative(found.values - low, expected - low) < 1e-6
    assert found.clean == pytest.approx(probability(model, ids), rel=1e-6)
    assert found.corrupted == pytest.approx(low, rel=1e-6)
    assert (expected - low).abs().max() > 1e-4
    assert way.get("window", 1) > LAYERS or relative(expected[1], expected[2]) > 1e-4


@pytest.mark.slow
@FAMILIES
def test_noise_falls_on_the_subject_alone(build: Callable[..., Any]) -> None:
    model = build(n_layers=LAYERS)
    ids, way = zoo.prompt(model, N), {"noise": 2, "seed": 5, "samples": 1}
    for subject in ([1], (0, 2)):
        expected, low = by_runs(model, ids, subject=subject, **way)
        found = traced(model, ids, subject=iter(subject), **way)
        assert relative(found.values - low, expected - low) < 1e-6 and found.corrupted == pytest.approx(low, rel=1e-6)
    ids[0, 0] = 5  # no beginning-of-text token: the whole prompt is under noise
    expected, low = by_runs(model, ids, subject=range(N))
    assert relative(traced(model, ids).values - low, expected - low) < 1e-6


@FAMILIES
def test_the_method_scores_tokens_by_the_same_table(build: Callable[..., Any]) -> None:
    model = build(n_layers=LAYERS)
    ids = zoo.prompt(model, N)
    grid, found = traced(model, ids), CausalTracing(samples=2)(predict(model, ids, TARGET))
    effects = found.diagnostics["effects"]
    assert relative(grid.values - grid.corrupted, effects) < 1e-6 and found.scores.equal(effects.amax(0))
    some = CausalTracing(samples=2, layers=2)(predict(model, ids, TARGET))
    assert some.diagnostics["layers"] == [0, 2] and relative(some.diagnostics["effects"], effects[[0, 2]]) < 1e-6


@pytest.mark.parametrize("build", zoo.models("^(?!hooked-attn_only)"))
def test_what_is_put_back_is_what_a_layer_adds_to_the_stream(build: Callable[..., Any]) -> None:
    model, kept = build(), {}
    sites = ("hook_resid_pre", "hook_attn_out", "hook_mlp_out", "hook_resid_post")
    hooks = [(f"blocks.1.{site}", lambda live, hook, site=site: kept.update({site: live.clone()})) for site in sites]  # noqa: ARG005
    with torch.no_grad():
        model.run_with_hooks(zoo.prompt(model, N), fwd_hooks=hooks)
    before, attention, mlp, after = (kept[site] for site in sites)
    assert relative(before + attention + mlp, after) < 1e-6


@torch.no_grad()
@ONE_EACH
@pytest.mark.parametrize("what", ["resid_post", "mlp_out"])
def test_a_number_in_a_block_is_read_where_the_block_runs(build: Callable[..., Any], what: str) -> None:
    """Alone, and less one of a lower block, which has run when the higher rows begin."""
    model = build(n_layers=LAYERS)
    ids, within, below = zoo.prompt(model, N), "blocks.2.hook_mlp_out", "blocks.0.hook_mlp_out"
    clean = clean_at(model, ids, SITES[what])
    noisy = under_noise(model, ids, (1, 2, 3), 3.0, 0, 0, N)

    def number(name: str, hooks: Sequence[Any]) -> float:
        seen = list[Tensor]()
        model.run_with_hooks(ids, fwd_hooks=[*hooks, (name, lambda live, hook: seen.append(live))])  # noqa: ARG005
        return float(seen[0][0, -1, 1])

    for lower in (None, below):
        target = activation(within, index=1)
        pair = target if lower is None else (target, activation(lower, index=1))
        found = traced(model, ids, pair, what=what, samples=1)
        expected = torch.zeros(3, N, dtype=torch.float64)
        for layer in range(3):
            for place in range(N):
                hooks = [*noisy, row_put(f"blocks.{layer}.{SITES[what]}", place, clean[layer])]
                expected[layer, place] = number(within, hooks) - (number(lower, hooks) if lower else 0)
        assert relative(found.values, expected) < 1e-6


@ONE_EACH
def test_scales_contrasts_and_positions(build: Callable[..., Any]) -> None:
    model, ids = build(n_layers=LAYERS), zoo.prompt(build(), N + 3)
    first, second, both = (
        traced(model, ids, target, position=N, scale="logit") for target in (TARGET, OTHER, (TARGET, OTHER))
    )
    assert relative(both.values, first.values - second.values) < 1e-9
    assert both.corrupted == pytest.approx(first.corrupted - second.corrupted)
    logits = model(ids[:, :N])[0, -1].detach()
    assert first.clean == pytest.approx(float(logits[TARGET]))
    assert both.clean == pytest.approx(float(logits[TARGET] - logits[OTHER]))
    expected, _ = by_runs(model, ids[:, :N])
    assert relative(traced(model, ids, position=N).values, expected) < 1e-6


@pytest.mark.thorough
@EVERY_WAY
@pytest.mark.parametrize("build", zoo.models("-(gpt2|llama)$"))
def test_hooks_of_others_stay_at_work_and_see_the_prompt_they_know(
    build: Callable[..., Any], way: dict[str, Any]
) -> None:
    model, shapes = build(n_layers=LAYERS), set()
    ids = zoo.prompt(model, N + 2)

    def turn(live: Tensor, hook: Any) -> Tensor:  # noqa: ARG001
        shapes.add((len(live), live.shape[1]))
        return live * torch.linspace(0.5, 2, live.shape[1], dtype=live.dtype)[:, None]

    plain = traced(model, ids, position=N, **way)
    with hooked(model, ("blocks.0.hook_resid_post", turn), (f"blocks.2.{SITES[way['what']]}", turn)):
        found = traced(model, ids, position=N, batch=4, **way)
        assert shapes == {(1, N + 2)}
        expected, low = by_runs(model, ids, **way)
        assert len(ModelAdapter(model).user_hooks()) == 2
    assert relative(found.values - low, expected - low) < 1e-6 and relative(found.values, plain.values) > 1e-3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"what": "mlp_outs"}, "what='mlp_outs' is not one of .*did you mean 'mlp_out'"),
        ({"samples": 0}, "samples=0"),
        ({"noise": -1}, "noise=-1"),
        ({"window": 3}, "window=3 with what='resid_post'"),
        ({"subject": []}, "subject is empty"),
        ({"subject": [0, N]}, f"position {N} is none of the {N} positions"),
    ],
    ids=str,
)
@pytest.mark.usefixtures("unchecked")
def test_wrong_options_are_refused_before_a_patched_run(options: dict[str, Any], message: str, forwards: Any) -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, N)
    cache = cache_of(model, ids)
    ran = forwards(model)
    with pytest.raises((TypeError, ValueError), match=message):
        trace(cache, TARGET, tokens=ids, **options)
    assert len(ran) == ("subject" in options)  # a run compares the model with the cache
