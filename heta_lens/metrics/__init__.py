"""Metrics of attributions: functions of scores, of the explained prediction, and of known facts about the prompt.

`METRICS` lists the metrics by name (`registry`); `evaluators` compute them for a `MetricCase` (`metric_case`).
`evidence` compares scores with known evidence, `removal` and `interventions` with the removal and patching of tokens.
`robustness` changes the prompt; `tasks` uses the best tokens. `scores` holds shared checks and
normalisations.
"""

from heta_lens.metrics.evidence import chance_of_passing, dsa, evidence_mass, f1, passes
from heta_lens.metrics.interventions import (
    Drops,
    additivity_gap,
    faithfulness_error,
    mean_effect,
    misattribution,
    patch_correlation,
)
from heta_lens.metrics.metric_case import Metric, MetricCase
from heta_lens.metrics.registry import METRICS
from heta_lens.metrics.removal import Curve, Soft, abpc, aopc, area, curve, hard, released, soft
from heta_lens.metrics.robustness import paraphrase_consistency, sensitivity, under_noise
from heta_lens.metrics.scores import normalised, with_mean
from heta_lens.metrics.tasks import exact_match_change, kept_mass, kept_share, look_up

__all__ = [
    "METRICS",
    "Curve",
    "Drops",
    "Metric",
    "MetricCase",
    "Soft",
    "abpc",
    "additivity_gap",
    "aopc",
    "area",
    "chance_of_passing",
    "curve",
    "dsa",
    "evidence_mass",
    "exact_match_change",
    "f1",
    "faithfulness_error",
    "hard",
    "kept_mass",
    "kept_share",
    "look_up",
    "mean_effect",
    "misattribution",
    "normalised",
    "paraphrase_consistency",
    "passes",
    "patch_correlation",
    "released",
    "sensitivity",
    "soft",
    "under_noise",
    "with_mean",
]
