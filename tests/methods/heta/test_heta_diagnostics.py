"""What is reported beside a score, and what is warned of."""

import subprocess
import sys
from typing import get_args

import pytest
import torch

import heta_lens
import heta_lens.prediction.prediction
from helpers import zoo
from helpers.asking import cache_of, explain, relative
from helpers.paths import ROOT
from heta_lens.methods.heta.score import Balance


def test_the_share_of_each_part_is_named_where_the_score_is_read() -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, 6)
    attribution = heta_lens.attribute(cache_of(model, ids), tokens=ids, gamma=0.01)
    share = attribution.diagnostics["share"]
    assert share["information"] == pytest.approx(1 - share["curvature"])
    (said,) = [note for note in attribution.notes if note.startswith("the score is")]
    assert said == "the score is >99.9% curvature, <0.1% information"
    balanced = explain(model, ids, balance="sum")
    shown = ", ".join(f"{part:.1%} {name}" for name, part in balanced.diagnostics["share"].items())
    assert f"the score is {shown}" in balanced.notes


@pytest.mark.parametrize("balance", get_args(Balance))
def test_the_balanced_score_is_always_reported_beside_the_literal_one(balance: Balance) -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, 6)
    attribution = explain(model, ids, balance=balance)
    gate, curvature, information = (attribution.parts[name] for name in ("gate", "curvature", "information"))
    expected = gate * (curvature / curvature.sum() + information / information.sum()) / 2
    torch.testing.assert_close(attribution.diagnostics["balanced"], expected)
    if balance == "sum":
        torch.testing.assert_close(attribution.scores, expected)


def test_sink_mass_is_the_first_tokens_share() -> None:
    model = zoo.bridge("gpt2")
    attribution = explain(model, zoo.prompt(model, 6))
    share = attribution.scores / attribution.scores.sum()
    assert attribution.diagnostics["sink_mass"] == pytest.approx(float(share[0]))


@pytest.mark.slow
def test_standard_errors_are_of_what_is_random() -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, 6)
    errors = explain(model, ids).standard_errors
    assert errors["gate"] is None
    assert errors["information"] is None
    torch.testing.assert_close(errors["scores"], explain(model, ids).parts["gate"] * 0.5 * errors["curvature"])
    for options in ({"probes": 1}, {"norm": "exact"}, {"norm": "entrywise"}, {"variant": "kl_only"}):
        assert set(explain(model, ids, **options).standard_errors.values()) == {None}, options


@pytest.mark.skipif(not zoo.HAS_HOOKED, reason="HookedTransformer was removed in TransformerLens 4")
def test_weight_processing_is_seen() -> None:
    model = zoo.hooked.__wrapped__("gpt2")
    ids = zoo.prompt(model, 5)
    raw = explain(model, ids, 7)
    model.load_and_process_state_dict(
        model.state_dict(), fold_ln=True, center_writing_weights=True, fold_value_biases=True
    )
    processed = explain(model, ids, 7)
    before, after = (attribution.options["model"] for attribution in (raw, processed))
    assert (before["writing_weights_centred"], before["value_biases"]) == (False, True)
    assert (after["writing_weights_centred"], after["value_biases"]) == (True, False)
    assert relative(processed.parts["curvature"], raw.parts["curvature"]) < 1e-2
    assert relative(processed.parts["gate"], raw.parts["gate"]) > 1e-2


LOOP = """
import heta_lens
from helpers import zoo
model = zoo.bridge("gpt2")
for seed in range(3):
    ids = zoo.prompt(model, 6, seed=seed)
    heta_lens.attribute(model.run_with_cache(ids)[1], tokens=ids, probes=3, tolerance=1e-9)
"""


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_a_loop_warns_once() -> None:
    """In an interpreter of its own: the type checks of a test run make Python forget what it has warned of."""
    command = [sys.executable, "-c", LOOP]
    done = subprocess.run(command, cwd=ROOT / "tests", capture_output=True, text=True, check=True)
    assert done.stderr.count("probes=3 were too few") == 1
    assert "<string>:7" in done.stderr
