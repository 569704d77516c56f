"""How good is an attribution? Functions of scores, of the prediction they explain, and of what is known about it."""

from heta_lens.metrics.additivity import Drops, additivity_gap, faithfulness_error
from heta_lens.metrics.alignment import chance_of_passing, dsa, evidence_mass, f1, passes
from heta_lens.metrics.case import Case
from heta_lens.metrics.curves import Curve, abpc, aopc, area, curve
from heta_lens.metrics.decoding import FEW, GRID, Setting, first_token, relative_change
from heta_lens.metrics.downstream import exact_match_change, hit_change, kept_mass, kept_share, look_up
from heta_lens.metrics.effects import mean_effect, misattribution, patch_correlation
from heta_lens.metrics.hard import hard, released
from heta_lens.metrics.normalised import normalised, with_mean
from heta_lens.metrics.retraining import Retrained, retrained
from heta_lens.metrics.robustness import sensitivity, told_alike, under_noise
from heta_lens.metrics.sanity import cascade
from heta_lens.metrics.soft import Soft, soft, soft_area, summed
from heta_lens.metrics.table import METRICS, Metric

__all__ = [
    "FEW",
    "GRID",
    "METRICS",
    "Case",
    "Curve",
    "Drops",
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
    "passes",
    "patch_correlation",
    "relative_change",
    "released",
    "retrained",
    "sensitivity",
    "soft",
    "soft_area",
    "summed",
    "told_alike",
    "under_noise",
    "with_mean",
]
