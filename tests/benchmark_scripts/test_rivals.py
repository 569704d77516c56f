"""The comparison of methods by interventions, and the certainty of predictions: measures and prompts."""

from functools import cache
from itertools import islice
from typing import Any

import pytest
import torch

import heta_lens
from benchmarks import certainty, contest, prompts, rivals
from benchmarks.interventions import MEASURES, measures
from benchmarks.outcomes import Outcomes
from benchmarks.prompts import FAMILIES, Case
from heta_lens.metrics import abpc, curve, mean_effect, patch_correlation
from heta_lens.metrics.scores import ordinary
from heta_lens.prediction.patching import effects


@cache
def cases(count: int) -> list[Case]:
    return [*FAMILIES["recall"].cases("recall", count)]


def case() -> Case:
    return cases(1)[0]


@pytest.mark.thorough
def test_measures_are_those_of_the_library() -> None:
    prediction, places = case().prediction, ordinary(case().prediction)
    scores = torch.rand(2, len(prediction))
    found = measures(case(), scores)
    ways = [
        effects(prediction),
        effects(prediction, how="input", mask="mean"),
        effects(prediction, how="resid_patch", layer=3),
        effects(prediction, how="input", reference=case().other),
    ]
    for row, own in zip(found, scores.double(), strict=True):
        expected = [patch_correlation(own, way.double(), candidates=places) for way in ways]
        expected += [mean_effect(own, way.double(), 5, candidates=places) for way in ways]
        for ablate in ("mask", "remove"):
            curves = (curve(prediction, own, order=order, ablate=ablate) for order in ("morf", "lerf"))  # type: ignore[arg-type]
            expected.append(abpc(*curves))
        assert row.tolist() == pytest.approx(expected, rel=1e-3, abs=1e-4)
    assert found.shape == (2, len(MEASURES))


# -------------------------------------------------------------------------------------------------------------- prompts
@pytest.mark.parametrize("family", [prompts.lists, prompts.pronouns])
def test_the_evidence_is_one_word_that_tells_the_answer(family: Any) -> None:
    some = [*islice(family(), 40)]
    assert len({one.template.split(",")[0] for one in some}) == 6
    for one in some:
        told = {one.text[start:stop] for start, stop in one.evidence}
        assert len(told) == 1 and one.text != one.counterfactual
        assert (one.foil is None and f" {told.pop()}" == one.target) or one.foil in (" he", " she")


def test_a_contest_is_won_by_the_highest_number() -> None:
    for one in islice(contest.instances("test"), 20):
        pairs = dict(pair.split(" ") for pair in one.text.partition(".")[0].split(", "))
        best = max(pairs, key=lambda name: int(pairs[name]))
        assert one.answer == f" {best}" and one.words("support") == [f"{best} {pairs[best]}"]
        assert one.counterfactual is not None and one.counterfactual.answer != one.answer


# ------------------------------------------------------------------------------------------------------------ certainty
@pytest.mark.thorough
@pytest.mark.slow
def test_the_same_prompt_is_predicted_with_more_certainty() -> None:
    prompt = next(some for some in cases(6) if float(some.prediction.log_probs.max().exp()) > 0.5)
    one = certainty.FACTORS.index(1.0)
    found = certainty.outcome(prompt)["factors"]
    probabilities = [factor["p"] for factor in found]
    assert probabilities == sorted(probabilities) and probabilities[0] < 0.9 < probabilities[-1]
    assert probabilities[one] == pytest.approx(float(prompt.prediction.log_probs.max().exp()), rel=1e-4)
    plain = heta_lens.Heta(progress=False)(prompt.prediction)
    assert found[one]["share"] == pytest.approx(plain.diagnostics.share["curvature"], rel=1e-2)


# --------------------------------------------------------------------------------------------------------------- rivals
def test_methods_that_cost_too_much_say_so() -> None:
    found = rivals.outcome(case(), ["attn_lrp", "leave_one_out", "kernel_shap", "random", "heta row"], 3)
    assert found["methods"] == ["attn_lrp", "random"] and found["runs"] == [3.0, 0.0]
    assert {*found["refused"]} == {"leave_one_out", "kernel_shap", "heta row"}
    assert "over the budget of 3" in found["refused"]["leave_one_out"]


@pytest.mark.thorough
def test_random_scores_are_of_less_quality(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rivals, "outcomes_of", lambda family, group: Outcomes(f"{family}_{group}", tmp_path))
    for cached in (rivals.kept, rivals.rows):
        cached.cache_clear()
    some = {one.id: one for one in cases(6)}
    rivals.measure(rivals.outcomes_of("recall", "quick"), some, ["heta", "attn_lrp", "random"], None)
    for budget in rivals.BUDGETS:
        rivals.measure(rivals.outcomes_of("recall", f"budget {budget}"), some, ["attn_lrp", "random"], budget)
    quality = {one.method: one.quality for one in rivals.entries() if one.budget is None}
    assert quality["random"] < quality["attn_lrp"]
    best = [one.method for one in rivals.front(rivals.entries())]
    assert best[0] == "random" and "attn_lrp" in best
    for cached in (rivals.kept, rivals.rows):
        cached.cache_clear()
