"""Is it true? Patching: what the prediction does when what some tokens or heads hand on comes from another run."""

from heta_lens.causal.grid import Grid, Patch
from heta_lens.interventions import effects

__all__ = ["Grid", "Patch", "effects"]
