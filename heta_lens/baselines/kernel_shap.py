"""KernelSHAP (Lundberg 2017): Shapley values of the tokens, by weighted least squares over coalitions of them."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float

from heta_lens.baselines.baseline import Baseline, Found
from heta_lens.coalitions import each_token, placed, with_only, worths
from heta_lens.masking import Masking
from heta_lens.options import COUNT, Batch, Seed
from heta_lens.prediction import Prediction
from heta_lens.progress import Work
from heta_lens.scales import Scale
from heta_lens.surrogates import every_coalition, kernel, random_coalitions, shapley

FEW = 10  # tokens, all of whose coalitions can be run
ENOUGH = 512


@dataclass(frozen=True, eq=False, kw_only=True)
class KernelShap(Baseline):
    """Shapley values of ``v(S) = g(X with only the tokens S)``: above 0 speaks for the target.

    ``Σ a_i = v(all) - v(none)``, always: the fit is constrained to it. Exact where every coalition is run
    (``diagnostics["exact"]``), else fitted to random ones, whose sizes are drawn as often as they count.

    - ``samples``: how many coalitions at most, beside nobody and everybody: every one if they are no more, else at
      random, two for each token or more; None takes every one for up to 10 tokens, else 512 or two for each token
    - ``paired``: with a random coalition, everyone who is not in it is one too, which takes less of them
    - ``mask``: what a masked token's embedding becomes: ``zero``, ``mean``, ``vocab_mean``, ``pad``, a token id or a
      vector
    - ``keep_bos``: a token that only says that the text begins stays as it is, and gets 0
    - ``scale``: what g is, the target's ``log_prob``, ``prob``, ``logit`` or ``log_odds``
    - ``seed``: where random coalitions come from
    - ``batch``: copies of the context run at once
    """

    samples: Annotated[int | None, COUNT] = None
    paired: bool = True
    mask: Masking = "zero"
    keep_bos: bool = True
    scale: Scale = "log_prob"
    seed: Seed = 0
    batch: Batch = "auto"

    name: ClassVar = "kernel_shap"
    cost: ClassVar = "samples · F"

    def check(self, prediction: Prediction) -> None:
        super().check(prediction)
        players = len(each_token(prediction, self.keep_bos))
        least = min(2 * players, coalitions(players))
        if self.samples is not None and self.samples < least:
            raise ValueError(f"samples={self.samples} are too few for {players} tokens: give at least {least}, or None")

    def work(self, prediction: Prediction) -> dict[str, int]:
        return {"forwards": 2 + self._count(len(each_token(prediction, self.keep_bos)))}

    def explain(self, asked: Prediction, work: Work) -> Found:
        members = each_token(asked, self.keep_bos)
        if not len(members):
            return torch.zeros_like(asked.embeddings[:, 0]), {}
        masks, weights = self._sampled(len(members))
        ends = np.array([[False], [True]]).repeat(len(members), 1)
        left = with_only(asked, self.mask, self.scale, self.batch, work)
        values = worths(members, np.concatenate([ends, masks]), left)
        empty, full = values[:2].tolist()
        found = shapley(masks, values[2:], weights, empty, full)
        facts = {"exact": self._exact(len(members)), "completeness_gap": abs(full - empty - float(found.sum()))}
        return placed(asked, members, found), facts

    def _exact(self, players: int) -> bool:
        return players <= FEW if self.samples is None else coalitions(players) <= self.samples

    def _count(self, players: int) -> int:
        if self._exact(players):
            return coalitions(players)
        return max(ENOUGH, 2 * players) if self.samples is None else self.samples

    def _sampled(self, players: int) -> tuple[Bool[np.ndarray, "sample player"], Float[np.ndarray, "sample"]]:
        if self._exact(players):
            masks = every_coalition(players)
            return masks, kernel(masks.sum(1), players)
        generator = np.random.default_rng([self.seed, players])
        masks = random_coalitions(generator, players, self._count(players), paired=self.paired)
        return masks, np.ones(len(masks))


def coalitions(players: int) -> int:
    """How many there are, but nobody and everybody."""
    return max(0, 2**players - 2)
