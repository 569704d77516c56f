"""Shapley values and interactions by shapiq (Muschalik 2024): KernelSHAP-IQ over our coalitions."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from math import comb
from typing import Annotated, Any, ClassVar, Literal
from warnings import catch_warnings, simplefilter

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from heta_lens._util.options import AtLeast
from heta_lens._util.python import check_extra, extra
from heta_lens._util.work import Work
from heta_lens.methods.base import WithScale, WithSeed
from heta_lens.methods.sources import Members, Values, WithSources
from heta_lens.methods.surrogates import ENOUGH, FEW
from heta_lens.prediction.coalitions import worths
from heta_lens.prediction.prediction import Prediction, prompt_generator


@dataclass(frozen=True, eq=False, kw_only=True)
class Shapiq(WithSources, WithScale, WithSeed):
    """Shapley values and interactions by shapiq (Muschalik 2024): KernelSHAP-IQ over our coalitions.

    Shapley values of ``v(S) = g(X with only the sources S)``: above 0 speaks for the target.

    They are exact if every coalition is run (``diagnostics["exact"]``), else estimated from random ones by weighted
    least squares. With ``order=2``, ``interactions`` are the Shapley interaction indices of pairs of tokens: above 0,
    two of them say more together than alone.

    - ``order``: 1, values of single sources only, or 2, of pairs too
    - ``samples``: the most coalitions to run: all of them if they are no more, else random ones, at least two per
      source, and one per pair; None takes all for up to 10 sources, else 512 or that many
    """

    order: Literal[1, 2] = 1
    samples: Annotated[int | None, AtLeast(2, whole=True)] = None

    name: ClassVar = "shapiq"
    paper: ClassVar[str] = (
        "Muschalik et al., shapiq: Shapley interactions for machine learning, NeurIPS 2024, arXiv:2410.01649"
    )
    cost: ClassVar = "samples · F"
    scaled_by: ClassVar = ("samples",)
    adapted: ClassVar = "one token is explained; tokens share their source's value, and are not tokenized again"

    def check(self, prediction: Prediction) -> None:
        super().check(prediction)
        check_extra("shapiq", f"method={self.name!r}")
        players = len(self.sources(prediction))
        least = min(self._least(players), 2**players)
        if self.samples is not None and self.samples < least:
            raise ValueError(
                f"samples={self.samples} are too few for {players} sources: give at least {least}, or None"
            )

    def work(self, prediction: Prediction) -> Work:
        return Work(forwards=self._count(len(self.sources(prediction))))

    def values(self, prediction: Prediction, sources: Members) -> Values:
        likelihoods, known = self.coalitions(prediction, self.scale), dict[int, float]()  # by size

        def game(masks: Any) -> Float[np.ndarray, "sample"]:
            masks = np.asarray(masks, dtype=bool).reshape(-1, len(sources))
            values = worths(sources, masks, likelihoods)
            known.update(zip(masks.sum(1).tolist(), values.tolist(), strict=True))
            return values

        estimated = self._estimated(prediction, game, len(sources))
        values = np.array([estimated[player,] for player in range(len(sources))])
        gap = abs(known[len(sources)] - known[0] - values.sum())  # of the full and the empty coalition
        facts = {"exact": self._exact(len(sources)), "completeness_gap": gap}
        return Values(values, facts, self._pairs(prediction, sources, estimated))

    def _least(self, players: int) -> int:
        """Return the least number of samples: at least the number of unknowns of the regression."""
        return max(2 * players, 2 + players + comb(players, 2) if self.order == 2 else 2)

    def _exact(self, players: int) -> bool:
        return players <= FEW if self.samples is None else 2**players <= self.samples

    def _count(self, players: int) -> int:
        if self._exact(players):
            return 2**players if players else 0
        return max(ENOUGH, self._least(players)) if self.samples is None else self.samples

    def _estimated(self, prediction: Prediction, game: Callable[[Any], Any], players: int) -> Any:
        """Return shapiq's values of single sources and of pairs, by tuples of their numbers."""
        shapiq = extra("shapiq", f"method={self.name!r}")
        if self._exact(players):
            return shapiq.ExactComputer(game, n_players=players)("SII", min(self.order, players))
        seed = int(prompt_generator(self.seed, prediction.ids).integers(2**31))
        with catch_warnings(), np.errstate(invalid="ignore"):  # of nearly all coalitions being drawn, of equal values
            simplefilter("ignore", UserWarning)
            estimator = shapiq.KernelSHAPIQ(n=players, max_order=self.order, index="SII", random_state=seed)
            return estimator.approximate(self._count(players), game)

    def _pairs(self, prediction: Prediction, sources: Members, estimated: Any) -> Float[Tensor, "pos pos"] | None:
        """Return the values of pairs of sources at the pairs of their tokens."""
        if self.order == 1:
            return None
        pairs = np.zeros((len(sources), len(sources)))
        for a, b in combinations(range(len(sources)), 2):
            pairs[a, b] = pairs[b, a] = estimated[a, b]
        share = sources / sources.sum(1, keepdims=True)
        return torch.from_numpy(share.T @ pairs @ share).to(prediction.embeddings)
