"""The bootstrap-t interval and p-value of every possible draw."""

from collections.abc import Sequence
from itertools import product
from math import inf

import numpy as np

VALUES = [0.3, 0.9, 0.4, 0.6, 0.1, 0.8, 0.75, 0.2]
OTHERS = [0.25, 0.5, 0.45, 0.3, 0.2, 0.35, 0.6, 0.1]
EACH = list(range(8))


def means_and_errors(values: Sequence[float], clusters: Sequence[object]) -> tuple[float, float, float]:
    """A mean over instances, its standard error over clusters, and how much one cluster makes of its variance."""
    names = list(dict.fromkeys(clusters))
    value = float(np.mean(values))
    moves = [sum(v - value for v, c in zip(values, clusters, strict=True) if c == name) / len(values) for name in names]
    squares = sum(move**2 for move in moves)
    error = (len(names) / (len(names) - 1) * squares) ** 0.5
    return value, error, abs(sum(move**3 for move in moves)) / squares**1.5 if squares else 0.0


def every_draw(values: Sequence[float], clusters: Sequence[object]) -> tuple[float, float, float]:
    """Both ends of the bootstrap-t interval and its p-value, from all ways to draw clusters, listed."""
    names = list(dict.fromkeys(clusters))
    value, error, weight = means_and_errors(values, clusters)
    found = []
    for drawn in product(names, repeat=len(names)):
        pairs = [(v, at) for at, name in enumerate(drawn) for v, c in zip(values, clusters, strict=True) if c == name]
        mean_drawn, error_drawn, _ = means_and_errors(*zip(*pairs, strict=True))
        away = mean_drawn - value
        same = abs(away) < 1e-12
        found.append(0.0 if same else away / error_drawn if error_drawn > 1e-9 else away * inf)
    found.sort()
    level = 0.025 * (1 - weight) ** 2
    at = int(level * len(found))
    seen = value / error
    passed = np.mean([one >= seen if seen > 0 else one <= seen for one in found])
    return value - error * found[-1 - at], value - error * found[at], 2 * passed / (1 - weight) ** 2
