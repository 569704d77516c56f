"""Evaluating attributions: functions of scores, of the prediction they explain, and of what is known about the prompt.

`metric_registry` lists each `metric` by name (`former_names` too): `built_in_metrics`, which `metric_descriptions` put
in a sentence, and those of other packages. `evaluators` compute them for an `explained_prompt`, once for all by
`shared_measurements`, from its `candidate_tokens` and `evidence_positions`. Against known evidence:
`evidence_alignment`, `score_ranking`. Against removing tokens: `soft_nc_ns`, `hard_nc_ns`, `perturbation_curves`,
`additivity_metrics`, `intervention_agreement`. Against changes: `robustness`, `weight_randomisation`,
`decoding_settings`. What a reader or a retrained model can do: `downstream_tasks`, `roar_kar`. `score_checks`,
`score_normalisation` and `distribution_distances` are what these share.
"""

from heta_lens.metrics.additivity_metrics import Drops, additivity_gap, faithfulness_error
from heta_lens.metrics.decoding_settings import FEW, GRID, Setting, first_token, relative_change
from heta_lens.metrics.downstream_tasks import exact_match_change, hit_change, kept_mass, kept_share, look_up
from heta_lens.metrics.evidence_alignment import chance_of_passing, dsa, evidence_mass, f1, passes
from heta_lens.metrics.explained_prompt import ExplainedPrompt
from heta_lens.metrics.hard_nc_ns import hard, released
from heta_lens.metrics.intervention_agreement import mean_effect, misattribution, patch_correlation
from heta_lens.metrics.metric import Metric
from heta_lens.metrics.metric_registry import METRICS
from heta_lens.metrics.perturbation_curves import Curve, abpc, aopc, area, curve
from heta_lens.metrics.roar_kar import Retrained, retrained
from heta_lens.metrics.robustness import paraphrase_consistency, sensitivity, under_noise
from heta_lens.metrics.score_normalisation import normalised, with_mean
from heta_lens.metrics.soft_nc_ns import Soft, soft, soft_area, summed
from heta_lens.metrics.weight_randomisation import cascade

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
