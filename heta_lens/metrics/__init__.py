"""How good is an attribution? Pure functions of scores and of what is known about a prompt."""

from heta_lens.metrics.alignment import dsa, evidence_mass, f1

__all__ = ["dsa", "evidence_mass", "f1"]
