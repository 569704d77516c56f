"""METRICS: every metric of one method on one prompt, by name, with what is to be known to read its figures."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import isnan
from typing import Any, Literal, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from heta_lens.interventions import effects
from heta_lens.metrics.additivity import additivity_gap, faithfulness_error
from heta_lens.metrics.alignment import Reading, dsa, evidence_mass, f1
from heta_lens.metrics.case import Case
from heta_lens.metrics.curves import abpc, aopc, area, curve
from heta_lens.metrics.downstream import exact_match_change, hit_change, kept_mass, look_up
from heta_lens.metrics.effects import mean_effect, misattribution, passes, patch_correlation
from heta_lens.metrics.hard import hard, released
from heta_lens.metrics.normalised import normalised
from heta_lens.metrics.ranking import highest
from heta_lens.metrics.robustness import sensitivity, told_alike, under_noise
from heta_lens.metrics.sanity import cascade
from heta_lens.metrics.soft import soft, soft_area
from heta_lens.prediction import Prediction

Value: TypeAlias = float | tuple[float, float] | str  # a str says why there is none
Judge: TypeAlias = Callable[[Case], Mapping[str, Value]]
Better: TypeAlias = Literal["more", "less", "nearer 0"]

RUNS = 5  # under noise


@dataclass(frozen=True)
class Metric:
    """What a figure means: which way is better, between what bounds, at what cost, in which reading, after whom.

    ``aggregate`` says what is made of the values of many prompts: their ``mean``, or, of pairs, the logarithm of one
    mean over the other (``log_ratio``). ``needs`` are what must be known about a prompt. ``cost`` is beside the
    explanation itself: F is a forward, s a draw; ``again`` is how often the method is asked once more.
    """

    title: str
    judge: Judge
    better: Better = "more"
    low: float | None = 0.0
    high: float | None = 1.0
    cost: str = "none"
    variant: str = ""
    source: str = ""
    aggregate: Literal["mean", "log_ratio"] = "mean"
    needs: tuple[str, ...] = ()
    again: int = 0

    @property
    def about(self) -> dict[str, Any]:
        """All but how it is computed, as JSON can hold it."""
        return {name: value for name, value in vars(self).items() if name != "judge"} | {"needs": [*self.needs]}


# -------------------------------------------------------------------------------------------------------- faithfulness
def judge_soft(case: Case) -> dict[str, Value]:
    found = soft(case.prediction, case.scores, candidates=case.candidates, paired=True)
    if isnan(found.nc):
        return dict.fromkeys(("soft_nc", "soft_ns", "soft_nc_raw", "soft_ns_raw"), "the prediction needs no context")
    own = {"soft_nc": (found.nc, found.nc_random), "soft_ns": (found.ns, found.ns_random)}
    return {**own, "soft_nc_raw": found.nc, "soft_ns_raw": found.ns}


def judge_soft_equal(case: Case) -> dict[str, Value]:
    found = soft_area(case.prediction, case.scores, candidates=case.candidates)
    return {f"soft_{name}_equal": found[name] for name in ("nc", "ns")}


def judge_hard(case: Case) -> dict[str, Value]:
    found = hard(case.prediction, case.scores, candidates=case.candidates)
    return {f"hard_{name}": value for name, value in found.items()}


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
    found = faithfulness_error(case.prediction, case.scores)
    return {
        "faithfulness_error": found["raw"],
        "faithfulness_error_calibrated": found["calibrated"],
        "additivity_gap": additivity_gap(case.prediction, case.scores),
    }


# ----------------------------------------------------------------------------------------------------------- alignment
def judge_alignment(case: Case) -> dict[str, Value]:
    support, gold, distractor = (case.positions(name) for name in ("support", "gold", "distractor"))
    first = highest(case.scores, 1, case.candidates)
    return {
        "first_is_support": float(first[0] in support),
        "support_mass": evidence_mass(case.scores, support, candidates=case.candidates),
        "f1": f1(case.scores, gold, candidates=case.candidates),
        "pass_5": passes(case.scores, gold, 5, candidates=case.candidates),
        **{name: dsa(case.scores, support, distractor, gold, reading=reading) for name, reading in READINGS.items()},
    }


READINGS: dict[str, Reading] = {
    **{"dsa": "supervised", "dsa_selected": "model_selected"},
    **{"dsa_segments": "segments", "dsa_thresholded": "thresholded_max"},
}


# -------------------------------------------------------------------------------------------------------------- causal
@lru_cache(maxsize=1)
def edge_effects(prediction: Prediction) -> Float[Tensor, "pos"]:
    """Asked of one prompt again for every method."""
    return effects(prediction).cpu().double()


def judge_effects(case: Case) -> dict[str, Value]:
    found, judged = edge_effects(case.prediction), case.candidates
    alone = patch_correlation(case.scores, found, candidates=judged)
    together = effects(case.prediction, groups=[highest(case.scores, 5, judged)])
    return {
        "patch_correlation": "scores or effects are all equal" if isnan(alone) else alone,
        "intervention_5": float(together[0]),
        "mean_effect_5": mean_effect(case.scores, found, 5, candidates=judged),
        "misattribution": misattribution(case.scores, found, candidates=judged),
    }


# ---------------------------------------------------------------------------------------------------------- robustness
def judge_noise(case: Case) -> dict[str, Value]:
    found = under_noise(case.prediction, [case.explain] * RUNS)
    rows = {norm: torch.stack([normalised(one.scores.cpu(), norm=norm).values for one in found]) for norm in NOISY}
    return {name: sensitivity(rows[norm]) for norm, name in NOISY.items()}


NOISY: dict[Any, str] = {"max": "sensitivity", "sum": "sensitivity_sum"}


def judge_chance(case: Case) -> dict[str, Value]:
    seed = getattr(case.explain, "seed", None)
    if seed is None:
        return {"sensitivity_chance": 0.0}
    method: Any = case.explain
    found = under_noise(case.prediction, [replace(method, seed=seed + run) for run in range(RUNS)], noise=0)
    rows = [normalised(one.scores.cpu(), norm="max").values for one in found]
    return {"sensitivity_chance": sensitivity(torch.stack(rows))}


def judge_paraphrase(case: Case) -> dict[str, Value]:
    assert case.instance.paraphrase is not None
    other = case.explain(case.ask(case.instance.paraphrase))
    found = told_alike(case.attribution.without(special=True), other.without(special=True))
    alike = "fewer than 3 words match, or one telling's scores are all equal"
    return {"paraphrase": alike if isnan(found.correlation) else found.correlation}


# ---------------------------------------------------------------------------------------------------------- downstream
def judge_verdict(case: Case) -> dict[str, Value]:
    context = sorted({*case.positions("support"), *case.positions("distractor")})
    choices = [case.prediction.lens.speller.encoder()(choice)[0] for choice in case.instance.choices]
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
    return {"blindness": "the scores of one of the models are all equal" if isnan(found) else found}


REAGENT = "ReAGent (Zhao & Shan 2024), after Zhao & Aletras (2023)"
OWN = "heta_lens"
HETA = "HETA (2026)"
SEGMENTS = ("support", "gold", "distractor")

METRICS: dict[str, Metric] = {
    "soft_nc": Metric(
        "Soft-NC", judge_soft, low=None, high=None, cost="(1 + 4s) F, shared with Soft-NS", aggregate="log_ratio",
        variant="ln of the summed ratio to random scores; relu, sum to 1, one draw, paired; special tokens stay",
        source=REAGENT,
    ),
    "soft_ns": Metric(
        "Soft-NS", judge_soft, low=None, high=None, cost="(1 + 4s) F, shared with Soft-NC", aggregate="log_ratio",
        variant="ln of the summed ratio to random scores; relu, sum to 1, one draw, paired; special tokens stay",
        source=REAGENT,
    ),
    "soft_nc_raw": Metric(
        "Soft-NC, raw", judge_soft, high=None, cost="as Soft-NC", variant="the mean, beside no random scores",
        source=REAGENT,
    ),
    "soft_ns_raw": Metric(
        "Soft-NS, raw", judge_soft, cost="as Soft-NS", variant="the mean, beside no random scores", source=REAGENT
    ),
    "soft_nc_equal": Metric(
        "Soft-NC, equal retention", judge_soft_equal, high=None, cost="9 (1 + 4s) F, shared with Soft-NS",
        variant="all methods keep 0.1 … 0.9 of the context, the mean height", source=OWN,
    ),
    "soft_ns_equal": Metric(
        "Soft-NS, equal retention", judge_soft_equal, cost="9 (1 + 4s) F, shared with Soft-NC",
        variant="all methods keep 0.1 … 0.9 of the context, the mean height", source=OWN,
    ),
    "hard_nc": Metric(
        "NC", judge_hard, high=None, cost="3 F, shared with NS", variant="the highest fifth is 0", source=REAGENT
    ),
    "hard_ns": Metric("NS", judge_hard, cost="3 F, shared with NC", variant="all but the highest fifth are 0",
        source=REAGENT),
    "released_nc": Metric(
        "Soft-NC, released code", judge_released, high=None, cost="6 F, shared with NS",
        variant="KL in nats without the highest 10, 20, 30 %", source="HETA's released code",
    ),
    "released_ns": Metric(
        "Soft-NS, released code", judge_released, low=None, high=0.0, cost="6 F, shared with NC",
        variant="-KL in nats with nothing but the highest 10, 20, 30 %", source="HETA's released code",
    ),
    "aopc_del": Metric(
        "AOPC, deletion", judge_curves, low=-1.0, cost="22 F, shared with MoRF, LeRF and ABPC",
        variant="probability, tenths from the highest are 0", source="Samek et al. (2017)",
    ),
    "aopc_ins": Metric(
        "AOPC, insertion", judge_insertion, low=-1.0, cost="11 F",
        variant="probability, tenths from the highest come back", source="Samek et al. (2017)",
    ),
    "morf": Metric("MoRF", judge_curves, low=-1.0, cost="as AOPC", variant="area of the drop in probability",
        source="Samek et al. (2017)"),
    "lerf": Metric("LeRF", judge_curves, "less", low=-1.0, cost="as AOPC", variant="area of the drop in probability",
        source="Samek et al. (2017)"),
    "abpc": Metric("ABPC", judge_curves, low=-1.0, cost="as AOPC", variant="MoRF - LeRF, of drops",
        source="Samek et al. (2017)"),
    "counterfactual_aopc": Metric(
        "Counterfactual AOPC", judge_counterfactual, low=-1.0, cost="12 F", needs=("twin",),
        variant="the original's order, of the twin's own answer", source=HETA,
    ),
    "faithfulness_error": Metric(
        "Faithfulness error", judge_additivity, "less", high=None, cost="(N + 33) F, shared with the next two",
        variant="of the scores as they are, in nats", source=HETA,
    ),
    "faithfulness_error_calibrated": Metric(
        "Faithfulness error, calibrated", judge_additivity, "less", high=None, cost="as above",
        variant="one scale for all scores, judged on sets it was not fitted to", source=OWN,
    ),
    "additivity_gap": Metric("Additivity gap", judge_additivity, "less", high=None, cost="as above",
        variant="in nats", source=HETA),
    "first_is_support": Metric("First is evidence", judge_alignment, needs=SEGMENTS, variant="of the support",
        source=OWN),
    "support_mass": Metric("Evidence mass", judge_alignment, needs=SEGMENTS, variant="relu, of the support",
        source=OWN),
    "f1": Metric("F1", judge_alignment, needs=SEGMENTS, variant="as many tokens as are gold", source=HETA),
    "dsa": Metric("DSA", judge_alignment, low=-1.0, needs=SEGMENTS, variant="supervised", source=HETA),
    "dsa_selected": Metric("DSA, selected", judge_alignment, low=-1.0, needs=SEGMENTS,
        variant="tokens above half the highest", source=HETA),
    "dsa_segments": Metric("DSA, segments", judge_alignment, low=-1.0, needs=SEGMENTS,
        variant="all of either", source="HETA's released code"),
    "dsa_thresholded": Metric("DSA, thresholded", judge_alignment, low=None, high=None, needs=SEGMENTS,
        variant="tokens above half the highest, which counts as 1", source=OWN),
    "pass_5": Metric("Pass@5", judge_alignment, needs=SEGMENTS, variant="a gold token among the first 5", source=HETA),
    "patch_correlation": Metric("Patch-Corr", judge_effects, low=-1.0, cost="(2N + 2) F, shared with the next three",
        variant="Spearman with edge patches by zero, attention frozen", source=HETA),
    "intervention_5": Metric("Intervention@5", judge_effects, low=None, high=None, cost="as above", source=HETA,
        variant="the first 5 patched together, in nats"),
    "mean_effect_5": Metric("Intervention@5, one by one", judge_effects, low=None, high=None, cost="as above",
        variant="the mean of the first 5, in nats", source=HETA),
    "misattribution": Metric("Misattribution", judge_effects, "less", cost="as above", source=HETA,
        variant="of the first 10, those with an effect below 0.01 nats"),
    "sensitivity": Metric("Sensitivity", judge_noise, "less", again=RUNS, source=HETA,
        variant="noise of 0.01 on all embeddings, 5 runs with the same probes; scores over their maximum"),
    "sensitivity_sum": Metric("Sensitivity, sum", judge_noise, "less", again=RUNS, source=HETA,
        variant="the same, scores over their sum"),
    "sensitivity_chance": Metric("Own chance", judge_chance, "less", again=RUNS, source=OWN,
        variant="no noise, 5 seeds of the method's own; scores over their maximum"),
    "paraphrase": Metric("Active / passive", judge_paraphrase, low=-1.0, again=1, needs=("paraphrase",),
        variant="Spearman of words that match by their stem", source=HETA),
    "verdict_change": Metric("Verdict, EM Δ", judge_verdict, low=-100.0, high=100.0, cost="3 F",
        needs=("choices", "support", "distractor"), source=HETA,
        variant="points, with the highest 40 % of the story against all of it"),
    "verdict_change_random": Metric("Verdict, EM Δ by chance", judge_verdict, low=-100.0, high=100.0, cost="shared",
        needs=("choices", "support", "distractor"), source=OWN, variant="the same of random 40 %"),
    "tool_change": Metric("Tool, Hit@1 Δ", judge_tool, low=-100.0, high=100.0, source=HETA,
        needs=("choices", "support", "distractor", "question"),
        variant="points, a sentence look-up given tokens with 40 % of the score"),
    "blindness": Metric("Same under random weights", judge_sanity, "nearer 0", low=-1.0, again=1,
        variant="Spearman of sizes, all layers' weights shuffled", source="Adebayo et al. (2018)"),
}  # fmt: skip
