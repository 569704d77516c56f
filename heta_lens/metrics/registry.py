"""METRICS: the metrics by name, with a row per built-in metric, and metrics of further packages.

A package adds a metric through the entry-point group ``heta_lens.metrics``. The entry point names a `Metric`, or a
function from a `MetricCase` to a number with the attribute ``better`` (and further fields of `Metric`):

    def longest(case):
        return float(case.scores.argmax())
    longest.better = "less"

Without an entry point, such a function is named as ``module:function``.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import cached_property, partial
from typing import Any, get_args

from heta_lens._util.options import hint, is_object_name, named_object
from heta_lens._util.python import plugins
from heta_lens.data.instance import Instance
from heta_lens.metrics import evaluators
from heta_lens.metrics.metric_case import Better, Metric

GROUP = "heta_lens.metrics"

REAGENT = "ReAGent (Zhao & Shan 2024), after Zhao & Aletras (2023)"
OWN = "heta_lens"
HETA = "HETA (2026)"
RELEASED = "HETA's released code"
SAMEK = "Samek et al. (2017)"
SEGMENTS = ("support", "gold", "distractor")
CLAIM = ("choices", "support", "distractor")
SOFT = "ln of the summed ratio to random scores; relu, sum to 1, one draw, paired; special tokens stay"


def name_of(metric: Metric) -> str:
    """Return the name of a metric: its title in lower case, with underscores."""
    return "_".join(re.findall(r"\w+", metric.title.lower()))


# What the metrics of a family share: the evaluator that computes them together, and fields.
of_soft = partial(Metric, evaluate=evaluators.evaluate_soft, positive=True, source=REAGENT)
of_ratio = partial(of_soft, low=None, high=None, aggregate="log_ratio", variant=SOFT)
of_hard = partial(Metric, evaluate=evaluators.evaluate_hard, source=REAGENT)
of_released = partial(Metric, evaluate=evaluators.evaluate_released, source=RELEASED)
of_curves = partial(Metric, evaluate=evaluators.evaluate_curves, low=-1.0, cost="as AOPC-Del", source=SAMEK)
of_sums = partial(Metric, evaluate=evaluators.evaluate_additivity, better="less", high=None, source=HETA)
of_support = partial(Metric, evaluate=evaluators.evaluate_support, needs=("support",), source=OWN)
of_gold = partial(Metric, evaluate=evaluators.evaluate_gold, needs=("gold",), source=HETA)
of_dsa = partial(Metric, evaluate=evaluators.evaluate_dsa, low=-1.0, needs=SEGMENTS, positive=True)
of_effects = partial(Metric, evaluate=evaluators.evaluate_effects, cost="as Patch correlation", source=HETA)
of_pass = partial(Metric, evaluate=evaluators.evaluate_causal_pass, needs=("counterfactual", "gold"), again=2)
of_verdict = partial(Metric, evaluate=evaluators.evaluate_verdict, low=-100.0, high=100.0, needs=CLAIM)

ROWS = (
    # removal of tokens
    of_ratio("Soft-NC", cost="(1 + 4s) F, shared with Soft-NS"),
    of_ratio("Soft-NS", cost="(1 + 4s) F, shared with Soft-NC"),
    of_soft("Soft-NC, raw", high=None, variant="the mean, without random scores", cost="as Soft-NC"),
    of_soft("Soft-NS, raw", variant="the mean, without random scores", cost="as Soft-NS"),
    of_hard("Hard NC", high=None, variant="the highest fifth is 0", cost="3 F, shared with Hard NS"),
    of_hard("Hard NS", variant="all but the highest fifth are 0", cost="3 F, shared with Hard NC"),
    of_released(
        "Soft-NC, released code", high=None, variant="KL in nats without the highest 10, 20, 30 %",
        cost="6 F, shared with Soft-NS",
    ),
    of_released(
        "Soft-NS, released code", low=None, high=0.0, variant="-KL in nats with nothing but the highest 10, 20, 30 %",
        cost="6 F, shared with Soft-NC",
    ),
    of_curves(
        "AOPC-Del", variant="probability, tenths from the highest are 0", cost="22 F, shared with MoRF, LeRF and ABPC",
    ),
    Metric(
        "AOPC-Ins", evaluators.evaluate_insertion, low=-1.0, variant="probability, tenths from the highest come back",
        cost="11 F", source=SAMEK,
    ),
    of_curves("MoRF", variant="area of the drop in probability"),
    of_curves("LeRF", better="less", variant="area of the drop in probability"),
    of_curves("ABPC", variant="MoRF - LeRF, of drops"),
    Metric(
        "Counterfactual AOPC", evaluators.evaluate_counterfactual, low=-1.0, needs=("counterfactual",),
        variant="the original's order, on the counterfactual's own answer", cost="12 F", source=HETA,
    ),
    of_sums(
        "Faithfulness error", variant="of the scores as they are, in nats",
        cost="(N + 33) F, shared with the calibrated one and the gap",
    ),
    of_sums(
        "Faithfulness error, calibrated", variant="one scale for all scores, evaluated on sets it was not fitted to",
        cost="as Faithfulness error", source=OWN,
    ),
    of_sums("Additivity gap", variant="in nats", cost="as Faithfulness error"),
    # known evidence
    of_support("First is evidence", variant="the highest score is on the support"),
    of_support("Evidence mass", positive=True, variant="share of the scores on the support; relu"),
    of_support("Reciprocal rank", variant="1 over the rank of the first token of the support"),
    of_support("Recovery@10", variant="share of the support among the first 10 % of the tokens"),
    of_gold("F1", variant="of as many tokens as are gold"),
    Metric(
        "Span-F1", evaluators.evaluate_span, needs=("gold",), again=1, positive=True,
        variant="F1 over all tokens of the answer, each with the same total", source=HETA,
    ),
    of_dsa("DSA", variant="supervised", source=HETA),
    of_dsa("DSA, selected", variant="tokens above half the highest", source=HETA),
    of_dsa("DSA, segments", variant="all of either segment", source=RELEASED),
    of_dsa(
        "DSA, thresholded", low=None, high=None, variant="tokens above half the highest, which counts as 1", source=OWN,
    ),
    of_gold("Pass@5", variant="a gold token among the first 5"),
    # patching
    of_effects(
        "Patch correlation", low=-1.0,
        variant="Spearman with edge patches by zero, attention frozen; with sizes of effects if scores have no signs",
        cost="(2N + 2) F, shared by all that patch edges",
    ),
    of_effects("Intervention@5", low=None, high=None, variant="the first 5 patched together, in nats"),
    of_effects("Mean effect@5", low=None, high=None, variant="the first 5 patched one at a time, the mean in nats"),
    of_effects(
        "Misattribution", better="less",
        variant="of the first 10, those with an effect below 0.01 nats, in size if scores have no signs",
    ),
    of_pass(
        "Causal Pass@5", variant="on the counterfactual, with the evidence's values patched in at the middle layer",
        source=HETA,
    ),
    of_pass("Causal Pass@5, unpatched", variant="on the counterfactual as it is", source=OWN),
    of_pass("Causal Pass@5, chance", variant="of a random order", source=OWN),
    # changes of the prompt
    Metric(
        "Sensitivity", evaluators.evaluate_sensitivity, "less", again=evaluators.RUNS, positive=True, source=HETA,
        variant="noise of 0.01 on all embeddings, 5 runs with the same probes; scores over their maximum",
    ),
    Metric(
        "Paraphrase consistency", evaluators.evaluate_paraphrase_consistency, low=-1.0, again=1, needs=("paraphrase",),
        variant="Spearman between active and passive, of words that match by their stem", source=HETA,
    ),
    # downstream tasks
    of_verdict(
        "Verdict change", variant="exact match in points, with the highest 40 % of the story against all of it",
        cost="3 F", source=HETA,
    ),
    of_verdict("Verdict change, random", variant="the same with a random 40 %", cost="shared", source=OWN),
    Metric(
        "Tool change", evaluators.evaluate_tool, low=-100.0, high=100.0, positive=True,
        needs=("answer", *CLAIM, "question"),
        variant="Hit@1 in points, a sentence look-up given tokens with 40 % of the score", source=HETA,
    ),
)  # fmt: skip
BUILT_INS: Mapping[str, Metric] = {name_of(metric): metric for metric in ROWS}
ALIASES = {
    "pointing_game": "first_is_evidence",  # of Zhang et al. (2018): the highest score lies on the object
    "relevance_mass_accuracy": "evidence_mass",  # of Arras et al. (2022), of scores above 0
    "mrr": "reciprocal_rank",
    "recovery_rate_10": "recovery_10",
}

# Metrics that do not tell methods apart: they keep one token's worth of the context, and most values are 0.
UNINFORMATIVE = ("soft_ns", "soft_ns_raw")

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
    "reciprocal_rank": "How early a token of the passage that has the answer comes, in the order of the scores.",
    "recovery": "How much of the passage that has the answer is in the first tenth of the tokens.",
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
    "paraphrase_consistency": "Whether words keep their order by score when the prompt is paraphrased.",
    "verdict_change": "Whether the model still answers correctly if a claim is true, from the tokens of the story with "
    "the highest scores alone.",
    "tool_change": "Whether a sentence look-up finds the answer from the tokens with the highest scores.",
}
"""What a metric measures, by its name or by the start of the names of a family."""


def described_metric(name: str) -> str:
    """Return the sentence of a built-in metric or of its family; empty for a metric of another package."""
    families = [family for family in DESCRIPTIONS if name == family or name.startswith(f"{family}_")]
    return DESCRIPTIONS[max(families, key=len)] if families else ""


class MetricRegistry(Mapping[str, Metric]):
    """The built-in metrics and, loaded on first use, the metrics of further packages.

    A further metric can be named as ``module:object``; it is not listed.
    """

    @cached_property
    def plugins(self) -> dict[str, Metric]:
        """Metrics of further packages."""
        return plugins(GROUP, BUILT_INS, as_metric)

    def __getitem__(self, name: str) -> Metric:
        name = ALIASES.get(name, name)
        if name not in BUILT_INS and name not in self.plugins and is_object_name(name):
            return as_metric(name, named_object(name), name.partition(":")[0])
        return BUILT_INS[name] if name in BUILT_INS else self.plugins[name]

    def __iter__(self) -> Iterator[str]:
        yield from (*BUILT_INS, *self.plugins)

    def __len__(self) -> int:
        return len(BUILT_INS) + len(self.plugins)


METRICS: Mapping[str, Metric] = MetricRegistry()


def default_metrics(instances: Sequence[Instance]) -> list[str]:
    """Return the names of metrics with a single run of the method, whose needs some instance meets.

    Uninformative metrics are left out.
    """
    once = {name: metric for name, metric in METRICS.items() if not metric.again}
    every = {name: metric for name, metric in once.items() if name not in UNINFORMATIVE}
    return [name for name, metric in every.items() if not all(map(metric.unknown, instances))]


def metric_named(metric: str | Metric) -> tuple[str, Metric]:
    """Return the name and the metric; a given `Metric` is named by its title, in lower case and with underscores."""
    metric = ALIASES.get(metric, metric) if isinstance(metric, str) else metric
    if isinstance(metric, Metric):
        name = name_of(metric)
        if name not in METRICS:
            return name, as_metric(name, metric, getattr(metric.evaluate, "__module__", ""))
        if METRICS[name] == metric:
            return name, metric
        raise ValueError(f"title={metric.title!r} names the metric {name!r}, which METRICS has: give another title")
    if metric not in METRICS:
        way = "`heta-lens metrics` lists them"
        raise ValueError(f"metric={metric!r} is not in heta_lens.metrics.METRICS{hint(metric.lower(), METRICS)}: {way}")
    return metric, METRICS[metric]


def as_metric(name: str, value: Any, origin: str) -> Metric:
    """Return a `Metric`, or a function with the attribute ``better`` as a `Metric` with open bounds."""
    if not isinstance(value, Metric):
        if not callable(value):
            raise TypeError(f"{value!r} is neither a Metric nor a function")
        if not hasattr(value, "better"):
            way = "set better to 'more' or 'less' on the function"
            raise ValueError(f"metric {name}: it declares no direction: {way}")
        known = {field.name for field in fields(Metric)} - {"evaluate"}
        declared = {key: given for key, given in getattr(value, "__dict__", {}).items() if key in known}
        value = Metric(**{"title": name, "low": None, "high": None, "evaluate": value, **declared})
    if value.better not in get_args(Better):
        raise ValueError(f"better={value.better!r} is not one of {', '.join(get_args(Better))}")
    return replace(value, origin=origin)
