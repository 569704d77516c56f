"""Probabilities in words, which never say 0 or 1 of what is only near it."""

from decimal import Decimal
from math import exp


def probability(log_prob: float) -> str:
    """``p = 0.25``, ``p = 3.1e-12``, ``p = 0.9996`` or ``p > 0.9999``; ``p = 1`` and ``p = 0`` only where it is."""
    p = exp(min(log_prob, 0.0))
    if p >= 0.9995 and log_prob < 0:
        return "p > 0.9999" if p > 0.9999 else f"p = {p:.4f}"
    return f"p = {p:.3g}" if p > 1e-300 else f"p = {Decimal(log_prob).exp():.3g}"  # which no float can hold
