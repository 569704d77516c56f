"""Causal tracing, against runs that do what it says, one activation at one position at a time."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from helpers import zoo
from helpers.asking import cache_of, hooked, plain_embeddings, predict, relative
from helpers.tracing import LAYERS, OTHER, TARGET, WAYS, N, traced
from heta_lens.causal import trace
from heta_lens.methods.causal_tracing import CausalTracing
from heta_lens.model.adapter import ModelAdapter

FAMILIES = pytest.mark.parametrize("build", zoo.models("-(gpt2|llama|gptj)$"))
ONE_EACH = pytest.mark.parametrize("build", zoo.models("-gpt2$"))
EVERY_WAY = pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(map(str, way.values())))
ONE_OF_EACH = pytest.mark.parametrize("what", ["resid_post", "mlp_out", "attn_out"])
SITES = {"resid_post": "hook_resid_post", "mlp_out": "hook_mlp_out", "attn_out": "hook_attn_out"}


# ------------------------------------------------------------------------------------------------- one run at a time
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


@pytest.mark.slow
@EVERY_WAY
@FAMILIES
def test_a_grid_equals_one_run_for_each_cell(build: Callable[..., Any], way: dict[str, Any]) -> None:
    model = build(n_layers=LAYERS)
    ids = zoo.prompt(model, N)
    expected, low = by_runs(model, ids, **way)
    found = traced(model, ids, **way)
    assert relative(found.values - low, expected - low) < 1e-6
    assert found.clean == pytest.approx(probability(model, ids), rel=1e-6)
    assert found.corrupted == pytest.approx(low, rel=1e-6)
    assert (expected - low).abs().max() > 1e-4 and relative(expected[1], expected[2]) > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("window", [2, 4, 10])
@ONE_EACH
def test_windows_of_other_sizes_lie_where_the_authors_have_them(build: Callable[..., Any], window: int) -> None:
    model = build(n_layers=LAYERS)
    ids, way = zoo.prompt(model, N), {"what": "mlp_out", "window": window}
    expected, low = by_runs(model, ids, **way)
    assert relative(traced(model, ids, **way).values - low, expected - low) < 1e-6


@pytest.mark.slow
@FAMILIES
def test_noise_falls_on_the_subject_alone(build: Callable[..., Any]) -> None:
    model = build(n_layers=LAYERS)
    ids, way = zoo.prompt(model, N), {"noise": 2, "seed": 5, "samples": 1}
    for subject in ([1], (0, 2)):
        expected, low = by_runs(model, ids, subject=subject, **way)
        found = traced(model, ids, subject=iter(subject), **way)
        assert relative(found.values - low, expected - low) < 1e-6 and found.corrupted == pytest.approx(low, rel=1e-6)


@ONE_EACH
def test_a_prompt_that_does_not_begin_with_a_beginning_is_under_noise_as_a_whole(build: Callable[..., Any]) -> None:
    model = build(n_layers=LAYERS)
    ids = zoo.prompt(model, N)
    ids[0, 0] = 5
    expected, low = by_runs(model, ids, subject=range(N))
    assert relative(traced(model, ids).values - low, expected - low) < 1e-6


@FAMILIES
def test_the_baseline_takes_its_scores_from_the_same_table(build: Callable[..., Any]) -> None:
    model = build(n_layers=LAYERS)
    ids = zoo.prompt(model, N)
    effects = CausalTracing(samples=2)(predict(model, ids, TARGET)).diagnostics["effects"]
    found = traced(model, ids)
    assert relative(found.values - found.corrupted, effects) < 1e-6


# ------------------------------------------------------------------------------------------------ what has to be so
@EVERY_WAY
@FAMILIES
def test_without_noise_nothing_is_lost_and_nothing_changes(build: Callable[..., Any], way: dict[str, Any]) -> None:
    model = build(n_layers=LAYERS)
    found = traced(model, zoo.prompt(model, N), noise=0, samples=1, **way)
    assert found.corrupted == pytest.approx(found.clean, rel=1e-6)  # Llama normalises in float32
    assert (found.values - found.clean).abs().max() < 1e-6 * found.clean


@FAMILIES
def test_the_last_state_of_all_is_what_the_target_is_read_from(build: Callable[..., Any]) -> None:
    model = build(n_layers=LAYERS)
    found = traced(model, zoo.prompt(model, N), subject=range(N))
    lost = abs(found.clean - found.corrupted)
    assert lost > 1e-4 and abs(float(found.values[-1, -1]) - found.clean) < 1e-6 * lost
    assert (found.values[-1, :-1] - found.corrupted).abs().max() < 1e-6 * lost


@FAMILIES
def test_what_only_the_last_position_lost_its_stream_brings_back_after_any_layer(build: Callable[..., Any]) -> None:
    model = build(n_layers=LAYERS)
    found = traced(model, zoo.prompt(model, N), subject=[N - 1])
    lost = abs(found.clean - found.corrupted)
    assert lost > 1e-4 and (found.values[:, -1] - found.clean).abs().max() < 1e-6 * lost


@EVERY_WAY
@FAMILIES
def test_before_the_subject_there_is_nothing_to_bring_back(build: Callable[..., Any], way: dict[str, Any]) -> None:
    model = build(n_layers=LAYERS)
    found = traced(model, zoo.prompt(model, N), subject=[2], samples=1, **way)
    moved = (found.values - found.corrupted).abs().amax(0)
    assert moved[:2].max() < 1e-6 * moved[2:].min() and moved[2:].min() > 1e-6


@pytest.mark.parametrize("build", zoo.models("^(?!hooked-attn_only)"))
def test_what_is_put_back_is_what_a_layer_adds_to_the_stream(build: Callable[..., Any]) -> None:
    """In whatever order a block works, and whatever norms it has."""
    model, kept = build(), {}
    sites = ("hook_resid_pre", "hook_attn_out", "hook_mlp_out", "hook_resid_post")
    hooks = [(f"blocks.1.{site}", lambda live, hook, site=site: kept.update({site: live.clone()})) for site in sites]  # noqa: ARG005
    with torch.no_grad():
        model.run_with_hooks(zoo.prompt(model, N), fwd_hooks=hooks)
    before, attention, mlp, after = (kept[site] for site in sites)
    assert relative(before + attention + mlp, after) < 1e-6


# --------------------------------------------------------------------------------------------------- what it is asked
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


@ONE_EACH
def test_a_grid_says_what_it_is(build: Callable[..., Any]) -> None:
    model, ids = build(), zoo.prompt(build(), N)
    found = traced(model, ids, " cat")
    assert found.title == "causal tracing, resid_post: ' cat'"
    assert traced(model, ids, " cat", what="mlp_out", window=3).title == "causal tracing, mlp_out of 2 layers: ' cat'"
    assert traced(model, ids, (" cat", " dog")).title == "causal tracing, resid_post: ' cat' rather than ' dog'"
    assert found.labels == tuple(model.tokenizer.decode([token]) for token in ids[0].tolist())
    assert found.values.shape == (2, N) and found.top(1)[0].restored == pytest.approx(float(found.restored.max()))


@pytest.mark.slow
@EVERY_WAY
@ONE_EACH
def test_every_run_is_counted(build: Callable[..., Any], way: dict[str, Any], forwards: Any) -> None:
    model, ids = build(), zoo.prompt(build(), N)
    cache = cache_of(model, ids)
    ran = forwards(model)
    found = trace(cache, TARGET, tokens=ids, samples=3, batch=1, **way)
    assert found.forwards == len(ran) - 1 == 3 * (2 * N + 1) + 2  # one run sees that the model does what was cached
    few = len(ran)
    assert trace(cache, TARGET, tokens=ids, samples=3, batch=4, **way).forwards == found.forwards
    assert len(ran) - few == 1 + 3 * (2 + 1) + 2


# ------------------------------------------------------------------------------------------------- how it is computed
@pytest.mark.slow
@EVERY_WAY
@FAMILIES
def test_how_many_copies_run_at_once_does_not_matter(build: Callable[..., Any], way: dict[str, Any]) -> None:
    model = build()
    alone, together, some = (traced(model, zoo.prompt(model, N), batch=batch, **way) for batch in (1, 4, 3))
    for other in (together, some):
        assert relative(other.values - alone.corrupted, alone.values - alone.corrupted) < 1e-6


@ONE_OF_EACH
@ONE_EACH
def test_seeds_repeat_and_draws_differ(build: Callable[..., Any], what: str) -> None:
    model, ids = build(), zoo.prompt(build(), N)
    first, again, other, more = (
        traced(model, ids, what=what, **way) for way in ({}, {"seed": 0}, {"seed": 1}, {"samples": 3})
    )
    assert torch.equal(first.values, again.values) and first.corrupted == again.corrupted
    for one in (other, more):
        assert relative(one.values, first.values) > 1e-3 and abs(one.corrupted / first.corrupted - 1) > 1e-3


@pytest.mark.sample(quick=0, test=6)
@EVERY_WAY
@pytest.mark.parametrize("build", zoo.models("-(gpt2|llama)$"))
def test_hooks_of_others_stay_at_work_and_see_the_prompt_they_know(
    build: Callable[..., Any], way: dict[str, Any]
) -> None:
    """They speak of positions, and stand where activations are put back as well."""
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
