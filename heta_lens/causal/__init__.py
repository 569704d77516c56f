"""Causal validation: patches of tokens, heads and layers, and the prediction after a patch.

`changes` shows what the model would say after a change of tokens; `components` finds the heads and MLPs that carry the
change (`component_results`). `validation` compares an attribution with patches of single tokens; `patching` fills
TransformerLens' grids (`grid`), and swaps values between prompts; `tracing` is causal tracing; `heads` ablates
attention heads.
"""

from heta_lens.causal.changes import what_if
from heta_lens.causal.component_results import Component, Components
from heta_lens.causal.components import components
from heta_lens.causal.grid import Grid, Patch
from heta_lens.causal.heads import Head, Heads, ablate_heads
from heta_lens.causal.patching import patch, swap_values
from heta_lens.causal.tracing import trace
from heta_lens.causal.validation import Validation, validate
from heta_lens.prediction.patching import effects

__all__ = [
    "Component",
    "Components",
    "Grid",
    "Head",
    "Heads",
    "Patch",
    "Validation",
    "ablate_heads",
    "components",
    "effects",
    "patch",
    "swap_values",
    "trace",
    "validate",
    "what_if",
]
