"""Gaffke's bound of a mean of bounded values, which holds for every distribution within the bounds.

It is a quantile of the mean under random weights of the clusters and of one more cluster, whose values are at the
bound. For 0/1 values in clusters of one it is the exact (Clopper-Pearson) bound.
"""

from dataclasses import dataclass
from math import isfinite

import numpy as np
from jaxtyping import Float

from heta_lens.evaluation.random_draws import CONFIDENCE, DRAWS, MonteCarlo, cluster_weights


@dataclass(frozen=True, eq=False)
class GaffkeBound:
    """``sums`` are those of the clusters' values; ``bounds`` the least and the greatest value, infinite without one."""

    sums: Float[np.ndarray, "clusters"]
    sizes: Float[np.ndarray, "clusters"]
    bounds: tuple[float, float]
    seed: int
    draws: int

    def end(self, side: int) -> float:
        """The lower (0) or the upper (1) end of the interval."""
        if not isfinite(self.bounds[side]):
            return self.bounds[side]
        level = (1 - CONFIDENCE) / 2
        place = int(level * (self.draws + 1)) - 1
        weighted = np.sort(self._weighted_means(side))
        return float(weighted[-1 - place] if side else weighted[place])

    def p_value(self, value: float) -> MonteCarlo:
        """Twice the level at which the bound towards 0 reaches it."""
        side = 0 if value > 0 else 1
        if not isfinite(self.bounds[side]):
            return MonteCarlo(1.0, 0.0)
        weighted = self._weighted_means(side)
        return MonteCarlo.of(weighted >= 0 if side else weighted <= 0, 2.0)

    def _weighted_means(self, side: int) -> Float[np.ndarray, "draws"]:
        sums = np.append(self.sums, self.bounds[side] * self.sizes.mean())
        parts = np.stack([sums, np.append(self.sizes, self.sizes.mean())], axis=1)
        turns = range(self.draws // DRAWS)
        weighted = np.concatenate([cluster_weights(len(sums), self.seed, turn) @ parts for turn in turns])
        return weighted[:, 0] / weighted[:, 1]
