"""Windows: where they lie, what a window leaves as it was, and what becomes of several answers about one token."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from einops import rearrange
from torch import Tensor

from helpers import oracles, zoo
from helpers import variant_oracles as variants
from helpers.asking import explain, plain_embeddings, plain_log_probs, relative
from helpers.windowing import (
    PROBES,
    STRIDE_2,
    TARGET,
    D,
    N,
    also,
    dense,
    frozen,
    oracle_information,
    own_signs,
    pairs,
    windowed,
)
from heta_lens.methods.heta.probes import gaussian
from heta_lens.methods.heta.windows import Window, averaged, edge_gap, windows

SEVERAL = "bridge-(gpt2|llama|mistral|gemma2|native|neox)|hooked-(gpt2|rotary_gqa|alibi|shortformer|local)"
MODES = ("frozen", "restrict", "chunk")


# ------------------------------------------------------------------------------------------------ one window for all
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


def test_a_single_token_is_its_own_window() -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, 1)
    expected = explain(model, ids, TARGET, probes=PROBES)
    for mode in MODES:
        for gate in ("global", "per_window"):
            found = windowed(model, ids, window_mode=mode, window_gate=gate, overlap=0.99)
            assert relative(found.scores, expected.scores) < 1e-12


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
            drops.append(torch.stack([variants.drop(g, at, zero, [i]) for i in range(len(at))]))
    assert block.diagnostics["prefix_reuse"].startswith("off" if hooked or "native" in name else "on")
    own = [variants.most_central(parts, STRIDE_2, N) for parts in (curvatures, rows, informations, drops)]
    assert relative(block.parts["curvature"], own[0]) < close
    assert relative(row.parts["curvature"], own[1]) < close
    assert relative(block.parts["information"], own[2]) < close
    assert relative(block.diagnostics["drop"], own[3]) < close
    assert relative(block.scores, block.parts["gate"] * (own[0] + own[2]) / 2) < close


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
    assert relative(found.parts["curvature"], variants.most_central(parts, STRIDE_2, N)) < zoo.tolerance(name)
    assert relative(found.parts["information"], windowed(model, ids, gamma=1).parts["information"]) < 1e-9


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
        low, values = variants.range_finder(hessian, rearrange(tests, "k n d -> n d k"), rank)
        parts.append(oracles.block_l1(low, probes).mean(0))
        missed += float(torch.einsum("iajb,kjb->kia", hessian - low, probes).square().sum((1, 2)).mean())
        kept += float(values.square().sum())
    assert relative(found.parts["curvature"], variants.most_central(parts, STRIDE_2, N)) < 30 * zoo.tolerance(name)
    facts = found.diagnostics
    assert facts["tail_energy"] == pytest.approx(missed**0.5, rel=1e-6)
    assert facts["tail_energy_share"] == pytest.approx((missed / (missed + kept)) ** 0.5, rel=1e-6)


@pytest.mark.slow
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
    assert relative(later.parts["curvature"], variants.most_central(parts, STRIDE_2, N)) < 1e-8
    for mode in MODES:
        how = {"window_mode": mode, "window_gate": "per_window"}
        alone = windowed(model, ids[:, :N], pair, **how)
        assert relative(windowed(model, ids, pair, position=N, **how).scores, alone.scores) < 1e-9


@pytest.mark.sample(quick=1)
@pytest.mark.usefixtures("short_tail")
@pytest.mark.parametrize("window", [2, 5])
@pytest.mark.parametrize("overlap", [0.0, 0.99])
def test_with_any_window_and_overlap_a_token_is_scored_where_it_lies_most_central(window: int, overlap: float) -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, N)
    found = windowed(model, ids, window=window, overlap=overlap)
    spans = variants.windows(N, window, overlap)
    assert found.diagnostics["windows"] == len(spans)
    parts, seen = [], []
    for start, stop in spans:
        log_probs, at = frozen(model, ids, (start, stop))
        parts.append(oracles.block_l1(dense(log_probs, at), own_signs(start, stop)).mean(0))
        seen.append(oracle_information(log_probs, at))
    assert relative(found.parts["curvature"], variants.most_central(parts, spans, N)) < 1e-8
    assert relative(found.parts["information"], variants.most_central(seen, spans, N)) < 1e-8


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
        expected = {"frozen": variants.most_central, "chunk": variants.window_mean}[mode](parts, STRIDE_2, N)
        assert relative(found.parts["information"], expected) < 1e-8, mode


# ---------------------------------------------------------------------------------------------------- of the core
@pytest.mark.parametrize("n", [1, 2, 3, 7, 12, 13])
@pytest.mark.parametrize("overlap", [0.0, 0.3, 0.5, 0.99])
def test_windows_are_the_oracles(n: int, overlap: float) -> None:
    for size in range(2, 15):
        assert windows(n, size, overlap) == [Window(*span) for span in variants.windows(n, size, overlap)]


def test_windows_by_hand() -> None:
    assert windows(10, 4, 0.5) == [(0, 4), (2, 6), (4, 8), (6, 10)]
    assert windows(9, 4, 0.5) == [(0, 4), (2, 6), (4, 8), (5, 9)]
    assert windows(4, 2, 0.99) == [(0, 2), (1, 3), (2, 4)]
    assert windows(8, 4, 0.0) == [(0, 4), (4, 8)]


def test_averages_by_hand_and_by_the_oracle() -> None:
    spans = [Window(0, 2), Window(1, 3), Window(2, 4)]
    parts = [torch.tensor([[1.0, 2.0], [0.0, 8.0]]), torch.tensor([[4.0, 6.0], [0.0, 2.0]])]
    found = averaged([*parts, torch.zeros(2, 2)], spans, 4)
    assert found.tolist() == [[1.0, 3.0, 3.0, 0.0], [0.0, 4.0, 1.0, 0.0]]
    generator = torch.Generator().manual_seed(0)
    spans = windows(9, 4, 0.7)
    parts = [torch.randn(4, generator=generator, dtype=torch.float64) for _ in spans]
    torch.testing.assert_close(averaged(parts, spans, 9), variants.window_mean(parts, pairs(spans), 9))


def test_the_gap_near_edges_by_hand() -> None:
    spans = [Window(0, 3), Window(3, 6)]  # one edge, before 3: 2 and 3 are next to it
    scores, others = torch.tensor([1.0, 1, 1, 1, 0, 0]), torch.tensor([2.0, 0, 0, 0, 0, 2])
    assert edge_gap(scores, others, spans, reach=1) == pytest.approx((1 / 4 + 1 / 4) / 2)
    assert edge_gap(scores, others, spans) == pytest.approx((1 / 4 * 4 + 1 / 2) / 2)
    assert edge_gap(scores, 3 * scores, spans) == 0
    assert edge_gap(scores, others, [Window(0, 6)]) == 0  # the context's own ends are no edges
