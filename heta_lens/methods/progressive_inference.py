"""Progressive inference (Kariyappa 2024): how the prediction changes as the context is read, token by token."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from heta_lens._util.options import COUNT, AtLeast
from heta_lens._util.work import Work
from heta_lens.methods.base import Scores, refuse_hooks
from heta_lens.methods.options import WithBatch, WithBos, WithMask, WithSeed
from heta_lens.prediction.coalitions import (
    each_token,
    placed,
    random_coalitions,
    read_everywhere,
    shapley,
    sizes,
    still_there,
)
from heta_lens.prediction.masking import ablated, with_others_masked
from heta_lens.prediction.prediction import Prediction, prompt_generator
from heta_lens.prediction.target import Scale

ONLY = {"single": {"before"}, "multi": {"samples", "penalty", "mask", "keep_bos", "seed"}}  # options of each


@dataclass(frozen=True, eq=False, kw_only=True)
class ProgressiveInference(WithMask, WithBos, WithSeed, WithBatch):
    """Progressive inference (Kariyappa 2024): how the prediction changes as the context is read, token by token.

    ``a_i = p_i - p_(i-1)``, p_i the target's probability after the first i tokens: above 0 speaks for the target.

    With ``multi`` passes, Shapley values of ``v(S) = p after X with only the tokens S``, fitted to random S. Each run
    gives as many coalitions as there are tokens: the prediction after the i-th is v of the tokens of S up to it. The
    scores then sum to ``v(all) - v(none)``, else to ``p_N - p_0``.

    - ``passes``: ``single``, one run; ``multi``, Shapley values
    - ``before``: p_0 in a ``single`` pass: ``nothing``, 0, or the prediction after a ``bos`` token alone
    - ``samples``: number of random S
    - ``penalty``: on the squared Shapley values, against the squared errors
    - ``keep_bos``: a beginning-of-text token is in every S, and gets 0
    - ``scale``: what p is: the target's ``log_prob``, ``prob``, ``logit`` or ``log_odds``
    - ``seed``: of the random S
    """

    passes: Literal["single", "multi"] = "single"
    before: Literal["nothing", "bos"] = "nothing"
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
    adapted: ClassVar = "how coalitions are drawn and weighted is our choice"

    @property
    def random(self) -> bool:
        return self.passes == "multi"

    @property
    def without_effect(self) -> Mapping[str, str]:
        other = "multi" if self.passes == "single" else "single"
        return dict.fromkeys(ONLY[other], f"passes={self.passes!r} (it is for passes={other!r})")

    def check(self, prediction: Prediction) -> None:
        super().check(prediction)
        if self.passes == "single" and self.before == "bos" and not prediction.begins:
            if prediction.adapter.tokenizer.bos is None:
                raise ValueError("before='bos' needs a tokenizer with such a token: leave it out")
            refuse_hooks(self, prediction, "with before='bos' runs a prompt of one token")

    def work(self, prediction: Prediction) -> dict[str, int]:
        if self.passes == "multi":
            return {"forwards": self.samples + 2}
        return {"forwards": 1 + (self.before == "bos" and not prediction.begins)}

    def positions_read(self, prediction: Prediction) -> int:
        return len(prediction)

    def explain(self, prediction: Prediction, progress: Work) -> Scores:
        if self.passes == "multi":
            return self._multi(prediction, progress)
        after = read_everywhere(prediction, prediction.embeddings[None], self.scale, partial(progress.add, "forwards"))[
            0
        ]
        return Scores(after.diff(prepend=self._start(prediction, after[:1], progress)))

    def _start(self, prediction: Prediction, first: Float[Tensor, "1"], progress: Work) -> Float[Tensor, "1"]:
        if self.before == "nothing":
            return torch.zeros_like(first)
        if prediction.begins:
            return first
        with torch.no_grad():
            logits = prediction.prompt.logits_of(prediction.ids.new_tensor([[prediction.adapter.tokenizer.bos]]))
        progress.add("forwards", 1)
        return prediction.read(logits[0], self.scale).to(first)

    def _multi(self, prediction: Prediction, progress: Work) -> Scores:
        members = each_token(prediction, self.keep_bos)
        players = len(members)
        if not players:
            return Scores(torch.zeros_like(prediction.embeddings[:, 0]))
        masks = self._masks(prediction, players)
        mask, done = prediction.mask_vector(self.mask), partial(progress.add, "forwards")
        ends = torch.from_numpy(still_there(members, np.array([[False], [True]]).repeat(players, 1)))
        batches = prediction.prompt.batches(self.batch, len(prediction), read=len(prediction))
        empty, full = ablated(prediction, ends, mask, self.scale, batches, done).tolist()
        read = partial(read_everywhere, prediction, scale=self.scale, done=done)
        likelihoods = with_others_masked(prediction, torch.from_numpy(still_there(members, masks)), mask, read, batches)
        values = likelihoods.cpu().double().numpy()[:, len(prediction) - players :].reshape(-1)
        pooled = (masks[:, None] & np.tri(players, dtype=bool)).reshape(-1, players)
        proper = pooled.any(1) & ~pooled.all(1)
        weights = evened(pooled[proper].sum(1), players)
        values_by_token = shapley(pooled[proper], values[proper], weights, empty, full, self.penalty)
        gap = abs(full - empty - float(values_by_token.sum()))
        return Scores(
            placed(prediction, members, values_by_token), {"coalitions": int(proper.sum()), "completeness_gap": gap}
        )

    def _masks(self, prediction: Prediction, players: int) -> Bool[np.ndarray, "sample player"]:
        if players == 1:
            return np.ones((self.samples, 1), dtype=bool)
        return random_coalitions(prompt_generator(self.seed, prediction.ids), players, self.samples)


def evened(size: Int[np.ndarray, "sample"], players: int) -> Float[np.ndarray, "sample"]:
    """Weights that give the coalitions of each size, together, the weight they have in Shapley values."""
    share = np.bincount(size, minlength=players)[1:] / max(1, len(size))
    return sizes(players)[size - 1] / share[size - 1]
