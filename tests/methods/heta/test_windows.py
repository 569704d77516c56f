"""Windows: their places, frozen ones and chunks against the oracle, gates, and several answers about a token."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from einops import rearrange
from torch import Tensor

from helpers import oracles, zoo
from helpers.asking import explain, plain_embeddings, plain_log_probs, predict, relative, signs
from helpers.heta import oracle_gate
from heta_lens.methods.heta.probes import gaussian
from heta_lens.methods.heta.windows import spans_over

TARGET, N, PROBES, D = 7, 7, 2, 8
WINDOW, STRIDE_2 = 3, [(0, 3), (2, 5), (4, 7)]  # half of 3 is rounded to 2


def windowed(model: Any, ids: Tensor, target: Any = TARGET, **options: Any) -> Any:
    drawn = {"probes": PROBES} if options.get("beta") != 0 else {}
    return explain(model, ids, target, **{"variant": "win", "window": WINDOW} | drawn | options)


def frozen(model: Any, ids: Tensor, window: tuple[int, int], layer: int | None = None) -> tuple[Any, Tensor]:
    """The oracle's prediction with a tail of two tokens, and the states it is asked at."""
    states = plain_embeddings(model, ids) if layer is None else oracles.stream(model, ids, layer)
    start, stop = window
    log_probs = oracles.frozen_window(model, ids, start, stop, ids.shape[1] - 2, layer)
    return log_probs, states[start:stop].clone()


def dense(log_probs: Callable[[Tensor], Tensor], at: Tensor, target: Any = TARGET) -> oracles.Hessian:
    def g(e: Tensor) -> Tensor:
        found = log_probs(e)
        return found[target[0]] - found[target[1]] if isinstance(target, tuple) else found[target]

    return oracles.dense_hessian(g, at, functional=True)


def own_signs(start: int, stop: int, seed: int = 0) -> Tensor:
    """A token has the same probes in every window."""
    return signs(seed, PROBES, stop, D)[:, start:]


@torch.no_grad()
def oracle_information(log_probs: Any, at: Tensor) -> Tensor:
    return oracles.information(log_probs, at, torch.zeros_like(at[0]), "orig_masked")


def also(hows: list[Any], first: str, second: str) -> list[Any]:
    """Models to be asked in the first way, and fewer in the second."""
    patterns = zip(hows, (first, second), strict=True)
    return [
        pytest.param(*case.values, how, id=f"{case.id}-{how}") for how, only in patterns for case in zoo.named(only)
    ]


SEVERAL = "bridge-(gpt2|llama|mistral|gemma2|native|neox)|hooked-(gpt2|rotary_gqa|alibi|shortformer|local)"
MODES = ("frozen", "restrict", "chunk")


@pytest.mark.slow
@pytest.mark.parametrize("build", zoo.models("bridge-(gpt2|native)|hooked-rotary_gqa"))
def test_a_window_that_holds_the_context_changes_nothing(build: Any) -> None:
    model = build()
    ids = zoo.prompt(model, 5)
    for whole, cut, own in (("full", "win", {}), ("lr", "lr+win", {"rank": 4}), ("ls", "ls+win", {"layers": 1})):
        expected = explain(model, ids, TARGET, variant=whole, probes=PROBES, **own)
        for mode in MODES:
            for window, gate in ((5, "per_window"), (6, "global")) if cut == "win" else ((5, "per_window"),):
                how = {"window": window, "window_mode": mode, "window_gate": gate}
                found = windowed(model, ids, variant=cut, **how, **own)
                assert relative(found.scores, expected.scores) < 1e-12
                for name, part in expected.parts.items():
                    assert relative(found.parts[name], part) < 1e-12, (cut, mode, name)
                assert found.diagnostics["windows"] == 1
                assert found.diagnostics["window_leakage"]["largest"] < 1e-12


def move(live: Tensor, hook: Any) -> Tensor:  # noqa: ARG001
    """Of a user's: it looks at positions, and only makes sense on the whole prompt."""
    assert live.shape[:2] == (1, N)
    scale = torch.linspace(0.5, 1.5, N, dtype=live.dtype)
    return live * scale[:, None]


@pytest.mark.sample(quick=1)
@pytest.mark.usefixtures("short_tail")
@pytest.mark.parametrize(
    ("name", "build", "hooked"), also([False, True], SEVERAL, "bridge-(gpt2|llama)|hooked-rotary_gqa")
)
def test_frozen_windows_equal_the_oracle(name: str, build: Any, hooked: bool) -> None:
    model = build()
    ids, close = zoo.prompt(model, N), zoo.tolerance(name)
    with model.hooks(fwd_hooks=[("blocks.0.hook_resid_post", move)]) if hooked else nullcontext():
        block = windowed(model, ids)
        row = windowed(model, ids, support="row", gamma=0)
        curvatures, rows, informations, drops = [], [], [], []
        for start, stop in STRIDE_2:
            log_probs, at = frozen(model, ids, (start, stop))
            hessian, probes = dense(log_probs, at), own_signs(start, stop)
            curvatures.append(oracles.block_l1(hessian, probes).mean(0))
            rows.append(oracles.row_l1(hessian, probes).mean(0))
            informations.append(oracle_information(log_probs, at))
            zero = torch.zeros_like(at[0])
            g = lambda e, log_probs=log_probs: log_probs(e)[TARGET].detach()  # noqa: E731
            drops.append(torch.stack([oracles.drop(g, at, zero, [i]) for i in range(len(at))]))
    assert block.diagnostics["prefix_reuse"].startswith("off" if hooked or "native" in name else "on")
    own = [oracles.most_central(parts, STRIDE_2, N) for parts in (curvatures, rows, informations, drops)]
    assert relative(block.parts["curvature"], own[0]) < close
    assert relative(row.parts["curvature"], own[1]) < close
    assert relative(block.parts["information"], own[2]) < close
    assert relative(block.diagnostics["drop"], own[3]) < close
    assert relative(block.scores, block.parts["gate"] * (own[0] + own[2]) / 2) < close


@pytest.mark.thorough
@pytest.mark.usefixtures("short_tail")
@pytest.mark.parametrize(("name", "build"), zoo.named("bridge-(gpt2|llama|native)|hooked-(rotary_gqa|local)"))
def test_the_last_layers_of_frozen_windows_equal_the_oracle(name: str, build: Any) -> None:
    model = build(n_layers=3)
    ids = zoo.prompt(model, N)
    found = windowed(model, ids, variant="ls+win", layers=2)
    parts = []
    for start, stop in STRIDE_2:
        hessian = dense(*frozen(model, ids, (start, stop), layer=1))
        parts.append(oracles.block_l1(hessian, own_signs(start, stop)).mean(0))
    assert relative(found.parts["curvature"], oracles.most_central(parts, STRIDE_2, N)) < zoo.tolerance(name)
    assert relative(found.parts["information"], windowed(model, ids, gamma=1).parts["information"]) < 1e-9


@pytest.mark.thorough
@pytest.mark.usefixtures("short_tail")
@pytest.mark.parametrize(("name", "build"), zoo.named("bridge-(gpt2|native)|hooked-rotary_gqa"))
def test_low_ranks_of_frozen_windows_equal_the_oracle(name: str, build: Any) -> None:
    model, rank, seed = build(), 2, 3
    ids = zoo.prompt(model, N)
    found = windowed(model, ids, variant="lr+win", rank=rank, seed=seed, gamma=0)
    parts, missed, kept = [], 0.0, 0.0
    for start, stop in STRIDE_2:
        hessian, probes = dense(*frozen(model, ids, (start, stop))), own_signs(start, stop, seed)
        tests = gaussian(seed, start, rank + 8, stop - start, D)
        low, values = oracles.range_finder(hessian, rearrange(tests, "k n d -> n d k"), rank)
        parts.append(oracles.block_l1(low, probes).mean(0))
        missed += float(torch.einsum("iajb,kjb->kia", hessian - low, probes).square().sum((1, 2)).mean())
        kept += float(values.square().sum())
    assert relative(found.parts["curvature"], oracles.most_central(parts, STRIDE_2, N)) < 30 * zoo.tolerance(name)
    facts = found.diagnostics
    assert facts["tail_energy"] == pytest.approx(missed**0.5, rel=1e-6)
    assert facts["tail_energy_share"] == pytest.approx((missed / (missed + kept)) ** 0.5, rel=1e-6)


@pytest.mark.thorough
@pytest.mark.usefixtures("short_tail")
def test_a_contrast_at_a_position_is_read_in_every_window() -> None:
    """Tokens after the position were cached, and do not count."""
    model, pair = zoo.bridge("gpt2"), (7, 9)
    ids = zoo.prompt(model, N + 3)
    later = windowed(model, ids, pair, position=N)
    parts = []
    for start, stop in STRIDE_2:
        hessian = dense(*frozen(model, ids[:, :N], (start, stop)), pair)
        parts.append(oracles.block_l1(hessian, own_signs(start, stop)).mean(0))
    assert relative(later.parts["curvature"], oracles.most_central(parts, STRIDE_2, N)) < 1e-8
    for mode in MODES:
        how = {"window_mode": mode, "window_gate": "per_window"}
        alone = windowed(model, ids[:, :N], pair, **how)
        assert relative(windowed(model, ids, pair, position=N, **how).scores, alone.scores) < 1e-9


@pytest.mark.thorough
@pytest.mark.usefixtures("short_tail")
@pytest.mark.parametrize("window", [2, 5])
@pytest.mark.parametrize("overlap", [0.0, 0.99])
def test_with_any_window_and_overlap_a_token_is_scored_where_it_lies_most_central(window: int, overlap: float) -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, N)
    found = windowed(model, ids, window=window, overlap=overlap)
    spans = oracles.windows(N, window, overlap)
    assert found.diagnostics["windows"] == len(spans)
    parts, seen = [], []
    for start, stop in spans:
        log_probs, at = frozen(model, ids, (start, stop))
        parts.append(oracles.block_l1(dense(log_probs, at), own_signs(start, stop)).mean(0))
        seen.append(oracle_information(log_probs, at))
    assert relative(found.parts["curvature"], oracles.most_central(parts, spans, N)) < 1e-8
    assert relative(found.parts["information"], oracles.most_central(seen, spans, N)) < 1e-8


@pytest.mark.sample(quick=1)
@pytest.mark.usefixtures("short_tail")
@pytest.mark.parametrize("mask", ["mean", "vocab_mean", 9])
def test_a_frozen_window_is_masked_as_the_context_is_and_a_chunk_as_itself(mask: Any) -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, N)
    whole = plain_embeddings(model, ids)
    table = model.embed.W_E.detach()
    fixed = {"vocab_mean": table.mean(0), 9: table[9]}
    for mode in ("frozen", "chunk"):
        found = windowed(model, ids, mask=mask, beta=0, window_mode=mode, kl="js")
        parts = []
        for start, stop in STRIDE_2:
            log_probs, at = frozen(model, ids, (start, stop))
            if mode == "chunk":
                log_probs = plain_log_probs(model, ids[:, start:stop])
                at = plain_embeddings(model, ids[:, start:stop])
            vector = fixed.get(mask, (at if mode == "chunk" else whole).mean(0))
            with torch.no_grad():
                parts.append(oracles.information(log_probs, at, vector, "js"))
        expected = {"frozen": oracles.most_central, "chunk": oracles.window_mean}[mode](parts, STRIDE_2, N)
        assert relative(found.parts["information"], expected) < 1e-8, mode


@pytest.mark.parametrize("n", [1, 2, 3, 7, 12, 13])
@pytest.mark.parametrize("overlap", [0.0, 0.3, 0.5, 0.99])
def test_windows_are_the_oracles(n: int, overlap: float) -> None:
    for size in range(2, 15):
        assert spans_over(n, size, overlap) == [range(*span) for span in oracles.windows(n, size, overlap)]


@pytest.mark.usefixtures("short_tail")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("name", "build"), zoo.named(""))
def test_a_frozen_window_predicts_what_the_oracle_does(name: str, build: Any, dtype: torch.dtype) -> None:
    """As it was with the states that were there, and with others."""
    model = build(dtype)
    ids = zoo.prompt(model, N)
    prediction = predict(model, ids)
    close = 1e-5 if dtype == torch.float32 else max(1e-6, zoo.tolerance(name))
    with prediction.running(), torch.no_grad():
        for window in ((0, 3), (3, 6), (5, 8)):
            for layer in (None, 1):
                clean = prediction.states(layer)[slice(*window)]
                found = prediction.rerun(window[0], stop=window[1], layer=layer).log_probs(clean[None])[0]
                assert (found - prediction.log_probs).abs().max() < close, (window, layer)
                if dtype == torch.float64 and window != (5, 8):
                    moved = clean + signs(1, 1, 3, D)[0]
                    expected = frozen(model, ids, window, layer)[0](moved)
                    rerun = prediction.rerun(window[0], stop=window[1], layer=layer)
                    assert (rerun.log_probs(moved[None])[0] - expected).abs().max() < close


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "build", "layers"),
    also([None, 1], "bridge-(gpt2|llama|native)|hooked-(rotary_gqa|alibi)", "bridge-gpt2|hooked-rotary_gqa"),
)
@pytest.mark.usefixtures("unchecked")
def test_chunks_are_prompts_of_their_own(name: str, build: Any, layers: int | None) -> None:
    model, variant = build(), "ls+win" if layers else "win"
    ids, close = zoo.prompt(model, N), zoo.tolerance(name)
    found = windowed(model, ids, variant=variant, layers=layers, window_mode="chunk", window_gate="per_window")
    shared = windowed(model, ids, window_mode="chunk", beta=0)
    curvatures, informations, gates = [], [], []
    for start, stop in STRIDE_2:
        chunk = ids[:, start:stop]
        log_probs, at = plain_log_probs(model, chunk), plain_embeddings(model, chunk)
        bent = dense(log_probs, at)
        if layers is not None:
            bent = dense(oracles.log_probs_of_stream(model, chunk, 1), oracles.stream(model, chunk, 1))
        curvatures.append(oracles.block_l1(bent, own_signs(start, stop)).mean(0))
        informations.append(oracle_information(log_probs, at))
        gates.append(oracle_gate(model, chunk))
    mean = [oracles.window_mean(parts, STRIDE_2, N) for parts in (curvatures, informations, gates)]
    expected = {"curvature": mean[0], "information": mean[1], "gate": mean[2] / mean[2].sum()}
    for name_, part in expected.items():
        assert relative(found.parts[name_], part) < close, name_
    gate, curvature, information = (found.parts[part] for part in ("gate", "curvature", "information"))
    assert relative(found.scores, gate * (curvature + information) / 2) < 1e-12
    whole = oracle_gate(model, ids)
    assert relative(shared.parts["gate"], whole) < 1e-10
    assert shared.diagnostics["window_leakage"] == {"largest": 0.0, "total": 0.0}
    largest, total = oracles.leakage(whole, expected["gate"])
    assert found.diagnostics["window_leakage"] == pytest.approx({"largest": largest, "total": total}, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("build", zoo.models("bridge-(gpt2|llama|native)|hooked-rotary_gqa"))
def test_restricted_windows_only_change_the_gate(build: Any) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    full = explain(model, ids, TARGET, probes=PROBES)
    same = windowed(model, ids, window_mode="restrict")
    assert relative(same.scores, full.scores) < 1e-12
    found = windowed(model, ids, window_mode="restrict", window_gate="per_window")
    gate = oracles.window_gate(oracle_gate(model, ids), STRIDE_2)
    assert relative(found.parts["gate"], gate) < 1e-10
    for name in ("curvature", "information"):
        assert relative(found.parts[name], full.parts[name]) < 1e-12
    low = windowed(model, ids, variant="lr+win", rank=3, window_mode="restrict")
    assert relative(low.scores, explain(model, ids, TARGET, variant="lr", rank=3, probes=PROBES).scores) < 1e-12


@pytest.mark.sample(quick=1)
@pytest.mark.usefixtures("short_tail")
@pytest.mark.parametrize("mode", ["frozen", "restrict"])
def test_leakage_is_the_oracles(mode: str) -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, N)
    facts = windowed(model, ids, window_mode=mode, window_gate="global").diagnostics
    assert facts["window_leakage"] == {"largest": 0.0, "total": 0.0}
    found = windowed(model, ids, window_mode=mode, window_gate="per_window")
    whole = oracle_gate(model, ids)
    gate = oracles.window_gate(whole, STRIDE_2)
    assert relative(found.parts["gate"], gate) < 1e-10
    largest, total = oracles.leakage(whole, gate)
    assert total > 0.01
    assert found.diagnostics["window_leakage"] == pytest.approx({"largest": largest, "total": total})
    assert found.diagnostics["gate_total"] == pytest.approx(explain(model, ids, TARGET).diagnostics["gate_total"])
