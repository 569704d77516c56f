"""Is it true? Patching: what the prediction does when what some tokens or heads hand on comes from another run."""

from heta_lens.causal.grid import Grid, Patch
from heta_lens.causal.heads import GateHeads, Head, Heads, ablate_heads, gate_heads
from heta_lens.causal.patching import patch
from heta_lens.causal.prior import Search, patch_in_order
from heta_lens.causal.swap import swap_values
from heta_lens.causal.tracing import trace
from heta_lens.causal.validation import Validation, validate
from heta_lens.interventions import effects

__all__ = [
    "GateHeads",
    "Grid",
    "Head",
    "Heads",
    "Patch",
    "Search",
    "Validation",
    "ablate_heads",
    "effects",
    "gate_heads",
    "patch",
    "patch_in_order",
    "swap_values",
    "trace",
    "validate",
]
