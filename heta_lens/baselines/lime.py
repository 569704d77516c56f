"""LIME (Ribeiro 2016) on tokens: a linear model of what the prediction does when random tokens are masked."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float

from heta_lens.baselines.baseline import Baseline, Found
from heta_lens.coalitions import each_token, placed, with_only, worths
from heta_lens.diagnostics import warn
from heta_lens.masking import Masking
from heta_lens.options import COUNT, AtLeast, Batch, Seed
from heta_lens.prediction import Prediction
from heta_lens.progress import Work
from heta_lens.scales import Scale
from heta_lens.surrogates import explained, lasso, ridge

PENALTIES = {"ridge": 1.0, "lasso": 0.01}


@dataclass(frozen=True, eq=False, kw_only=True)
class Lime(Baseline):
    """The coefficients of ``g(X with only tokens z) ≈ b + Σ a_i z_i``, fitted to random z; above 0 is for the target.

    A sample counts by how near it is to the whole context, ``exp(-(1 - cos(z, 1))² / width²)``.
    ``diagnostics["fit"]`` is the share of the samples' variance that the linear model explains, R².

    - ``samples``: how many random z, beside the whole context; None takes two for each token, but at least 200
    - ``keep``: how likely each token is to be left as it is
    - ``width``: of the kernel by which samples count
    - ``surrogate``: ``ridge`` penalises squared coefficients, ``lasso`` their size, and so leaves few
    - ``penalty``: how much; None is 1 for ``ridge`` (against the sum of squared errors), 0.01 for ``lasso`` (against
      half their mean)
    - ``mask``: what a masked token's embedding becomes: ``zero``, ``mean``, ``vocab_mean``, ``pad``, a token id or a
      vector
    - ``keep_bos``: a token that only says that the text begins stays as it is, and gets 0
    - ``scale``: what g is, the target's ``log_prob``, ``prob``, ``logit`` or ``log_odds``
    - ``seed``: where z comes from
    - ``batch``: copies of the context run at once
    """

    samples: Annotated[int | None, COUNT] = None
    keep: Annotated[float | int, AtLeast(0.01, below=1.0)] = 0.7
    width: Annotated[float | int, AtLeast(1e-6)] = 0.25
    surrogate: Literal["ridge", "lasso"] = "ridge"
    penalty: Annotated[float | int | None, AtLeast(0)] = None
    mask: Masking = "zero"
    keep_bos: bool = True
    scale: Scale = "log_prob"
    seed: Seed = 0
    batch: Batch = "auto"

    name: ClassVar = "lime"
    cost: ClassVar = "samples · F"
    adapted: ClassVar = "its authors mask words, not tokens, and leave the surrogate open"

    def work(self, prediction: Prediction) -> dict[str, int]:
        return {"forwards": 1 + self._count(len(each_token(prediction, self.keep_bos)))}

    def explain(self, asked: Prediction, work: Work) -> Found:
        members = each_token(asked, self.keep_bos)
        if not len(members):
            return torch.zeros_like(asked.embeddings[:, 0]), {}
        masks = self._masks(len(members))
        left = with_only(asked, self.mask, self.scale, self.batch, work)
        values, weights = worths(members, masks, left), nearness(masks, self.width)
        fit = {"ridge": ridge, "lasso": lasso}[self.surrogate]
        found = fit(masks, values, weights, PENALTIES[self.surrogate] if self.penalty is None else self.penalty)
        facts = {"intercept": found.intercept, "fit": explained(found(masks), values, weights)}
        return placed(asked, members, found.weights), facts

    def _count(self, players: int) -> int:
        return max(200, 2 * players) if self.samples is None else self.samples

    def _masks(self, players: int) -> Bool[np.ndarray, "sample player"]:
        count = self._count(players)
        if count < players:
            warn(f"samples={count} are fewer than the {players} tokens: what they leave open, the penalty decides")
        drawn = np.random.default_rng([self.seed, players]).random((count, players)) < self.keep
        return np.concatenate([np.ones((1, players), dtype=bool), drawn])


def nearness(masks: Bool[np.ndarray, "sample player"], width: float | int) -> Float[np.ndarray, "sample"]:
    """To everything being there, by cosine distance: of k ones among M, ``1 - √(k/M)``."""
    return np.exp(-(((1 - np.sqrt(masks.mean(1))) / width) ** 2))
