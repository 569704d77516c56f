"""How many tokens a share of them is."""

from math import ceil, floor
from typing import Literal

Rounding = Literal["down", "nearest", "up"]
TOLERANCE = 1e-9  # by which a product of floats may miss a whole number: 0.3 of 10 tokens are 3


def token_count(share: float, tokens: int, rounding: Rounding = "down", *, least: int = 0) -> int:
    """How many of so many tokens a share of them is, and at least so many.

    Definitions differ in how they round: curves and hard NC/NS down, a kept context up, and ROAR, KAR and the strides
    of windows to the nearest (of two as near, the even one).
    """
    exact = share * tokens
    counts = {"down": floor(exact + TOLERANCE), "nearest": round(exact), "up": ceil(exact - TOLERANCE)}
    return max(least, counts[rounding])
