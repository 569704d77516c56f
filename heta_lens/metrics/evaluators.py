"""Evaluators of the built-in metrics: functions from a `MetricCase` to the values of metrics by name."""

from dataclasses import replace
from math import isnan

import torch
from jaxtyping import Float
from torch import Tensor

from heta_lens.metrics import evidence, interventions, removal, robustness, tasks
from heta_lens.metrics.metric_case import MetricCase, Value
from heta_lens.metrics.scores import normalised
from heta_lens.prediction.cache import Activations
from heta_lens.prediction.patching import effects, values_put
from heta_lens.prediction.prediction import predictions

RUNS = 5  # of a method under noise
NEEDLESS = "the prediction needs no context: it is the same without any"
READINGS: dict[str, evidence.DsaReading] = {
    "dsa": "supervised",
    "dsa_selected": "model_selected",
    "dsa_segments": "segments",
    "dsa_thresholded": "thresholded_max",
}


def value_or_reason(value: float, reason: str) -> Value:
    return reason if isnan(value) else value


def evaluate_soft(case: MetricCase) -> Value | dict[str, Value]:
    result = removal.soft(case.prediction, case.scores, candidates=case.candidates, paired=True)
    if isnan(result.nc):
        return NEEDLESS
    return {
        "soft_nc": (result.nc, result.nc_random),
        "soft_ns": (result.ns, result.ns_random),
        "soft_nc_raw": result.nc,
        "soft_ns_raw": result.ns,
    }


def evaluate_hard(case: MetricCase) -> dict[str, Value]:
    values = removal.hard(case.prediction, case.scores, candidates=case.candidates)
    return {f"hard_{name}": value_or_reason(value, NEEDLESS) for name, value in values.items()}


def evaluate_released(case: MetricCase) -> dict[str, Value]:
    values = removal.released(case.prediction, case.scores, candidates=case.candidates)
    return {f"soft_{name}_released_code": value for name, value in values.items()}


def evaluate_curves(case: MetricCase) -> dict[str, Value]:
    morf = removal.curve(case.prediction, case.scores, candidates=case.candidates)
    lerf = removal.curve(case.prediction, case.scores, order="lerf", candidates=case.candidates)
    return {
        "aopc_del": removal.aopc(morf),
        "morf": removal.area(morf, "drop"),
        "lerf": removal.area(lerf, "drop"),
        "abpc": removal.abpc(morf, lerf),
    }


def evaluate_insertion(case: MetricCase) -> float:
    returning = removal.curve(case.prediction, case.scores, insert=True, candidates=case.candidates)
    return removal.aopc(returning, insert=True)


def evaluate_counterfactual(case: MetricCase) -> Value:
    assert case.instance.counterfactual is not None
    edited = case.ask(replace(case.instance.counterfactual, answer=None))
    if len(edited) != len(case.prediction):
        return "the edited text has another number of tokens"
    return removal.aopc(removal.curve(edited, case.scores, candidates=case.candidates))


def evaluate_additivity(case: MetricCase) -> dict[str, Value]:
    drops = case.cached.drops
    errors = interventions.faithfulness_error(drops, case.scores)
    return {
        "faithfulness_error": errors["raw"],
        "faithfulness_error_calibrated": errors["calibrated"],
        "additivity_gap": interventions.additivity_gap(drops, case.scores),
    }


def evaluate_support(case: MetricCase) -> dict[str, Value]:
    support = case.positions("support")
    (first,) = evidence.highest(case.scores, 1, case.candidates)
    asked = {"scores": case.scores, "evidence": support, "candidates": case.candidates}
    return {
        "first_is_evidence": float(first in support),
        "evidence_mass": evidence.evidence_mass(**asked),
        "reciprocal_rank": evidence.reciprocal_rank(**asked),
        "recovery_10": evidence.recovery(**asked),
    }


def evaluate_gold(case: MetricCase) -> dict[str, Value]:
    asked = {"scores": case.scores, "gold": case.positions("gold"), "candidates": case.candidates}
    return {"f1": evidence.f1(**asked), "pass_5": evidence.passes(**asked, k=5)}


def evaluate_dsa(case: MetricCase) -> dict[str, Value]:
    support, distractor, gold = (case.positions(name) for name in ("support", "distractor", "gold"))
    scores = torch.zeros_like(case.scores)  # of special tokens, which belong to no segment
    scores[case.candidates] = case.scores[case.candidates]
    return {
        name: evidence.dsa(scores, support, distractor, gold, reading=reading) for name, reading in READINGS.items()
    }


def evaluate_span(case: MetricCase) -> float:
    return evidence.f1(of_whole_answer(case), case.positions("gold"), candidates=case.candidates)


def of_whole_answer(case: MetricCase) -> Float[Tensor, "pos"]:
    """Sum the context's scores over the tokens of the answer, after every token's scores are normalised to sum to 1."""
    prediction, answer = case.prediction, case.instance.answer
    written = prediction.spell(answer) if answer else []
    if isinstance(first := prediction.target, int) and first in written:  # after a blank that the context has already
        written = written[written.index(first) :]
    if len(written) < 2:
        return case.scores
    n = len(prediction)
    ids = torch.cat([prediction.ids, torch.tensor(written[:-1]).to(prediction.ids)])[None]
    cache = prediction.adapter.cache(ids)
    targets = {n + place: token for place, token in enumerate(written)}
    with prediction.adapter.undisturbed():
        of_answer = predictions(prediction.adapter, Activations.of(cache), targets, tokens=ids, follow=False)
    whole = torch.zeros_like(case.scores)  # of special tokens, which are not evaluated
    for token in of_answer:
        whole[case.candidates] += normalised(case.explain(token).scores.cpu()[case.candidates])
    return whole


def evaluate_effects(case: MetricCase) -> dict[str, Value]:
    single, candidates, signed = case.cached.edge_effects, case.candidates, case.attribution.signed
    joint = effects(case.prediction, groups=[evidence.highest(case.scores, 5, candidates)])
    correlation = interventions.patch_correlation(case.scores, single, candidates=candidates, signed=signed)
    return {
        "patch_correlation": value_or_reason(correlation, "scores or effects are all equal"),
        "intervention_5": float(joint[0]),
        "mean_effect_5": interventions.mean_effect(case.scores, single, 5, candidates=candidates),
        "misattribution": interventions.misattribution(case.scores, single, candidates=candidates, signed=signed),
    }


def evaluate_causal_pass(case: MetricCase) -> Value | dict[str, Value]:
    """Look for the evidence in the counterfactual, with and without the evidence's middle-layer values patched in."""
    assert case.instance.counterfactual is not None
    counterfactual = replace(case.instance.counterfactual, answer=None)
    other = replace(case.ask(counterfactual), target=case.prediction.target)
    if len(other) != len(case.prediction):
        return "the counterfactual has another number of tokens"
    gold, layer = case.positions("gold"), case.prediction.layers // 2
    explain = case.ready(counterfactual, other)
    before = explain(other)
    with values_put(other, gold, case.prediction.values[layer], layer):
        after = explain(robustness.again(other))
    found = [evidence.passes(one.scores.detach().cpu(), gold, 5, candidates=case.candidates) for one in (after, before)]
    chance = evidence.chance_of_passing(len(case.candidates), len({*gold} & {*case.candidates}), 5)
    return dict(
        zip(("causal_pass_5", "causal_pass_5_unpatched", "causal_pass_5_chance"), (*found, chance), strict=True)
    )


def evaluate_sensitivity(case: MetricCase) -> float:
    runs = robustness.under_noise(case.prediction, [case.explain] * RUNS)
    of_candidates = [run.scores.detach().cpu()[case.candidates] for run in runs]
    return robustness.sensitivity(torch.stack([normalised(scores, "max") for scores in of_candidates]))


def evaluate_paraphrase_consistency(case: MetricCase) -> Value:
    assert case.instance.paraphrase is not None
    prediction = case.ask(case.instance.paraphrase)
    other = case.ready(case.instance.paraphrase, prediction)(prediction)
    correlation = robustness.paraphrase_consistency(case.attribution.without_special(), other.without_special())
    return value_or_reason(correlation, "fewer than 3 words match, or the scores of one text are all equal")


def evaluate_verdict(case: MetricCase) -> Value | dict[str, Value]:
    context = sorted({*case.positions("support"), *case.positions("distractor")})
    choices = [case.prediction.spell(choice)[0] for choice in case.instance.choices]
    if len({*choices}) < len(choices):
        return "some choices begin with the same token"
    changes = tasks.exact_match_change(case.prediction, case.scores, context=context, choices=choices)
    return {"verdict_change": changes["change"], "verdict_change_random": changes["random"]}


def evaluate_tool(case: MetricCase) -> float:
    context = sorted({*case.positions("support"), *case.positions("distractor")})
    ids, decode = case.prediction.ids.tolist(), case.prediction.tokenizer.decode
    whole, snippet = (decode([ids[at] for at in kept]) for kept in (context, tasks.kept_mass(case.scores, context)))
    question, choices = " ".join(case.instance.words("question")), case.instance.choices
    best, complete = (tasks.look_up(text, question, choices) == case.instance.answer for text in (snippet, whole))
    return 100.0 * (best - complete)
