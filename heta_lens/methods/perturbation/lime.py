"""LIME (Ribeiro 2016) on tokens: a linear model of the prediction, fitted to random maskings of the context."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float

from heta_lens._util.caller_warnings import warn
from heta_lens._util.extras import check_extra
from heta_lens._util.options import COUNT, AtLeast
from heta_lens._util.work_counting import Work
from heta_lens.methods.base import Scores
from heta_lens.methods.shared_options import WithBatch, WithBos, WithMask, WithScale, WithSeed
from heta_lens.prediction.coalitions import each_token, placed, with_only, worths
from heta_lens.prediction.linear_fits import explained, lasso, ridge
from heta_lens.prediction.prediction import Prediction, prompt_generator

PENALTIES = {"ridge": 1.0, "lasso": 0.01}


@dataclass(frozen=True, eq=False, kw_only=True)
class Lime(WithMask, WithBos, WithScale, WithSeed, WithBatch):
    """The coefficients of ``g(X with only tokens z) ≈ b + Σ a_i z_i``, fitted to random z; above 0 is for the target.

    Samples are weighted by how close they are to the whole context, ``exp(-(1 - cos(z, 1))² / width²)``.
    ``diagnostics["fit"]`` is the share of the samples' variance that the linear model explains, R².

    - ``samples``: number of random z, beside the whole context; None takes two per token, but at least 200
    - ``keep``: the probability that a token stays unmasked
    - ``width``: of the kernel that weights the samples
    - ``surrogate``: ``ridge`` penalises squared coefficients; ``lasso`` their absolute values, which leaves few
    - ``penalty``: its strength; None is 1 for ``ridge`` (against the sum of squared errors), 0.01 for ``lasso``
      (against half their mean)
    """

    samples: Annotated[int | None, COUNT] = None
    keep: Annotated[float | int, AtLeast(0.01, below=1.0)] = 0.7
    width: Annotated[float | int, AtLeast(1e-6)] = 0.25
    surrogate: Literal["ridge", "lasso"] = "ridge"
    penalty: Annotated[float | int | None, AtLeast(0)] = None

    name: ClassVar = "lime"
    paper: ClassVar[str] = (
        "Ribeiro, Singh & Guestrin, “Why should I trust you?”: explaining the predictions of any classifier, KDD "
        "2016, arXiv:1602.04938"
    )
    family: ClassVar = "perturbation"
    cost: ClassVar = "samples · F"
    scaled_by: ClassVar = ("samples",)
    adapted: ClassVar = "the authors mask words, not tokens, and leave the surrogate model open"

    def check(self, prediction: Prediction) -> None:
        super().check(prediction)
        if self.surrogate == "lasso":
            check_extra("sklearn", "surrogate='lasso'")

    def work(self, prediction: Prediction) -> dict[str, int]:
        return {"forwards": 1 + self._count(len(each_token(prediction, self.keep_bos)))}

    def explain(self, prediction: Prediction, progress: Work) -> Scores:
        members = each_token(prediction, self.keep_bos)
        if not len(members):
            return Scores(torch.zeros_like(prediction.embeddings[:, 0]))
        masks = self._masks(prediction, len(members))
        likelihoods = with_only(prediction, self.mask, self.scale, self.batch, progress)
        values, weights = worths(members, masks, likelihoods), nearness(masks, self.width)
        fit = {"ridge": ridge, "lasso": lasso}[self.surrogate]
        linear = fit(masks, values, weights, PENALTIES[self.surrogate] if self.penalty is None else self.penalty)
        facts = {"intercept": linear.intercept, "fit": explained(linear(masks), values, weights)}
        return Scores(placed(prediction, members, linear.weights), facts)

    def _count(self, players: int) -> int:
        return max(200, 2 * players) if self.samples is None else self.samples

    def _masks(self, prediction: Prediction, players: int) -> Bool[np.ndarray, "sample player"]:
        count = self._count(players)
        if count < players:
            warn(f"samples={count} are fewer than the {players} tokens: the penalty decides what they leave open")
        drawn = prompt_generator(self.seed, prediction.ids).random((count, players)) < self.keep
        return np.concatenate([np.ones((1, players), dtype=bool), drawn])


def nearness(masks: Bool[np.ndarray, "sample player"], width: float | int) -> Float[np.ndarray, "sample"]:
    """The weight of each sample, by its cosine distance to the whole context: ``1 - √(k/M)`` for k tokens of M."""
    return np.exp(-(((1 - np.sqrt(masks.mean(1))) / width) ** 2))
