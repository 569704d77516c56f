"""Probabilities in words, which never say 0 or 1 of what is only near it."""

from decimal import Decimal
from math import exp


def probability(log_prob: float) -> str:
    """``= 0.25``, ``= 3.1e-12``, ``= 0.9996`` or ``> 0.9999``; ``= 1`` and ``= 0`` only where it is."""
    p = exp(min(log_prob, 0.0))
    if p >= 0.9995 and log_prob < 0:
        return "> 0.9999" if p > 0.9999 else f"= {p:.4f}"
    return f"= {p:.3g}" if p > 1e-300 else f"= {Decimal(log_prob).exp():.3g}"  # which no float can hold
