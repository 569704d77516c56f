"""Progressive inference (Kariyappa 2024): the change of the prediction as the context is read, token by token."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch

from heta_lens._util.options import COUNT, AtLeast
from heta_lens._util.work import Work
from heta_lens.methods.base import Scores, WithBatch, WithBos, WithMask, WithSeed
from heta_lens.prediction import coalitions
from heta_lens.prediction.masking import ablated, mask_vector, with_others_masked
from heta_lens.prediction.prediction import Prediction, prompt_generator
from heta_lens.prediction.target import Scale


@dataclass(frozen=True, eq=False, kw_only=True)
class ProgressiveInference(WithMask, WithBos, WithSeed, WithBatch):
    """Progressive inference (Kariyappa 2024): how the prediction changes as the context is read, token by token.

    ``a_i = p_i - p_(i-1)``, p_i the target's probability after the first i tokens, and p_0 = 0: above 0 speaks for the
    target.

    With ``multi`` passes, Shapley values of ``v(S) = p after X with only the tokens S``, fitted to random S. Each run
    gives as many coalitions as there are tokens: the prediction after the i-th is v of the tokens of S up to it. The
    scores then sum to ``v(all) - v(none)``.

    - ``passes``: ``single``, one run; ``multi``, Shapley values
    - ``samples``: number of random S
    - ``penalty``: on the squared Shapley values, against the squared errors
    - ``keep_bos``: a beginning-of-text token is in every S, and gets 0
    - ``scale``: what p is: the target's ``log_prob``, ``prob``, ``logit`` or ``log_odds``
    - ``seed``: of the random S
    """

    passes: Literal["single", "multi"] = "single"
    samples: Annotated[int, COUNT] = 32
    penalty: Annotated[float | int, AtLeast(0)] = 1e-3
    scale: Scale = "prob"

    name: ClassVar = "progressive_inference"
    paper: ClassVar[str] = (
        "Kariyappa et al., Progressive inference: explaining decoder-only sequence classification models using "
        "intermediate predictions, ICML 2024, arXiv:2406.02625"
    )
    family: ClassVar = "hidden_states"
    cost: ClassVar = "F, or samples · F with passes='multi'"
    fixed: ClassVar = (
        "the weights and the tokens so far: the context is cut after each; with passes='multi', some are masked"
    )
    adapted: ClassVar = "how coalitions are drawn and weighted is our choice"

    @property
    def without_effect(self) -> Mapping[str, str]:
        if self.passes == "multi":
            return {}
        multi = ("samples", "penalty", "mask", "keep_bos", "seed")
        return dict.fromkeys(multi, "passes='single' (it is for passes='multi')")

    def work(self, prediction: Prediction) -> Work:  # noqa: ARG002
        return Work(forwards=self.samples + 2 if self.passes == "multi" else 1)

    def positions_read(self, tokens: int) -> int:
        return tokens

    def explain(self, prediction: Prediction) -> Scores:
        if self.passes == "multi":
            return self._shapley(prediction)
        after = coalitions.read_everywhere(prediction, prediction.embeddings[None], self.scale)[0]
        return Scores(after.diff(prepend=after.new_zeros(1)))

    def _shapley(self, prediction: Prediction) -> Scores:
        members = coalitions.each_token(prediction, self.keep_bos)
        players = len(members)
        if not players:
            return Scores(torch.zeros_like(prediction.embeddings[:, 0]))
        masks = np.ones((self.samples, 1), dtype=bool)
        if players > 1:
            masks = coalitions.random_coalitions(prompt_generator(self.seed, prediction.ids), players, self.samples)
        mask, ends = mask_vector(prediction, self.mask), np.array([[False], [True]]).repeat(players, 1)
        present, all_or_none = (torch.from_numpy(coalitions.still_there(members, which)) for which in (masks, ends))
        batches = prediction.batches(self.batch, read=len(prediction))
        empty, full = ablated(prediction, all_or_none, mask, self.scale, batches).tolist()
        read = partial(coalitions.read_everywhere, prediction, scale=self.scale)
        likelihoods = with_others_masked(prediction, present, mask, read, batches).cpu().double().numpy()
        pooled = (masks[:, None] & np.tri(players, dtype=bool)).reshape(-1, players)
        proper = pooled.any(1) & ~pooled.all(1)
        values = likelihoods[:, len(prediction) - players :].reshape(-1)[proper]
        size = pooled[proper].sum(1)
        share = np.bincount(size, minlength=players)[1:] / max(1, len(size))
        weights = coalitions.sizes(players)[size - 1] / share[size - 1]  # summed by size, those of Shapley values
        shares = coalitions.shapley(pooled[proper], values, weights, empty, full, self.penalty)
        facts = {"coalitions": int(proper.sum()), "completeness_gap": abs(full - empty - float(shares.sum()))}
        return Scores(coalitions.placed(prediction, members, shares), facts)
