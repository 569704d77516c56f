"""Names that metrics had in earlier versions, and phrases of reasons, so that evaluations saved then stay readable."""

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

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
