"""What scores are worth: do they add up, what bounds them, how far is an approximation from the full one."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import heta_lens
from helpers import variant_oracles as variants
from helpers import zoo
from helpers.asking import doubts_allowed, explain, plain_embeddings, relative
from helpers.masked_sets import TARGET, N, check_audit, found, objective
from heta_lens.diagnostics import agreement
from heta_lens.methods.heta.diagnostics import SUBSETS, best_scale, envelope, faithfulness, shuffled, subsets
from heta_lens.model.adapter import ModelAdapter
from heta_lens.prediction.activations import Activations
from heta_lens.prediction.prediction import predictions

SEVERAL = "bridge-(gpt2|llama|native)|hooked-(rotary_gqa|alibi)"


def single_drops(model: Any, ids: Tensor, vector: Tensor | None = None, target: Any = TARGET) -> Tensor:
    at = plain_embeddings(model, ids)
    vector = torch.zeros_like(at[0]) if vector is None else vector
    g = objective(model, ids, target)
    return torch.stack([variants.drop(g, at, vector, [i]) for i in range(len(at))])


# ------------------------------------------------------------------------------------------- without further runs
@pytest.mark.slow
@pytest.mark.parametrize("target", [TARGET, (7, 9)])
@pytest.mark.parametrize(("name", "build"), zoo.named(SEVERAL))
def test_drops_gap_and_envelope_are_the_oracles(name: str, build: Any, target: Any) -> None:
    model = build()
    ids, close = zoo.prompt(model, N), zoo.tolerance(name)
    attribution = found(model, ids, target, beta=0.3, gamma=0.6)
    facts, at = attribution.diagnostics, plain_embeddings(model, ids)
    drops = single_drops(model, ids, target=target)
    assert relative(facts["drop"], drops) < close
    gap = variants.additivity_gap(attribution.scores, objective(model, ids, target), at, torch.zeros_like(at[0]))
    assert facts["additivity_gap"] == pytest.approx(float(gap), rel=close, abs=close)
    gate, curvature, information = (attribution.parts[part] for part in ("gate", "curvature", "information"))
    assert relative(facts["envelope"], variants.envelope(gate, curvature, drops, 0.3, 0.6)) < close
    assert facts["envelope_share"] == variants.envelope_share(information, drops)
    bounded = attribution.scores <= facts["envelope"]
    assert float(bounded.double().mean()) == facts["envelope_share"]


@pytest.mark.slow
@pytest.mark.parametrize("mask", ["mean", "vocab_mean", 9])
def test_what_masks_a_token_masks_all_of_them(mask: Any) -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, N)
    at, table = plain_embeddings(model, ids), model.embed.W_E.detach()
    vector = {"mean": at.mean(0), "vocab_mean": table.mean(0), 9: table[9]}[mask]
    attribution = found(model, ids, mask=mask, audit=True)
    gap = variants.additivity_gap(attribution.scores, objective(model, ids), at, vector)
    assert attribution.diagnostics["additivity_gap"] == pytest.approx(float(gap), rel=1e-8)
    assert relative(attribution.diagnostics["drop"], single_drops(model, ids, vector)) < 1e-8
    check_audit(attribution, model, ids, vector)


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["transition_only", "hessian_only", "kl_only", "no_gate", "gs", "gn"])
def test_every_variant_says_how_far_it_is_from_adding_up(variant: str) -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, N)
    attribution = explain(model, ids, TARGET, variant=variant)
    at, facts = plain_embeddings(model, ids), attribution.diagnostics
    gap = variants.additivity_gap(attribution.scores, objective(model, ids), at, torch.zeros_like(at[0]))
    assert facts["additivity_gap"] == pytest.approx(float(gap), rel=1e-8)
    without_information = variant in ("transition_only", "hessian_only")
    for name in ("drop", "envelope", "envelope_share"):
        assert (name in facts) != without_information, name
    if variant == "kl_only":
        gain = attribution.parts["gate"] * facts["drop"].clamp(min=0)
        torch.testing.assert_close(facts["envelope"], gain)
    assert "faithfulness" not in facts and "against_full" not in facts


def test_every_target_of_a_prompt_has_its_own_drops_and_gap() -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, N)
    cache = model.run_with_cache(ids)[1]
    adapter = ModelAdapter.of(cache)
    with adapter.undisturbed():
        cached = Activations.of(cache)
        both = predictions(adapter, cached, {3: 7, N: 9}, tokens=ids, follow=True)
    with doubts_allowed():
        results = heta_lens.Heta(probes=2).each(both)
    for attribution, n, target in zip(results, (3, N), (7, 9), strict=True):
        alone = found(model, ids[:, :n], target).diagnostics
        assert relative(attribution.diagnostics["drop"], alone["drop"]) < 1e-8
        assert attribution.diagnostics["additivity_gap"] == pytest.approx(alone["additivity_gap"], rel=1e-8)
        assert relative(attribution.diagnostics["envelope"], alone["envelope"]) < 1e-8


# --------------------------------------------------------------------------------------------------- of the core
def test_subsets_are_every_token_and_random_sets_of_all_sizes() -> None:
    draw = np.random.default_rng
    members = subsets(draw(0), 5, 3000)
    assert torch.equal(members[:5], torch.eye(5, dtype=torch.bool))
    sizes = members[5:].sum(1)
    assert [int((sizes == size).sum()) for size in range(7)] == [0, *[pytest.approx(600, abs=90)] * 5, 0]
    assert members[5:].double().mean(0).tolist() == pytest.approx([0.6] * 5, abs=0.04)
    assert not torch.equal(subsets(draw(0), 5), subsets(draw(1), 5))
    assert subsets(draw(0), 1).all() and subsets(draw(0), 9).shape == (9 + SUBSETS, 9)


def test_scores_that_add_up_have_no_error_at_any_scale() -> None:
    slope = torch.rand(6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    members = subsets(np.random.default_rng(0), 6).double()
    order = shuffled(np.random.default_rng(1), members)
    exact = faithfulness(members @ slope, members @ slope, order)
    assert (exact["raw"], exact["calibrated"], exact["scale"]) == pytest.approx((0, 0, 1), abs=1e-12)
    scaled = faithfulness(members @ slope, members @ slope * 4, order)
    assert scaled["calibrated"] == pytest.approx(0, abs=1e-12) and scaled["scale"] == pytest.approx(0.25)
    assert scaled["raw"] == pytest.approx(float(3 * (members @ slope).mean()))
    opposed = faithfulness(members @ slope, -(members @ slope), order)
    assert opposed["scale"] == 0 and opposed["calibrated"] == opposed["nothing"]
    assert faithfulness(members @ slope, torch.zeros(len(members)).double(), order)["scale"] == 0


@pytest.mark.parametrize("seed", range(5))
def test_the_best_scale_is_the_oracles(seed: int) -> None:
    drops, sums = torch.randn(2, 9, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    assert best_scale(drops, sums) == pytest.approx(float(variants.best_scale(drops, sums)))


def test_the_envelope_by_hand() -> None:
    information, drop = torch.tensor([0.5, 0.2, 0.1, 0.0]), torch.tensor([0.5, 0.1, -3.0, -1.0])
    gain, share = envelope(information, drop)
    assert gain.tolist() == [0.5, pytest.approx(0.1), 0.0, 0.0]
    assert share == 0.5


def test_agreement_by_hand() -> None:
    found = agreement(torch.tensor([1.0, 2.0, 5.0]), torch.tensor([4.0, 2.0, 10.0]))
    assert found == pytest.approx({"rank_correlation": 0.5, "l1": 1 / 8 + 1 / 8})
    assert np.isnan(agreement(torch.ones(3), torch.tensor([1.0, 2.0, 3.0]))["rank_correlation"])


@pytest.mark.parametrize("balance", ["none", "sum", "max"])
def test_the_envelope_is_on_the_scale_of_the_scores(balance: str) -> None:
    """So that it bounds those whose information is no more than their drop, and only those."""
    model = zoo.bridge("gpt2")
    attribution = explain(model, zoo.prompt(model, 6), 7, probes=2, balance=balance)
    facts = attribution.diagnostics
    bounded = attribution.parts["information"] <= facts["drop"].clamp(min=0)
    assert torch.equal(attribution.scores <= facts["envelope"], bounded)
    assert facts["envelope_share"] == int(bounded.sum()) / 6
