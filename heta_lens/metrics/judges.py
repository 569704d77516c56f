"""Judges: from one method's word on one prompt to the figures of `METRICS`, by their names."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from math import isnan
from typing import Any, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor

from heta_lens.attribution import Attribution
from heta_lens.cached import Activations
from heta_lens.interventions import effects, values_put
from heta_lens.metrics.additivity import Drops, additivity_gap, faithfulness_error
from heta_lens.metrics.alignment import Reading, chance_of_passing, dsa, evidence_mass, f1, passes
from heta_lens.metrics.case import Case
from heta_lens.metrics.curves import abpc, aopc, area, curve
from heta_lens.metrics.downstream import exact_match_change, hit_change, kept_mass, look_up
from heta_lens.metrics.effects import mean_effect, misattribution, patch_correlation
from heta_lens.metrics.hard import hard, released
from heta_lens.metrics.normalised import normalised
from heta_lens.metrics.ranking import highest
from heta_lens.metrics.robustness import again, sensitivity, told_alike, under_noise
from heta_lens.metrics.sanity import cascade
from heta_lens.metrics.soft import soft, soft_area
from heta_lens.prediction import Prediction, predictions

Value: TypeAlias = float | tuple[float, ...] | str  # a str says why there is none
Measured = TypeVar("Measured")
Judge: TypeAlias = Callable[[Case], Mapping[str, Value]]

RUNS = 5  # under noise


def once(measure: Callable[[Prediction], Measured]) -> Callable[[Prediction], Measured]:
    """Of each prediction once, for all methods that are judged by it."""
    known: WeakKeyDictionary[Prediction, Measured] = WeakKeyDictionary()

    @wraps(measure)
    def found(prediction: Prediction) -> Measured:
        if prediction not in known:
            known[prediction] = measure(prediction)
        return known[prediction]

    return found


@once
def edge_effects(prediction: Prediction) -> Float[Tensor, "pos"]:
    return effects(prediction).cpu().double()


@once
def set_drops(prediction: Prediction) -> Drops:
    return Drops.of(prediction)


NEEDLESS = "the prediction needs no context: it is the same without any"


def _or(reason: str, value: float) -> Value:
    """The value, or why there is none."""
    return reason if isnan(value) else value


# -------------------------------------------------------------------------------------------------------- faithfulness
def judge_soft(case: Case) -> dict[str, Value]:
    found = soft(case.prediction, case.scores, candidates=case.candidates, paired=True)
    if isnan(found.nc):
        return dict.fromkeys(("soft_nc", "soft_ns", "soft_nc_raw", "soft_ns_raw"), NEEDLESS)
    own = {"soft_nc": (found.nc, found.nc_random), "soft_ns": (found.ns, found.ns_random)}
    return {**own, "soft_nc_raw": found.nc, "soft_ns_raw": found.ns}


def judge_soft_equal(case: Case) -> dict[str, Value]:
    found = soft_area(case.prediction, case.scores, candidates=case.candidates)
    return {f"soft_{name}_equal": _or(NEEDLESS, found[name]) for name in ("nc", "ns")}


def judge_hard(case: Case) -> dict[str, Value]:
    found = hard(case.prediction, case.scores, candidates=case.candidates)
    return {f"hard_{name}": _or(NEEDLESS, value) for name, value in found.items()}


def judge_released(case: Case) -> dict[str, Value]:
    found = released(case.prediction, case.scores, candidates=case.candidates)
    return {f"released_{name}": value for name, value in found.items()}


def judge_curves(case: Case) -> dict[str, Value]:
    morf, lerf = (
        curve(case.prediction, case.scores, order=order, candidates=case.candidates) for order in ("morf", "lerf")
    )
    return {"aopc_del": aopc(morf), "morf": area(morf, "drop"), "lerf": area(lerf, "drop"), "abpc": abpc(morf, lerf)}


def judge_insertion(case: Case) -> dict[str, Value]:
    drawn = curve(case.prediction, case.scores, insert=True, candidates=case.candidates)
    return {"aopc_ins": aopc(drawn, insert=True)}


def judge_counterfactual(case: Case) -> dict[str, Value]:
    assert case.instance.twin is not None
    edited = case.ask(replace(case.instance.twin, answer=None))
    if len(edited) != len(case.prediction):
        return {"counterfactual_aopc": "the edited text has another number of tokens"}
    return {"counterfactual_aopc": aopc(curve(edited, case.scores, candidates=case.candidates))}


def judge_additivity(case: Case) -> dict[str, Value]:
    drops = set_drops(case.prediction)
    found = faithfulness_error(drops, case.scores)
    return {
        "faithfulness_error": found["raw"],
        "faithfulness_error_calibrated": found["calibrated"],
        "additivity_gap": additivity_gap(drops, case.scores),
    }


# ----------------------------------------------------------------------------------------------------------- alignment
def judge_support(case: Case) -> dict[str, Value]:
    support, (first,) = case.positions("support"), highest(case.scores, 1, case.candidates)
    return {
        "first_is_support": float(first in support),
        "support_mass": evidence_mass(case.scores, support, candidates=case.candidates),
    }


def judge_gold(case: Case) -> dict[str, Value]:
    gold = case.positions("gold")
    return {
        "f1": f1(case.scores, gold, candidates=case.candidates),
        "pass_5": passes(case.scores, gold, 5, candidates=case.candidates),
    }


def judge_dsa(case: Case) -> dict[str, Value]:
    support, distractor, gold = (case.positions(name) for name in ("support", "distractor", "gold"))
    scores = torch.zeros_like(case.scores)  # of special tokens, which belong to no segment
    scores[case.candidates] = case.scores[case.candidates]
    return {name: dsa(scores, support, distractor, gold, reading=reading) for name, reading in READINGS.items()}


def judge_span(case: Case) -> dict[str, Value]:
    return {"span_f1": f1(of_whole_answer(case), case.positions("gold"), candidates=case.candidates)}


def of_whole_answer(case: Case) -> Float[Tensor, "pos"]:
    """Scores of the context, summed over the tokens of the answer, each of which has the same total."""
    prediction, answer = case.prediction, case.instance.answer
    written = prediction.spell(answer) if answer else []
    if len(written) < 2:
        return case.scores
    n = len(prediction)
    ids = torch.cat([prediction.ids, torch.tensor(written[:-1]).to(prediction.ids)])[None]
    cache = prediction.lens.cache(ids)
    wanted = {n + place: token for place, token in enumerate(written)}
    with prediction.lens.undisturbed():
        asked = predictions(prediction.lens, Activations.of(cache), wanted, tokens=ids, follow=False)
    rows = [normalised(case.explain(one).scores.cpu()[:n], norm="sum").values for one in asked]
    return torch.stack(rows).double().sum(0)


READINGS: dict[str, Reading] = {
    **{"dsa": "supervised", "dsa_selected": "model_selected"},
    **{"dsa_segments": "segments", "dsa_thresholded": "thresholded_max"},
}


# -------------------------------------------------------------------------------------------------------------- causal
def judge_effects(case: Case) -> dict[str, Value]:
    found, judged = edge_effects(case.prediction), case.candidates
    together = effects(case.prediction, groups=[highest(case.scores, 5, judged)])
    return {
        "patch_correlation": _or(
            "scores or effects are all equal", patch_correlation(case.scores, found, candidates=judged)
        ),
        "intervention_5": float(together[0]),
        "mean_effect_5": mean_effect(case.scores, found, 5, candidates=judged),
        "misattribution": misattribution(case.scores, found, candidates=judged),
    }


def judge_swapped(case: Case) -> dict[str, Value]:
    """Is the evidence found in a text that tells something else, where its values in a middle layer are put in?"""
    assert case.instance.twin is not None
    twin = replace(case.instance.twin, answer=None, choices=())
    other = replace(case.ask(twin), target=case.prediction.target)
    if len(other) != len(case.prediction):
        return dict.fromkeys(SWAPPED, "the twin has another number of tokens")
    gold, layer, explain = case.positions("gold"), case.prediction.lens.layers // 2, case.ready(twin, other)
    before = explain(other)
    with values_put(other, gold, case.prediction.values[layer][gold], layer):
        after = explain(again(other))
    passed = (passes(found.scores.detach().cpu(), gold, 5, candidates=case.candidates) for found in (after, before))
    return dict(zip(SWAPPED, (*passed, chance_of_passing(len(case.candidates), len(gold), 5)), strict=True))


SWAPPED = ("causal_pass_5", "causal_pass_5_unpatched", "causal_pass_5_chance")


# ---------------------------------------------------------------------------------------------------------- robustness
def judge_noise(case: Case) -> dict[str, Value]:
    found = under_noise(case.prediction, [case.explain] * RUNS)
    return {name: varied(case, found, norm) for norm, name in NOISY.items()}


def varied(case: Case, runs: Sequence[Attribution], norm: Any) -> float:
    """How much the shares of the tokens that are judged differ between runs."""
    judged = [one.scores.detach().cpu()[case.candidates] for one in runs]
    return sensitivity(torch.stack([normalised(scores, norm=norm).values for scores in judged]))


NOISY: dict[Any, str] = {"max": "sensitivity", "sum": "sensitivity_sum"}


def judge_chance(case: Case) -> dict[str, Value]:
    method: Any = case.explain
    if not getattr(method, "random", False):  # a function of somebody's has no seed to change
        return {"sensitivity_chance": 0.0}
    found = under_noise(case.prediction, [replace(method, seed=method.seed + run) for run in range(RUNS)], noise=0)
    return {"sensitivity_chance": varied(case, found, "max")}


def judge_paraphrase(case: Case) -> dict[str, Value]:
    assert case.instance.paraphrase is not None
    asked = case.ask(case.instance.paraphrase)
    other = case.ready(case.instance.paraphrase, asked)(asked)
    found = told_alike(case.attribution.without(special=True), other.without(special=True))
    return {"paraphrase": _or("fewer than 3 words match, or one telling's scores are all equal", found.correlation)}


# ---------------------------------------------------------------------------------------------------------- downstream
def judge_verdict(case: Case) -> dict[str, Value]:
    context = sorted({*case.positions("support"), *case.positions("distractor")})
    choices = [case.prediction.spell(choice)[0] for choice in case.instance.choices]
    found = exact_match_change(case.prediction, case.scores, context=context, choices=choices)
    return {"verdict_change": found["change"], "verdict_change_random": found["random"]}


def judge_tool(case: Case) -> dict[str, Value]:
    context = sorted({*case.positions("support"), *case.positions("distractor")})
    ids, decode = case.prediction.ids.tolist(), case.prediction.lens.speller.decode
    whole, snippet = (decode([ids[at] for at in kept]) for kept in (context, kept_mass(case.scores, context)))
    asked, answer = " ".join(case.instance.words("question")), case.instance.answer
    return {"tool_change": hit_change(look_up, whole, snippet, asked, str(answer), case.instance.choices)}


# -------------------------------------------------------------------------------------------------------------- sanity
def judge_sanity(case: Case) -> dict[str, Value]:
    layers = case.prediction.lens.layers
    (found,) = cascade(case.prediction, case.explain, case.scores, layers=[layers], candidates=case.candidates).values()
    return {"blindness": _or("the scores of one of the models are all equal", found)}
