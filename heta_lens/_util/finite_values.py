"""Refuses values that are not finite, where they arise."""

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor


def check_finite(values: Float[Tensor, "..."], message: Callable[[int, float], str], axis: int = 0) -> None:
    """Raise on a NaN or an infinity, with a message made of its place along an axis and its value."""
    bad = ~values.isfinite()
    if bad.any():
        raise ValueError(message(int(bad.nonzero()[0, axis]), float(values[bad][0])))
