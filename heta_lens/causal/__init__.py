"""Causal validation: patching tokens, heads and layers, and what the prediction does then.

`causal_validation` compares an attribution with patching each token, `agreement` is what that says of a single prompt;
`activation_patching` fills TransformerLens'
grids (`grid_result`), `noise_tracing` is causal tracing, `ordered_patching` patches in the order of the scores,
`attention_heads` goes from tokens to heads, `value_swap` swaps values between prompts, and `prompt_pair` checks that
two prompts can be compared.
"""

from heta_lens.causal.heads import GateHeads, Head, Heads, ablate_heads, gate_heads
from heta_lens.causal.patching import Grid, Patch, Search, patch, patch_in_order, swap_values
from heta_lens.causal.tracing import trace
from heta_lens.causal.validation import Validation, validate
from heta_lens.prediction.patching import effects

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
