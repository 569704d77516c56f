"""Evaluators prefer good scores to bad scores, and explain the texts and seeds of the comparison."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import heta_lens
from helpers.evaluating import case_of, demo, scored
from heta_lens.data.instance import Instance
from heta_lens.data.suites import suite
from heta_lens.evaluation import figures
from heta_lens.evaluation.prompt_evaluation import ask, explained
from heta_lens.methods.results import Scores, make_attribution
from heta_lens.metrics import METRICS
from heta_lens.metrics.evaluators import READINGS, of_whole_answer
from heta_lens.metrics.metric_case import MetricCache
from heta_lens.metrics.scores import evidence_positions


def means() -> dict[str, dict[str, float]]:
    """Evaluate the scores of leave-one-out, of gold words, random scores, and inverted scores of leave-one-out."""
    names = [name for name, metric in METRICS.items() if not metric.again]
    found: dict[str, list[dict[str, Any]]] = {"own": [], "gold": [], "random": [], "inverted": []}
    for number, instance in enumerate(
        [
            *suite("recall", limit=4, facts=3, wordings="trained"),
            *suite("recall", limit=1, claim=True, facts=3, wordings="trained"),
        ]
    ):
        case = case_of(instance)
        gold = np.isin(np.arange(len(case.scores)), case.positions("gold")).astype(float)
        drawn = np.random.default_rng(number).random(len(gold))
        ways = {
            "own": case.scores,
            "gold": gold + 1e-3 * drawn,
            "random": drawn,
            "inverted": case.scores.max() - case.scores,
        }
        for way, scores in ways.items():
            found[way].append(figures(scored(case, scores), names)[0])
    return {way: {name: mean([one[name] for one in some]) for name in names} for way, some in found.items()}


def mean(values: list[Any]) -> float:
    """Average values; of pairs, divide the averages."""
    table = np.array([value for value in values if value is not None], dtype=float)
    return float(table.mean()) if table.ndim == 1 else float(table[:, 0].mean() / table[:, 1].mean())


UNORDERED = {
    *("soft_ns", "soft_ns_raw"),  # a token's worth of a context is too little for a sure prediction, whichever it is
    *("faithfulness_error", "additivity_gap"),  # go by the size of scores, not by their order
    "verdict_change_random",  # is the same for all
}
"""Metrics that do not put these in order on the demo model, and why."""


@pytest.mark.thorough
@pytest.mark.usefixtures("unchecked")
def test_every_metric_prefers_good_scores_to_random_ones_and_these_to_bad_ones() -> None:
    found = means()
    for name in found["own"].keys() - UNORDERED:
        good, gold, random, bad = (found[way][name] for way in ("own", "gold", "random", "inverted"))
        sign = 1 if METRICS[name].better == "more" else -1
        assert sign * good > sign * random, name
        assert sign * random >= sign * bad - 1e-3 or name == "verdict_change", name  # right or wrong, of few: coarse
        assert sign * gold >= sign * good or "gold" not in METRICS[name].needs, name


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_evidence_put_in_the_counterfactual_is_looked_for_there() -> None:
    """A method without signs finds the evidence in the two texts, a blind method in neither."""
    found = []
    for instance in suite("recall", limit=4, facts=2, distractors="before"):
        case = replace(case_of(instance), ready=lambda *_: heta_lens.METHODS["leave_one_out"](effect="kl"))
        gold = case.positions("gold")
        known = figures(case, ["causal_pass_5", "causal_pass_5_unpatched", "causal_pass_5_chance"])[0]
        drawn = [np.random.default_rng(seed).permutation(case.candidates)[:5] for seed in range(2000)]
        chance = np.mean([bool({*gold} & {*some}) for some in drawn])
        assert known["causal_pass_5_chance"] == pytest.approx(chance, abs=0.05)
        found.append((known["causal_pass_5"], known["causal_pass_5_unpatched"]))
        recent = replace(case, ready=lambda *_: heta_lens.METHODS["recency"]())  # which is blind to what is patched
        late = float(bool({*gold} & {*case.candidates[-5:]}))
        assert [*figures(recent, ["causal_pass_5", "causal_pass_5_unpatched"])[0].values()] == [late, late]
    assert np.mean(found, axis=0)[0] >= 0.75


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_the_span_of_an_answer_is_explained_token_by_token() -> None:
    (instance,) = suite("recall", limit=1, facts=2)
    case = case_of(instance)
    assert figures(case, ["span_f1"])[0]["span_f1"] == figures(case, ["f1"])[0]["f1"]
    two = replace(instance, answer=f"{instance.answer}{instance.choices[0]}", choices=())
    longer = case_of(two)
    rows = [longer.explain(longer.prediction).scores.clamp(min=0)]
    after = ask(demo(), replace(two, text=two.text + str(instance.answer), answer=instance.choices[0]))
    rows.append(longer.explain(after).scores[: len(rows[0])].clamp(min=0))
    special = torch.tensor([place not in longer.candidates for place in range(len(rows[0]))])  # is not evaluated
    expected = sum(row.double() / row.double().sum() for row in (row.masked_fill(special, 0) for row in rows))
    torch.testing.assert_close(of_whole_answer(longer), expected, check_dtype=False)


@pytest.mark.usefixtures("unchecked")
def test_a_paraphrase_is_explained_with_its_own_spans() -> None:
    (instance,) = suite("recall", limit=1, facts=2)
    asked = []

    def ready(instance: Instance, prediction: Any) -> Any:
        asked.append(evidence_positions(instance, prediction, "question"))
        return heta_lens.METHODS["leave_one_out"]()

    figures(replace(case_of(instance), ready=ready), ["paraphrase_consistency"])
    other = instance.paraphrase
    assert other is not None
    assert asked == [evidence_positions(other, ask(demo(), other), "question")]


def test_choices_that_begin_alike_are_no_choices() -> None:
    (instance,) = suite("recall", limit=1, claim=True, facts=2)
    alike = replace(instance, choices=(instance.answer, f"{instance.answer} true"))
    values = figures(case_of(alike), ["verdict_change"])
    assert values[0]["verdict_change"] is None and "some choices begin with the same token" in str(values)


@pytest.mark.slow
def test_what_a_special_token_has_does_not_matter() -> None:
    [instance], names = suite("recall", limit=1, facts=2), [*READINGS, "f1", "evidence_mass", "sensitivity"]
    prediction = ask(demo(), instance)
    scores = torch.arange(float(len(prediction)))

    def found(first: float) -> dict[str, Any]:
        def explain(asked: Any) -> Any:
            noisy = asked.embeddings.double().sum(1) + 10 * scores
            return make_attribution(asked, "mine", Scores(torch.cat([torch.tensor([first]), noisy[1:]])), {})

        return figures(explained(demo(), instance, MetricCache(prediction), lambda *_: explain), names)[0]

    assert found(0.0) == found(1e4)
    assert found(0.0)["sensitivity"] > 0 and found(0.0)["dsa_thresholded"] != 0
