"""Segments: frozen windows and chunks predict what the oracle does."""

from typing import Any

import pytest
import torch

from helpers import oracles, zoo
from helpers import variant_oracles as variants
from helpers.asking import explain, plain_embeddings, plain_log_probs, predict, relative, signs
from helpers.blocks import attentions, with_side_channel
from helpers.windowing import STRIDE_2, D, N, also, dense, frozen, oracle_gate, oracle_information, own_signs, windowed
from heta_lens._util.work import Allocations
from heta_lens.methods.heta.curvature import whole_segment
from heta_lens.model.batching import Batches


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
                found = prediction.log_probs_from(*window, layer)(clean[None])[0]
                assert (found - prediction.log_probs).abs().max() < close, (window, layer)
                if dtype == torch.float64 and window != (5, 8):
                    moved = clean + signs(1, 1, 3, D)[0]
                    expected = frozen(model, ids, window, layer)[0](moved)
                    assert (prediction.log_probs_from(*window, layer)(moved[None])[0] - expected).abs().max() < close


@pytest.mark.usefixtures("short_tail")
@pytest.mark.parametrize("build", zoo.models("bridge-(gpt2|gemma2|native)|hooked-(local|alibi)"))
def test_what_lies_between_a_window_and_the_tail_stays_as_it_was_in_every_layer(build: Any) -> None:
    """With three layers a change could reach the tail through the positions between."""
    model = build(n_layers=3)
    ids = zoo.prompt(model, N)
    prediction = predict(model, ids)
    with prediction.running(), torch.no_grad():
        for layer in (None, 0, 1):
            moved = prediction.states(layer)[1:4] + signs(1, 1, 3, D)[0]
            found = prediction.log_probs_from(1, 4, layer)(moved[None])[0]
            assert (found - frozen(model, ids, (1, 4), layer)[0](moved)).abs().max() < 1e-5
            live = torch.cat([moved, prediction.states(layer)[4:]])
            assert (found - prediction.log_probs_from(1, None, layer)(live[None])[0]).abs().max() > 1e-3


def test_sixteen_tokens_before_the_prediction_always_react() -> None:
    model = zoo.bridge("gpt2", n_layers=3)
    ids = zoo.prompt(model, 22)
    prediction = predict(model, ids)
    with prediction.running(), torch.no_grad():
        for stop, same in ((6, True), (5, False)):
            moved = prediction.embeddings[2:stop] + signs(1, 1, stop - 2, D)[0]
            found = prediction.log_probs_from(2, stop)(moved[None])[0]
            expected = variants.frozen_window(model, ids, 2, stop, 6)(moved)
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
            live = torch.cat([moved, prediction.embeddings[stop:]])
            assert torch.allclose(found, prediction.log_probs_from(2)(live[None])[0], rtol=0, atol=1e-9) == same


@pytest.mark.slow
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
            bent = dense(variants.log_probs_of_stream(model, chunk, 1), variants.stream(model, chunk, 1))
        curvatures.append(oracles.block_l1(bent, own_signs(start, stop)).mean(0))
        informations.append(oracle_information(log_probs, at))
        gates.append(oracle_gate(model, chunk))
    mean = [variants.window_mean(parts, STRIDE_2, N) for parts in (curvatures, informations, gates)]
    expected = {"curvature": mean[0], "information": mean[1], "gate": mean[2] / mean[2].sum()}
    for name_, part in expected.items():
        assert relative(found.parts[name_], part) < close, name_
    gate, curvature, information = (found.parts[part] for part in ("gate", "curvature", "information"))
    assert relative(found.scores, gate * (curvature + information) / 2) < 1e-12
    whole = oracle_gate(model, ids)
    assert relative(shared.parts["gate"], whole) < 1e-10
    assert shared.diagnostics["window_leakage"] == {"largest": 0.0, "total": 0.0}
    largest, total = variants.leakage(whole, expected["gate"])
    assert found.diagnostics["window_leakage"] == pytest.approx({"largest": largest, "total": total}, rel=1e-6)


@pytest.mark.parametrize("variant", [{"variant": "ls"}, {"variant": "ls+win", "window": 6, "overlap": 0.0}], ids=str)
@pytest.mark.parametrize("build", [zoo.NEW["gpt2"], zoo.NEW["native"]], ids=["gpt2", "native"])
@pytest.mark.usefixtures("short_tail")
def test_the_curvature_of_the_last_layers_runs_no_block_below_them(build: Any, variant: dict[str, Any]) -> None:
    """Neither for its graphs, however many there are, nor for their products."""
    model = build()
    ids = zoo.prompt(model, 40)
    ran = attentions(model)
    lower = {}
    for probes in (1, 3):
        ran.clear()
        explain(model, ids, gamma=0, layers=1, groups=None, probes=probes, **variant)
        lower[probes] = ran.count(0)
        assert ran.count(1) > lower[probes]
    assert lower[1] == lower[3]


@pytest.mark.parametrize("build", zoo.models("bridge-(gpt2|llama|native)|hooked-gpt2"))
def test_the_graph_of_the_last_layers_is_as_large_as_if_there_were_no_others(build: Any) -> None:
    held = {}
    for layers in (2, 6):
        model = build(torch.float32, n_layers=layers)
        prediction = predict(model, zoo.prompt(model, 30))
        segment = whole_segment(prediction, layer=layers - 1)
        with prediction.running():
            _ = segment.states, prediction.prompt.kept, prediction.prompt.runner.alone
            with Allocations() as allocations:
                operator = segment.hessian_from(Batches(1), lambda _: None, 0)
                held[layers] = allocations.now
        del operator
    assert held[2] == held[6]


def test_blocks_that_hear_of_others_run_with_them() -> None:
    """Where blocks cannot run alone, those below the last layers do as well."""
    model = with_side_channel()
    prediction = predict(model, zoo.prompt(model, N))
    states = prediction.states(1)
    with prediction.running(), torch.no_grad():
        found = prediction.log_probs_from(0, layer=1)(states[None])[0]
    torch.testing.assert_close(found, prediction.log_probs)
    assert not prediction.prompt.runner.alone.same
