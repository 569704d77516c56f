"""Spans and their targets, each explained alone."""

from typing import Any

from torch import Tensor

from heta_lens import attribute

N, START = 11, 7  # a context ends at the end of a chunk, others on either side of it


def alone(cache: Any, ids: Tensor, places: Any, targets: Any = None, **options: Any) -> list[Any]:
    """Every target's own attribution."""
    targets = targets or [None] * len(places)
    return [
        attribute(cache, target, position=place, tokens=ids, **options)
        for place, target in zip(places, targets, strict=True)
    ]
