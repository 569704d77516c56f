"""Evaluating attributions: functions of scores, of the prediction they explain, and of what is known about the prompt.

`metric_registry` lists each `metric` by name (`former_names` too): `built_in_metrics`, which `metric_descriptions` put
in a sentence, and those of other packages. `evaluators` compute them for an `explained_prompt`, once for all by
`shared_measurements`, from its `candidate_tokens` and `evidence_positions`. Against known evidence:
`evidence_alignment`, `score_ranking`. Against removing tokens: `soft_nc_ns`, `hard_nc_ns`, `perturbation_curves`,
`additivity_metrics`, `intervention_agreement`. Against changes: `robustness`, `weight_randomisation`,
`decoding_settings`. What a reader or a retrained model can do: `downstream_tasks`, `roar_kar`. `score_checks`,
`score_normalisation` and `distribution_distances` are what these share.
"""

from heta_lens.metrics.curves import Curve, abpc, aopc, area, curve
from heta_lens.metrics.evidence import chance_of_passing, dsa, evidence_mass, f1, passes
from heta_lens.metrics.interventions import (
    Drops,
    additivity_gap,
    faithfulness_error,
    mean_effect,
    misattribution,
    patch_correlation,
)
from heta_lens.metrics.metric_case import ExplainedPrompt, Metric
from heta_lens.metrics.nc_ns import Soft, hard, released, soft, soft_area, summed
from heta_lens.metrics.registry import METRICS
from heta_lens.metrics.robustness import (
    FEW,
    GRID,
    Setting,
    cascade,
    first_token,
    paraphrase_consistency,
    relative_change,
    sensitivity,
    under_noise,
)
from heta_lens.metrics.scores import normalised, with_mean
from heta_lens.metrics.tasks import Retrained, exact_match_change, hit_change, kept_mass, kept_share, look_up, retrained

__all__ = [
    "FEW",
    "GRID",
    "METRICS",
    "Curve",
    "Drops",
    "ExplainedPrompt",
    "Metric",
    "Retrained",
    "Setting",
    "Soft",
    "abpc",
    "additivity_gap",
    "aopc",
    "area",
    "cascade",
    "chance_of_passing",
    "curve",
    "dsa",
    "evidence_mass",
    "exact_match_change",
    "f1",
    "faithfulness_error",
    "first_token",
    "hard",
    "hit_change",
    "kept_mass",
    "kept_share",
    "look_up",
    "mean_effect",
    "misattribution",
    "normalised",
    "paraphrase_consistency",
    "passes",
    "patch_correlation",
    "relative_change",
    "released",
    "retrained",
    "sensitivity",
    "soft",
    "soft_area",
    "summed",
    "under_noise",
    "with_mean",
]
