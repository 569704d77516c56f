"""Progressive inference (Kariyappa 2024): what is predicted after each token, on the way to the last."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from heta_lens.baselines.baseline import Baseline, Found, refuse_hooks
from heta_lens.coalitions import each_token, placed, read_everywhere, still_there
from heta_lens.likelihood import ablated, with_others_masked
from heta_lens.masking import Masking
from heta_lens.options import COUNT, AtLeast, Batch, Seed
from heta_lens.prediction import Prediction
from heta_lens.progress import Work
from heta_lens.scales import Scale
from heta_lens.surrogates import random_coalitions, shapley, sizes

ONLY = {"single": {"before"}, "multi": {"samples", "penalty", "mask", "keep_bos", "seed"}}  # options of each


@dataclass(frozen=True, eq=False, kw_only=True)
class ProgressiveInference(Baseline):
    """``a_i = p_i - p_(i-1)``, p_i the target's probability after the first i tokens: above 0 speaks for the target.

    With ``multi`` passes, Shapley values of ``v(S) = p after X with only the tokens S``, fitted to random S. Each run
    tells of as many coalitions as there are tokens: what is predicted after the i-th is read as v of those of S up to
    it. Scores then sum to ``v(all) - v(none)``, else to ``p_N - p_0``.

    - ``passes``: ``single``, one run; ``multi``, Shapley values
    - ``before``: what p_0 is, of a ``single`` pass: ``nothing``, 0, or what is predicted after a ``bos`` token alone
    - ``samples``: how many S are run
    - ``penalty``: of the squared Shapley values, against the squared errors
    - ``mask``: what a masked token's embedding becomes: ``zero``, ``mean``, ``vocab_mean``, ``pad``, a token id or a
      vector
    - ``keep_bos``: a token that only says that the text begins is in every S, and gets 0
    - ``scale``: what p is, the target's ``log_prob``, ``prob``, ``logit`` or ``log_odds``
    - ``seed``: where S comes from
    - ``batch``: copies of the context run at once
    """

    passes: Literal["single", "multi"] = "single"
    before: Literal["nothing", "bos"] = "nothing"
    samples: Annotated[int, COUNT] = 32
    penalty: Annotated[float | int, AtLeast(0)] = 1e-3
    mask: Masking = "zero"
    keep_bos: bool = True
    scale: Scale = "prob"
    seed: Seed = 0
    batch: Batch = "auto"

    name: ClassVar = "progressive_inference"
    cost: ClassVar = "F, or samples · F with passes='multi'"
    adapted: ClassVar = "which coalitions are drawn, and how much they count, is ours"

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
            if prediction.lens.speller.bos is None:
                raise ValueError("before='bos' needs a tokenizer with such a token: leave it out")
            refuse_hooks(self, prediction, "with before='bos' runs a prompt of one token")

    def work(self, prediction: Prediction) -> dict[str, int]:
        if self.passes == "multi":
            return {"forwards": self.samples + 2}
        return {"forwards": 1 + (self.before == "bos" and not prediction.begins)}

    def positions_read(self, prediction: Prediction) -> int:
        return len(prediction)

    def explain(self, asked: Prediction, work: Work) -> Found:
        if self.passes == "multi":
            return self._multi(asked, work)
        after = read_everywhere(asked, asked.embeddings[None], self.scale, partial(work.add, "forwards"))[0]
        return after.diff(prepend=self._start(asked, after[:1], work)), {}

    def _start(self, asked: Prediction, first: Float[Tensor, "1"], work: Work) -> Float[Tensor, "1"]:
        if self.before == "nothing":
            return torch.zeros_like(first)
        if asked.begins:
            return first
        with torch.no_grad():
            logits = asked.prompt.logits_of(asked.ids.new_tensor([[asked.lens.speller.bos]]))
        work.add("forwards", 1)
        return asked.read(logits[0], self.scale).to(first)

    def _multi(self, asked: Prediction, work: Work) -> Found:
        members = each_token(asked, self.keep_bos)
        players = len(members)
        if not players:
            return torch.zeros_like(asked.embeddings[:, 0]), {}
        masks = self._masks(players)
        mask, done = asked.mask_vector(self.mask), partial(work.add, "forwards")
        ends = torch.from_numpy(still_there(members, np.array([[False], [True]]).repeat(players, 1)))
        batches = asked.prompt.batches(self.batch, len(asked), read=len(asked))
        empty, full = ablated(asked, ends, mask, self.scale, batches, done).tolist()
        read = partial(read_everywhere, asked, scale=self.scale, done=done)
        seen = with_others_masked(asked, torch.from_numpy(still_there(members, masks)), mask, read, batches)
        values = seen.cpu().double().numpy()[:, len(asked) - players :].reshape(-1)
        pooled = (masks[:, None] & np.tri(players, dtype=bool)).reshape(-1, players)
        proper = pooled.any(1) & ~pooled.all(1)
        weights = evened(pooled[proper].sum(1), players)
        found = shapley(pooled[proper], values[proper], weights, empty, full, self.penalty)
        gap = abs(full - empty - float(found.sum()))
        return placed(asked, members, found), {"coalitions": int(proper.sum()), "completeness_gap": gap}

    def _masks(self, players: int) -> Bool[np.ndarray, "sample player"]:
        if players == 1:
            return np.ones((self.samples, 1), dtype=bool)
        return random_coalitions(np.random.default_rng([self.seed, players]), players, self.samples)


def evened(size: Int[np.ndarray, "sample"], players: int) -> Float[np.ndarray, "sample"]:
    """Weights with which coalitions of every size count as much together as they do in Shapley values."""
    share = np.bincount(size, minlength=players)[1:] / max(1, len(size))
    return sizes(players)[size - 1] / share[size - 1]
