"""METRICS: every metric of one method on one prompt, by name, with what is to be known to read its figures."""

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from heta_lens.metrics.judges import (
    RUNS,
    Judge,
    judge_additivity,
    judge_chance,
    judge_counterfactual,
    judge_curves,
    judge_dsa,
    judge_effects,
    judge_gold,
    judge_hard,
    judge_insertion,
    judge_noise,
    judge_paraphrase,
    judge_released,
    judge_sanity,
    judge_soft,
    judge_soft_equal,
    judge_span,
    judge_support,
    judge_swapped,
    judge_tool,
    judge_verdict,
)

Better: TypeAlias = Literal["more", "less", "nearer 0"]


@dataclass(frozen=True)
class Metric:
    """What a figure means: which way is better, between what bounds, at what cost, in which reading, after whom.

    ``aggregate`` says what is made of the values of many prompts: their ``mean``, or, of pairs, the logarithm of one
    mean over the other (``log_ratio``). ``needs`` are what must be known about a prompt. ``cost`` is beside the
    explanation itself: F is a forward, s a draw; ``again`` is how often the method is asked once more. ``positive``:
    only scores above 0 count.
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
    positive: bool = False

    @property
    def about(self) -> dict[str, Any]:
        """All but how it is computed, as JSON can hold it."""
        return {name: value for name, value in vars(self).items() if name != "judge"} | {"needs": [*self.needs]}


REAGENT = "ReAGent (Zhao & Shan 2024), after Zhao & Aletras (2023)"
OWN = "heta_lens"
HETA = "HETA (2026)"
SEGMENTS = ("support", "gold", "distractor")

METRICS: dict[str, Metric] = {
    "soft_nc": Metric(
        "Soft-NC", judge_soft, low=None, high=None, cost="(1 + 4s) F, shared with Soft-NS", aggregate="log_ratio",
        variant="ln of the summed ratio to random scores; relu, sum to 1, one draw, paired; special tokens stay",
        source=REAGENT,
        positive=True,
    ),
    "soft_ns": Metric(
        "Soft-NS", judge_soft, low=None, high=None, cost="(1 + 4s) F, shared with Soft-NC", aggregate="log_ratio",
        variant="ln of the summed ratio to random scores; relu, sum to 1, one draw, paired; special tokens stay",
        source=REAGENT,
        positive=True,
    ),
    "soft_nc_raw": Metric(
        "Soft-NC, raw", judge_soft, high=None, cost="as Soft-NC", variant="the mean, beside no random scores",
        source=REAGENT,
        positive=True,
    ),
    "soft_ns_raw": Metric(
        "Soft-NS, raw", judge_soft, cost="as Soft-NS", variant="the mean, beside no random scores", source=REAGENT,
        positive=True,
    ),
    "soft_nc_equal": Metric(
        "Soft-NC, equal retention", judge_soft_equal, high=None, cost="9 (1 + 4s) F, shared with Soft-NS",
        variant="all methods keep 0.1 … 0.9 of the context, the mean height", source=OWN,
        positive=True,
    ),
    "soft_ns_equal": Metric(
        "Soft-NS, equal retention", judge_soft_equal, cost="9 (1 + 4s) F, shared with Soft-NC",
        variant="all methods keep 0.1 … 0.9 of the context, the mean height", source=OWN,
        positive=True,
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
    "morf": Metric("MoRF", judge_curves, low=-1.0, cost="as AOPC, deletion", source="Samek et al. (2017)",
        variant="area of the drop in probability"),
    "lerf": Metric("LeRF", judge_curves, "less", low=-1.0, cost="as AOPC, deletion", source="Samek et al. (2017)",
        variant="area of the drop in probability"),
    "abpc": Metric("ABPC", judge_curves, low=-1.0, cost="as AOPC, deletion", variant="MoRF - LeRF, of drops",
        source="Samek et al. (2017)"),
    "counterfactual_aopc": Metric(
        "Counterfactual AOPC", judge_counterfactual, low=-1.0, cost="12 F", needs=("twin",),
        variant="the original's order, of the twin's own answer", source=HETA,
    ),
    "faithfulness_error": Metric(
        "Faithfulness error", judge_additivity, "less", high=None, source=HETA,
        cost="(N + 33) F, shared with the calibrated one and the gap", variant="of the scores as they are, in nats",
    ),
    "faithfulness_error_calibrated": Metric(
        "Faithfulness error, calibrated", judge_additivity, "less", high=None, cost="as Faithfulness error",
        variant="one scale for all scores, judged on sets it was not fitted to", source=OWN,
    ),
    "additivity_gap": Metric("Additivity gap", judge_additivity, "less", high=None, variant="in nats", source=HETA,
        cost="as Faithfulness error"),
    "first_is_support": Metric("First is evidence", judge_support, needs=("support",), variant="of the support",
        source=OWN),
    "support_mass": Metric("Evidence mass", judge_support, needs=("support",), variant="relu, of the support",
        source=OWN, positive=True),
    "f1": Metric("F1", judge_gold, needs=("gold",), variant="as many tokens as are gold", source=HETA),
    "span_f1": Metric("Span-F1", judge_span, needs=("gold",), again=1, source=HETA, positive=True,
        variant="F1 of all tokens of the answer, each with the same total"),
    "dsa": Metric("DSA", judge_dsa, low=-1.0, needs=SEGMENTS, variant="supervised", source=HETA, positive=True),
    "dsa_selected": Metric("DSA, selected", judge_dsa, low=-1.0, needs=SEGMENTS,
        variant="tokens above half the highest", source=HETA, positive=True),
    "dsa_segments": Metric("DSA, segments", judge_dsa, low=-1.0, needs=SEGMENTS,
        variant="all of either", source="HETA's released code", positive=True),
    "dsa_thresholded": Metric("DSA, thresholded", judge_dsa, low=None, high=None, needs=SEGMENTS,
        variant="tokens above half the highest, which counts as 1", source=OWN, positive=True),
    "pass_5": Metric("Pass@5", judge_gold, needs=("gold",), variant="a gold token among the first 5", source=HETA),
    "patch_correlation": Metric("Patch-Corr", judge_effects, low=-1.0, source=HETA,
        cost="(2N + 2) F, shared by all that patch edges",
        variant="Spearman with edge patches by zero, attention frozen"),
    "intervention_5": Metric("Intervention@5", judge_effects, low=None, high=None, cost="as Patch-Corr", source=HETA,
        variant="the first 5 patched together, in nats"),
    "mean_effect_5": Metric("Intervention@5, one by one", judge_effects, low=None, high=None, cost="as Patch-Corr",
        variant="the mean of the first 5, in nats", source=HETA),
    "misattribution": Metric("Misattribution", judge_effects, "less", cost="as Patch-Corr", source=HETA,
        variant="of the first 10, those with an effect below 0.01 nats"),
    "causal_pass_5": Metric("Causal Pass@5", judge_swapped, needs=("twin", "gold"), again=2, source=HETA,
        variant="of the twin, with the evidence's values put in at the middle layer"),
    "causal_pass_5_unpatched": Metric("Causal Pass@5, unpatched", judge_swapped, needs=("twin", "gold"), again=2,
        source=OWN, variant="of the twin as it is"),
    "causal_pass_5_chance": Metric("Causal Pass@5 by chance", judge_swapped, needs=("twin", "gold"), again=2,
        source=OWN, variant="of a random order"),
    "sensitivity": Metric("Sensitivity", judge_noise, "less", again=RUNS, source=HETA, positive=True,
        variant="noise of 0.01 on all embeddings, 5 runs with the same probes; scores over their maximum"),
    "sensitivity_sum": Metric("Sensitivity, sum", judge_noise, "less", again=RUNS, source=HETA, positive=True,
        variant="the same, scores over their sum"),
    "sensitivity_chance": Metric("Own chance", judge_chance, "less", again=RUNS, source=OWN, positive=True,
        variant="no noise, 5 seeds of the method's own; scores over their maximum"),
    "paraphrase": Metric("Active / passive", judge_paraphrase, low=-1.0, again=1, needs=("paraphrase",),
        variant="Spearman of words that match by their stem", source=HETA),
    "verdict_change": Metric("Verdict, EM Δ", judge_verdict, low=-100.0, high=100.0, cost="3 F",
        needs=("choices", "support", "distractor"), source=HETA,
        variant="points, with the highest 40 % of the story against all of it"),
    "verdict_change_random": Metric("Verdict, EM Δ by chance", judge_verdict, low=-100.0, high=100.0, cost="shared",
        needs=("choices", "support", "distractor"), source=OWN, variant="the same of random 40 %"),
    "tool_change": Metric("Tool, Hit@1 Δ", judge_tool, low=-100.0, high=100.0, source=HETA,
        needs=("answer", "choices", "support", "distractor", "question"),
        variant="points, a sentence look-up given tokens with 40 % of the score", positive=True),
    "blindness": Metric("Same under random weights", judge_sanity, "nearer 0", low=-1.0, again=1,
        variant="Spearman of sizes, all layers' weights shuffled", source="Adebayo et al. (2018)"),
}  # fmt: skip
