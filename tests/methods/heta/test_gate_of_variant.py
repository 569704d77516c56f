"""The gate over windows: by hand and by the oracle, and how much it leaks."""

from typing import Any

import pytest
import torch

from helpers import variant_oracles as variants
from helpers import zoo
from helpers.asking import explain, relative
from helpers.windowing import PROBES, STRIDE_2, TARGET, N, oracle_gate, pairs, windowed
from heta_lens.methods.heta.windows import Window, leakage, window_gate, windows


# ------------------------------------------------------------------------------------------------ restrict and chunk
@pytest.mark.slow
@pytest.mark.parametrize("build", zoo.models("bridge-(gpt2|llama|native)|hooked-rotary_gqa"))
def test_restricted_windows_only_change_the_gate(build: Any) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    full = explain(model, ids, TARGET, probes=PROBES)
    same = windowed(model, ids, window_mode="restrict")
    assert relative(same.scores, full.scores) < 1e-12
    found = windowed(model, ids, window_mode="restrict", window_gate="per_window")
    gate = variants.window_gate(oracle_gate(model, ids), STRIDE_2)
    assert relative(found.parts["gate"], gate) < 1e-10
    for name in ("curvature", "information"):
        assert relative(found.parts[name], full.parts[name]) < 1e-12
    low = windowed(model, ids, variant="lr+win", rank=3, window_mode="restrict")
    assert relative(low.scores, explain(model, ids, TARGET, variant="lr", rank=3, probes=PROBES).scores) < 1e-12


# ------------------------------------------------------------------------------------------------------ diagnostics
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
    gate = variants.window_gate(whole, STRIDE_2)
    assert relative(found.parts["gate"], gate) < 1e-10
    largest, total = variants.leakage(whole, gate)
    assert total > 0.01
    assert found.diagnostics["window_leakage"] == pytest.approx({"largest": largest, "total": total})
    assert found.diagnostics["gate_total"] == pytest.approx(explain(model, ids, TARGET).diagnostics["gate_total"])


def test_gates_of_windows_by_hand_and_by_the_oracle() -> None:
    spans = [Window(0, 2), Window(1, 3)]
    found = window_gate([torch.tensor([1.0, 1.0]), torch.tensor([1.0, 3.0])], spans, 3)
    assert found.tolist() == pytest.approx([4 / 13, 3 / 13, 6 / 13])
    found = window_gate([torch.tensor([0.0, 0.0]), torch.tensor([0.0, 3.0])], spans, 3)
    assert found.tolist() == pytest.approx([2 / 7, 1 / 7, 4 / 7])
    mass = torch.rand(11, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    spans = windows(11, 5, 0.3)
    found = window_gate([mass[slice(*span)] for span in spans], spans, 11)
    torch.testing.assert_close(found, variants.window_gate(mass, pairs(spans)))


def test_leakage_by_hand() -> None:
    found = leakage(torch.tensor([0.5, 0.2, 0.3]), torch.tensor([0.4, 0.5, 0.1]))
    assert found == pytest.approx({"largest": 0.3, "total": 0.3})
