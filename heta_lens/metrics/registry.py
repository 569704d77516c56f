"""The metrics that come with heta_lens: a row for each, by name. A name is the title in lower case and underscores."""

import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar, get_args

from heta_lens._util.files import brief
from heta_lens._util.options import hint, is_object_name, named_object
from heta_lens.metrics import evaluators
from heta_lens.metrics.metric_case import Better, Metric

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


# ------------------------------------------------------------------------------------------------- metric descriptions
# What each metric measures, in a sentence: by its name, or by how the names of a family begin.


DESCRIPTIONS: Mapping[str, str] = {
    "soft_nc": "How much more the prediction changes when tokens with high scores lose most of their embedding "
    "(normalised comprehensiveness).",
    "soft_ns": "How well the prediction stays as it was when tokens with high scores keep most of their embedding "
    "(normalised sufficiency).",
    "hard_nc": "How much the prediction changes without the tokens with the highest scores.",
    "hard_ns": "How well the prediction stays as it was with nothing but the tokens with the highest scores.",
    "aopc_del": "How much probability the target loses, on average, while tokens are removed from the highest score "
    "down.",
    "aopc_ins": "How much probability the target gains, on average, while tokens return from the highest score down.",
    "morf": "How fast the probability of the target falls while tokens are removed from the highest score down.",
    "lerf": "How fast the probability of the target falls while tokens are removed from the lowest score up: a good "
    "order loses little.",
    "abpc": "By how much removing from the highest score down does more than removing from the lowest score up.",
    "counterfactual_aopc": "How well the scores of the original prompt fit the counterfactual: AOPC-Del there, in the "
    "order of the original's scores.",
    "faithfulness_error": "By how much the scores of a random set of tokens, added up, miss what masking the set does.",
    "additivity_gap": "By how much the sum of all scores misses what masking the whole prompt does.",
    "first_is_evidence": "Whether the token with the highest score is in the passage that has the answer.",
    "evidence_mass": "How much of all scores lies on the passage that has the answer.",
    "f1": "How well the tokens with the highest scores match the gold tokens.",
    "span_f1": "How well the tokens with the highest scores match the gold tokens, for a whole answer.",
    "dsa": "How much of the scores lies on the passage that has the answer, less how much lies on the distractor "
    "before it.",
    "pass_5": "Whether a gold token is among the five with the highest scores.",
    "patch_correlation": "Whether tokens with higher scores have larger effects when they are patched.",
    "intervention_5": "How much less likely the target is once the five tokens with the highest scores are patched "
    "together.",
    "mean_effect_5": "How much less likely the target is once one of the five tokens with the highest scores is "
    "patched, on average.",
    "misattribution": "How many of the ten tokens with the highest scores have hardly any effect when patched.",
    "causal_pass_5": "Whether scores follow the evidence: a gold token is among the five highest on a counterfactual "
    "into which the evidence's activations were patched.",
    "sensitivity": "How much the scores change when all embeddings get a little noise.",
    "seed_variance": "How much the scores change with nothing but the random seed of the method.",
    "paraphrase_consistency": "Whether words keep their order by score when the prompt is paraphrased.",
    "weight_randomisation": "Whether the scores depend on what the model has learned: how much they are like those of "
    "the same model with its weights shuffled.",
    "verdict_change": "Whether the model still answers correctly if a claim is true, from the tokens of the story with "
    "the highest scores alone.",
    "tool_change": "Whether a sentence look-up finds the answer from the tokens with the highest scores.",
}


def described_metric(name: str) -> str:
    """The sentence of a metric, or of its family; none for somebody's own metric."""
    families = [family for family in DESCRIPTIONS if name == family or name.startswith(f"{family}_")]
    return DESCRIPTIONS[max(families, key=len)] if families else ""


# ----------------------------------------------------------------------------------------------------- metric registry
# METRICS: every metric by name, those of other packages included.
#
# A package adds a metric through the entry-point group ``heta_lens.metrics``. Its entry point names a `Metric`, or a
# function from an `ExplainedPrompt` to a number with the attribute ``better`` (and any other field of `Metric`):
#
#     def longest(case):
#         return float(case.scores.argmax())
#     longest.better = "less"
#
# Without an entry point, such a function is named as ``module:function``.


GROUP = "heta_lens.metrics"
BUILT_INS: Mapping[str, Metric] = {
    **AGAINST_REMOVAL,
    **AGAINST_EVIDENCE,
    **AGAINST_PATCHING,
    **OF_METHODS,
    **DOWNSTREAM,
}


class MetricRegistry(Mapping[str, Metric]):
    """The built-in metrics and, loaded when they are first needed, those of other packages.

    Any other can be named as ``module:object``; it is not among those listed.
    """

    def __init__(self) -> None:
        self._named: dict[str, Metric] = {}

    @cached_property
    def plugins(self) -> dict[str, Metric]:
        """The metrics of other packages; one that cannot be used is left out with a warning."""
        metrics: dict[str, Metric] = {}
        for entry_point in entry_points(group=GROUP):
            try:
                if entry_point.name in BUILT_INS or entry_point.name in metrics:
                    raise ValueError("its name is taken by another metric: rename the entry point")
                metrics[entry_point.name] = loaded(entry_point)
            except Exception as error:
                warnings.warn(f"the metric {described(entry_point)} is left out: {error}", stacklevel=2)
        return metrics

    def __getitem__(self, name: str) -> Metric:
        if name in BUILT_INS:
            return BUILT_INS[name]
        if name not in self.plugins and is_object_name(name):
            if name not in self._named:
                self._named[name] = _named(name)
            return self._named[name]
        return self.plugins[name]

    def __iter__(self) -> Iterator[str]:
        yield from (*BUILT_INS, *self.plugins)

    def __len__(self) -> int:
        return len(BUILT_INS) + len(self.plugins)


UNINFORMATIVE = ("soft_ns", "soft_ns_raw")
"""Metrics that do not tell methods apart: they keep one token's worth of the context, and most values are 0."""


def default_metrics() -> list[str]:
    """The default metrics: those that run a method only once, without the uninformative ones."""
    return [name for name, metric in METRICS.items() if not metric.again and name not in UNINFORMATIVE]


def metric_named(metric: str | Metric) -> tuple[str, Metric]:
    """Find the metric of a name; a given one is named by its title, in lower case and with underscores."""
    if isinstance(metric, Metric):
        name = "_".join(re.findall(r"\w+", metric.title.lower()))
        if name not in METRICS:
            return name, checked(name, metric, getattr(metric.evaluate, "__module__", ""))
        if METRICS[name] == metric:
            return name, metric
        raise ValueError(f"title={metric.title!r} names the metric {name!r}, which METRICS has: give another title")
    if not isinstance(metric, str):
        raise TypeError(f"metrics has {brief(metric)}: give names, such as 'f1', or Metric objects")
    if metric not in METRICS:
        way = "`heta-lens metrics` lists them"
        raise ValueError(f"metric={metric!r} is not in heta_lens.metrics.METRICS{hint(metric.lower(), METRICS)}: {way}")
    return metric, METRICS[metric]


def loaded(entry_point: EntryPoint) -> Metric:
    """The metric of another package, with its origin."""
    return checked(entry_point.name, entry_point.load(), origin(entry_point))


def _named(name: str) -> Metric:
    try:
        return checked(name, named_object(name), name.partition(":")[0])
    except (ValueError, TypeError) as error:
        raise type(error)(f"metric {name}: {error}") from None


def checked(name: str, value: Any, origin: str) -> Metric:
    """A metric, or a function that is one."""
    metric = value if isinstance(value, Metric) else metric_of(name, value)
    if metric.better not in get_args(Better):
        raise ValueError(f"better={metric.better!r} is not one of {', '.join(get_args(Better))}")
    return replace(metric, origin=origin)


def metric_of(name: str, function: Any) -> Metric:
    """A function with a direction as a metric; a bound that it does not declare is open."""
    if not callable(function):
        raise TypeError(f"{function!r} is neither a Metric nor a function")
    if not hasattr(function, "better"):
        raise ValueError("it declares no direction: set better to 'more', 'less' or 'nearer 0' on the function")
    known = {field.name for field in fields(Metric)} - {"evaluate"}
    declared = {key: value for key, value in getattr(function, "__dict__", {}).items() if key in known}
    return Metric(**{"title": name, "low": None, "high": None, "evaluate": function, **declared})


def origin(entry_point: EntryPoint) -> str:
    """The distribution that an entry point is from, or else its module."""
    return entry_point.dist.name if entry_point.dist else entry_point.module


def described(entry_point: EntryPoint) -> str:
    return f"{entry_point.name!r} of {origin(entry_point)} ({entry_point.value})"


METRICS: Mapping[str, Metric] = MetricRegistry()


# -------------------------------------------------------------------------------------------------------- former names
# Names that metrics had in earlier versions, and phrases of reasons, so that evaluations saved then stay readable.


Item = TypeVar("Item")

FORMER_NAMES: Mapping[str, str] = {
    "blindness": "weight_randomisation",
    "first_is_support": "first_is_evidence",
    "paraphrase": "paraphrase_consistency",
    "released_nc": "soft_nc_released_code",
    "released_ns": "soft_ns_released_code",
    "sensitivity_chance": "seed_variance",
    "soft_nc_equal": "soft_nc_equal_retention",
    "soft_ns_equal": "soft_ns_equal_retention",
    "support_mass": "evidence_mass",
}
"""By the former name of a metric, its name."""

FORMER_TITLES: Mapping[tuple[str, str], str] = {
    ("aopc_del", "AOPC, deletion"): "AOPC-Del",
    ("aopc_ins", "AOPC, insertion"): "AOPC-Ins",
    ("causal_pass_5_chance", "Causal Pass@5 by chance"): "Causal Pass@5, chance",
    ("hard_nc", "NC"): "Hard NC",
    ("hard_ns", "NS"): "Hard NS",
    ("mean_effect_5", "Intervention@5, one by one"): "Mean effect@5",
    ("paraphrase_consistency", "Active / passive"): "Paraphrase consistency",
    ("patch_correlation", "Patch-Corr"): "Patch correlation",
    ("seed_variance", "Own chance"): "Seed variance",
    ("tool_change", "Tool, Hit@1 Δ"): "Tool change",
    ("verdict_change", "Verdict, EM Δ"): "Verdict change",
    ("verdict_change_random", "Verdict, EM Δ by chance"): "Verdict change, random",
    ("weight_randomisation", "Same under random weights"): "Weight randomisation",
}
"""By the name of a metric and its former title in a report, its title."""

FORMER_NEEDS: Mapping[str, str] = {"twin": "counterfactual"}
"""By the former name of what a metric needs to know about a prompt, its name."""

FORMER_PHRASES: Mapping[str, str] = {
    "means nothing with": "has no effect with",
    "no twin known of": "no counterfactual known of",
}
"""By a former phrase of the reasons why a metric has no value, its phrase."""


def renamed(by_name: Mapping[str, Item]) -> dict[str, Item]:
    """Items by the names of metrics, under today's names."""
    return {FORMER_NAMES.get(name, name): item for name, item in by_name.items()}


def renamed_all(names: Iterable[Any]) -> list[Any]:
    """Names of metrics, as they are today; other text is left as it is."""
    return [FORMER_NAMES.get(name, name) if isinstance(name, str) else name for name in names]


def redescribed(name: str, metric: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept of the metric of this name, with today's title, and today's names for what it needs."""
    title = FORMER_TITLES.get((name, metric.get("title") or ""), metric.get("title"))
    needs = [FORMER_NEEDS.get(need, need) for need in metric.get("needs", [])]
    given = {"title": title, "needs": needs}
    return {**metric, **{field: value for field, value in given.items() if field in metric}}


def reworded(reasons: Mapping[str, Any]) -> dict[str, Any]:
    """Reasons by the names of metrics, in today's phrases; what is no text is left as it is."""
    return {name: _reworded(reason) if isinstance(reason, str) else reason for name, reason in reasons.items()}


def _reworded(reason: str) -> str:
    for former, phrase in FORMER_PHRASES.items():
        reason = reason.replace(former, phrase)
    return reason
