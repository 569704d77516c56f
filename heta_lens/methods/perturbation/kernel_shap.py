"""KernelSHAP (Lundberg 2017): Shapley values of the tokens, by weighted least squares over coalitions."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float

from heta_lens._util.options import COUNT
from heta_lens._util.work_counting import Work
from heta_lens.methods.base import Scores
from heta_lens.methods.shared_options import WithBatch, WithBos, WithMask, WithScale, WithSeed
from heta_lens.prediction.coalitions import each_token, placed, with_only, worths
from heta_lens.prediction.drawn_coalitions import every_coalition, kernel, random_coalitions
from heta_lens.prediction.linear_fits import shapley
from heta_lens.prediction.prediction import Prediction, prompt_generator

FEW = 10  # tokens, all of whose coalitions can be run
ENOUGH = 512


@dataclass(frozen=True, eq=False, kw_only=True)
class KernelShap(WithMask, WithBos, WithScale, WithSeed, WithBatch):
    """Shapley values of ``v(S) = g(X with only the tokens S)``: above 0 speaks for the target.

    ``Σ a_i = v(all) - v(none)`` always holds: the fit is constrained to it. The values are exact if every coalition is
    run (``diagnostics["exact"]``); else they are fitted to random coalitions, drawn in proportion to their kernel
    weight.

    - ``samples``: the most coalitions to run, beside the empty and the full one: all of them if they are no more, else
      random ones, at least two per token; None takes all for up to 10 tokens, else 512 or two per token
    - ``paired``: run the complement of each random coalition too, which needs fewer of them
    """

    samples: Annotated[int | None, COUNT] = None
    paired: bool = True

    name: ClassVar = "kernel_shap"
    paper: ClassVar[str] = (
        "Lundberg & Lee, A unified approach to interpreting model predictions, NeurIPS 2017, arXiv:1705.07874"
    )
    family: ClassVar = "perturbation"
    cost: ClassVar = "samples · F"
    scaled_by: ClassVar = ("samples",)

    def check(self, prediction: Prediction) -> None:
        super().check(prediction)
        players = len(each_token(prediction, self.keep_bos))
        least = min(2 * players, coalitions(players))
        if self.samples is not None and self.samples < least:
            raise ValueError(f"samples={self.samples} are too few for {players} tokens: give at least {least}, or None")

    def work(self, prediction: Prediction) -> dict[str, int]:
        return {"forwards": 2 + self._count(len(each_token(prediction, self.keep_bos)))}

    def explain(self, prediction: Prediction, progress: Work) -> Scores:
        members = each_token(prediction, self.keep_bos)
        if not len(members):
            return Scores(torch.zeros_like(prediction.embeddings[:, 0]))
        masks, weights = self._sampled(prediction, len(members))
        ends = np.array([[False], [True]]).repeat(len(members), 1)
        likelihoods = with_only(prediction, self.mask, self.scale, self.batch, progress)
        values = worths(members, np.concatenate([ends, masks]), likelihoods)
        empty, full = values[:2].tolist()
        values_by_token = shapley(masks, values[2:], weights, empty, full)
        facts = {
            "exact": self._exact(len(members)),
            "completeness_gap": abs(full - empty - float(values_by_token.sum())),
        }
        return Scores(placed(prediction, members, values_by_token), facts)

    def _exact(self, players: int) -> bool:
        return players <= FEW if self.samples is None else coalitions(players) <= self.samples

    def _count(self, players: int) -> int:
        if self._exact(players):
            return coalitions(players)
        return max(ENOUGH, 2 * players) if self.samples is None else self.samples

    def _sampled(
        self, prediction: Prediction, players: int
    ) -> tuple[Bool[np.ndarray, "sample player"], Float[np.ndarray, "sample"]]:
        if self._exact(players):
            masks = every_coalition(players)
            return masks, kernel(masks.sum(1), players)
        generator = prompt_generator(self.seed, prediction.ids)
        masks = random_coalitions(generator, players, self._count(players), paired=self.paired)
        return masks, np.ones(len(masks))


def coalitions(players: int) -> int:
    """How many coalitions there are beside the empty and the full one."""
    return max(0, 2**players - 2)
