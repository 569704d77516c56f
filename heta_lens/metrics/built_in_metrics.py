"""The metrics that come with heta_lens: a row for each, by name. A name is the title in lower case and underscores."""

from collections.abc import Mapping

from heta_lens.metrics import evaluators
from heta_lens.metrics.metric import Metric

REAGENT = "ReAGent (Zhao & Shan 2024), after Zhao & Aletras (2023)"
OWN = "heta_lens"
HETA = "HETA (2026)"
RELEASED = "HETA's released code"
SAMEK = "Samek et al. (2017)"
SEGMENTS = ("support", "gold", "distractor")
CLAIM = ("choices", "support", "distractor")
SOFT = "ln of the summed ratio to random scores; relu, sum to 1, one draw, paired; special tokens stay"
EQUAL_RETENTION = "all methods keep 0.1 … 0.9 of the context, the mean height"

AGAINST_REMOVAL: Mapping[str, Metric] = {
    "soft_nc": Metric(
        "Soft-NC", evaluators.evaluate_soft, low=None, high=None, aggregate="log_ratio", positive=True,
        cost="(1 + 4s) F, shared with Soft-NS",
        variant=SOFT,
        source=REAGENT,
    ),
    "soft_ns": Metric(
        "Soft-NS", evaluators.evaluate_soft, low=None, high=None, aggregate="log_ratio", positive=True,
        cost="(1 + 4s) F, shared with Soft-NC",
        variant=SOFT,
        source=REAGENT,
    ),
    "soft_nc_raw": Metric(
        "Soft-NC, raw", evaluators.evaluate_soft, high=None, positive=True,
        cost="as Soft-NC",
        variant="the mean, without random scores",
        source=REAGENT,
    ),
    "soft_ns_raw": Metric(
        "Soft-NS, raw", evaluators.evaluate_soft, positive=True,
        cost="as Soft-NS",
        variant="the mean, without random scores",
        source=REAGENT,
    ),
    "soft_nc_equal_retention": Metric(
        "Soft-NC, equal retention", evaluators.evaluate_soft_equal, high=None, positive=True,
        cost="9 (1 + 4s) F, shared with Soft-NS",
        variant=EQUAL_RETENTION,
        source=OWN,
    ),
    "soft_ns_equal_retention": Metric(
        "Soft-NS, equal retention", evaluators.evaluate_soft_equal, positive=True,
        cost="9 (1 + 4s) F, shared with Soft-NC",
        variant=EQUAL_RETENTION,
        source=OWN,
    ),
    "hard_nc": Metric(
        "Hard NC", evaluators.evaluate_hard, high=None,
        cost="3 F, shared with Hard NS",
        variant="the highest fifth is 0",
        source=REAGENT,
    ),
    "hard_ns": Metric(
        "Hard NS", evaluators.evaluate_hard,
        cost="3 F, shared with Hard NC",
        variant="all but the highest fifth are 0",
        source=REAGENT,
    ),
    "soft_nc_released_code": Metric(
        "Soft-NC, released code", evaluators.evaluate_released, high=None,
        cost="6 F, shared with Soft-NS",
        variant="KL in nats without the highest 10, 20, 30 %",
        source=RELEASED,
    ),
    "soft_ns_released_code": Metric(
        "Soft-NS, released code", evaluators.evaluate_released, low=None, high=0.0,
        cost="6 F, shared with Soft-NC",
        variant="-KL in nats with nothing but the highest 10, 20, 30 %",
        source=RELEASED,
    ),
    "aopc_del": Metric(
        "AOPC-Del", evaluators.evaluate_curves, low=-1.0,
        cost="22 F, shared with MoRF, LeRF and ABPC",
        variant="probability, tenths from the highest are 0",
        source=SAMEK,
    ),
    "aopc_ins": Metric(
        "AOPC-Ins", evaluators.evaluate_insertion, low=-1.0,
        cost="11 F",
        variant="probability, tenths from the highest come back",
        source=SAMEK,
    ),
    "morf": Metric(
        "MoRF", evaluators.evaluate_curves, low=-1.0,
        cost="as AOPC-Del",
        variant="area of the drop in probability",
        source=SAMEK,
    ),
    "lerf": Metric(
        "LeRF", evaluators.evaluate_curves, "less", low=-1.0,
        cost="as AOPC-Del",
        variant="area of the drop in probability",
        source=SAMEK,
    ),
    "abpc": Metric(
        "ABPC", evaluators.evaluate_curves, low=-1.0,
        cost="as AOPC-Del",
        variant="MoRF - LeRF, of drops",
        source=SAMEK,
    ),
    "counterfactual_aopc": Metric(
        "Counterfactual AOPC", evaluators.evaluate_counterfactual, low=-1.0, needs=("counterfactual",),
        cost="12 F",
        variant="the original's order, on the counterfactual's own answer",
        source=HETA,
    ),
    "faithfulness_error": Metric(
        "Faithfulness error", evaluators.evaluate_additivity, "less", high=None,
        cost="(N + 33) F, shared with the calibrated one and the gap",
        variant="of the scores as they are, in nats",
        source=HETA,
    ),
    "faithfulness_error_calibrated": Metric(
        "Faithfulness error, calibrated", evaluators.evaluate_additivity, "less", high=None,
        cost="as Faithfulness error",
        variant="one scale for all scores, evaluated on sets it was not fitted to",
        source=OWN,
    ),
    "additivity_gap": Metric(
        "Additivity gap", evaluators.evaluate_additivity, "less", high=None,
        cost="as Faithfulness error",
        variant="in nats",
        source=HETA,
    ),
}  # fmt: skip

AGAINST_EVIDENCE: Mapping[str, Metric] = {
    "first_is_evidence": Metric(
        "First is evidence", evaluators.evaluate_support, needs=("support",),
        variant="the highest score is on the support",
        source=OWN,
    ),
    "evidence_mass": Metric(
        "Evidence mass", evaluators.evaluate_support, needs=("support",), positive=True,
        variant="share of the scores on the support; relu",
        source=OWN,
    ),
    "f1": Metric(
        "F1", evaluators.evaluate_gold, needs=("gold",),
        variant="of as many tokens as are gold",
        source=HETA,
    ),
    "span_f1": Metric(
        "Span-F1", evaluators.evaluate_span, needs=("gold",), again=1, positive=True,
        variant="F1 over all tokens of the answer, each with the same total",
        source=HETA,
    ),
    "dsa": Metric(
        "DSA", evaluators.evaluate_dsa, low=-1.0, needs=SEGMENTS, positive=True,
        variant="supervised",
        source=HETA,
    ),
    "dsa_selected": Metric(
        "DSA, selected", evaluators.evaluate_dsa, low=-1.0, needs=SEGMENTS, positive=True,
        variant="tokens above half the highest",
        source=HETA,
    ),
    "dsa_segments": Metric(
        "DSA, segments", evaluators.evaluate_dsa, low=-1.0, needs=SEGMENTS, positive=True,
        variant="all of either segment",
        source=RELEASED,
    ),
    "dsa_thresholded": Metric(
        "DSA, thresholded", evaluators.evaluate_dsa, low=None, high=None, needs=SEGMENTS, positive=True,
        variant="tokens above half the highest, which counts as 1",
        source=OWN,
    ),
    "pass_5": Metric(
        "Pass@5", evaluators.evaluate_gold, needs=("gold",),
        variant="a gold token among the first 5",
        source=HETA,
    ),
}  # fmt: skip

AGAINST_PATCHING: Mapping[str, Metric] = {
    "patch_correlation": Metric(
        "Patch correlation", evaluators.evaluate_effects, low=-1.0,
        cost="(2N + 2) F, shared by all that patch edges",
        variant="Spearman with edge patches by zero, attention frozen",
        source=HETA,
    ),
    "intervention_5": Metric(
        "Intervention@5", evaluators.evaluate_effects, low=None, high=None,
        cost="as Patch correlation",
        variant="the first 5 patched together, in nats",
        source=HETA,
    ),
    "mean_effect_5": Metric(
        "Mean effect@5", evaluators.evaluate_effects, low=None, high=None,
        cost="as Patch correlation",
        variant="the first 5 patched one at a time, the mean in nats",
        source=HETA,
    ),
    "misattribution": Metric(
        "Misattribution", evaluators.evaluate_effects, "less",
        cost="as Patch correlation",
        variant="of the first 10, those with an effect below 0.01 nats",
        source=HETA,
    ),
    "causal_pass_5": Metric(
        "Causal Pass@5", evaluators.evaluate_causal_pass, needs=("counterfactual", "gold"), again=2,
        variant="on the counterfactual, with the evidence's values patched in at the middle layer",
        source=HETA,
    ),
    "causal_pass_5_unpatched": Metric(
        "Causal Pass@5, unpatched", evaluators.evaluate_causal_pass, needs=("counterfactual", "gold"), again=2,
        variant="on the counterfactual as it is",
        source=OWN,
    ),
    "causal_pass_5_chance": Metric(
        "Causal Pass@5, chance", evaluators.evaluate_causal_pass, needs=("counterfactual", "gold"), again=2,
        variant="of a random order",
        source=OWN,
    ),
}  # fmt: skip

OF_METHODS: Mapping[str, Metric] = {
    "sensitivity": Metric(
        "Sensitivity", evaluators.evaluate_sensitivity, "less", again=evaluators.RUNS, positive=True,
        variant="noise of 0.01 on all embeddings, 5 runs with the same probes; scores over their maximum",
        source=HETA,
    ),
    "sensitivity_sum": Metric(
        "Sensitivity, sum", evaluators.evaluate_sensitivity, "less", again=evaluators.RUNS, positive=True,
        variant="the same, scores over their sum",
        source=HETA,
    ),
    "seed_variance": Metric(
        "Seed variance", evaluators.evaluate_seed_variance, "less", again=evaluators.RUNS, positive=True,
        variant="no noise, 5 seeds of the method; standard deviation of scores over their maximum",
        source=OWN,
    ),
    "paraphrase_consistency": Metric(
        "Paraphrase consistency", evaluators.evaluate_paraphrase_consistency, low=-1.0, again=1, needs=("paraphrase",),
        variant="Spearman between active and passive, of words that match by their stem",
        source=HETA,
    ),
    "weight_randomisation": Metric(
        "Weight randomisation", evaluators.evaluate_weight_randomisation, "nearer 0", low=-1.0, again=1,
        variant="Spearman of sizes, all layers' weights shuffled",
        source="Adebayo et al. (2018)",
    ),
}  # fmt: skip

DOWNSTREAM: Mapping[str, Metric] = {
    "verdict_change": Metric(
        "Verdict change", evaluators.evaluate_verdict, low=-100.0, high=100.0, needs=CLAIM,
        cost="3 F",
        variant="exact match in points, with the highest 40 % of the story against all of it",
        source=HETA,
    ),
    "verdict_change_random": Metric(
        "Verdict change, random", evaluators.evaluate_verdict, low=-100.0, high=100.0, needs=CLAIM,
        cost="shared",
        variant="the same with a random 40 %",
        source=OWN,
    ),
    "tool_change": Metric(
        "Tool change", evaluators.evaluate_tool, low=-100.0, high=100.0, needs=("answer", *CLAIM, "question"),
        positive=True,
        variant="Hit@1 in points, a sentence look-up given tokens with 40 % of the score",
        source=HETA,
    ),
}  # fmt: skip
