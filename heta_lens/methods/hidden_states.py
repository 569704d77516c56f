"""Hidden states of the context: progressive inference and TDD read predictions from them, and peering compares them."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import normalize

from heta_lens._util.options import COUNT, AtLeast
from heta_lens._util.target_kinds import Kind, Side, sides
from heta_lens._util.work import Work
from heta_lens.methods.base import (
    ONE_TOKEN,
    Scores,
    WithBatch,
    WithBos,
    WithLayer,
    WithMask,
    WithSeed,
    refuse_hooks,
    refuse_overlong,
)
from heta_lens.prediction import coalitions
from heta_lens.prediction.masking import ablated, mask_vector
from heta_lens.prediction.prediction import Prediction, prompt_generator, runner_up
from heta_lens.prediction.target import Scale, joint_logit


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
        read = partial(prediction.read, scale=self.scale)
        empty, full = ablated(prediction, all_or_none, mask, read, batches).tolist()

        def read_everywhere(rows: Bool[Tensor, "some pos"]) -> Float[Tensor, "some pos"]:
            states = torch.where(rearrange(rows, "copy pos -> copy pos 1"), prediction.embeddings, mask)
            return coalitions.read_everywhere(prediction, states, self.scale)

        likelihoods = batches.map(read_everywhere, present.to(mask.device), len(prediction)).cpu().double().numpy()
        pooled = (masks[:, None] & np.tri(players, dtype=bool)).reshape(-1, players)
        proper = pooled.any(1) & ~pooled.all(1)
        values = likelihoods[:, len(prediction) - players :].reshape(-1)[proper]
        size = pooled[proper].sum(1)
        share = np.bincount(size, minlength=players)[1:] / max(1, len(size))
        weights = coalitions.sizes(players)[size - 1] / share[size - 1]  # summed by size, those of Shapley values
        shares = coalitions.shapley(pooled[proper], values, weights, empty, full, self.penalty)
        facts = {"coalitions": int(proper.sum()), "completeness_gap": abs(full - empty - float(shares.sum()))}
        return Scores(coalitions.placed(prediction, members, shares), facts)


# ------------------------------------------------------------------------------------------------------------------ TDD
@dataclass(frozen=True, eq=False, kw_only=True)
class Tdd(WithBatch):
    """TDD, token distribution dynamics (Feng 2024): how the choice between two tokens shifts as the context is read.

    ``a_i = d_i - d_(i-1)``: how much token i moves d towards the target; above 0 speaks for the target.

    ``d = tanh((z_target - z_foil) / 2)`` of the logits z: the target's probability minus the foil's, if there were only
    these two. In a contrast (a, b), b is the foil, else the model's most likely other token; the logit of a set is
    ``log Σ exp`` of its members'. Before the first token d is 0, so the scores add up to d after the whole context.

    - ``direction``: ``forward`` reads d at every position, so that ``d_i`` follows the first i tokens; ``backward``
      lets the context grow the other way, from its last token to all of it, each part run alone; ``bidirectional`` is
      the mean of both
    """

    direction: Literal["backward", "forward", "bidirectional"] = "backward"

    name: ClassVar = "tdd"
    paper: ClassVar[str] = (
        "Feng et al., Unveiling and manipulating prompt influence in large language models, ICLR 2024, arXiv:2405.11891"
    )
    family: ClassVar = "hidden_states"
    kinds: ClassVar[frozenset[Kind]] = frozenset(("token", "set", "contrast"))
    cost: ClassVar = "N F, most of them of fewer tokens; forward: F"
    fixed: ClassVar = "the weights and the part of the context that is read, which grows by one token at a time"
    adapted: ClassVar = "without a contrast, the foil is the model's most likely other token"

    def check(self, prediction: Prediction) -> None:
        super().check(prediction)
        if self.direction != "forward":
            refuse_hooks(self, prediction, "runs parts of the context (unless direction='forward')")

    def work(self, prediction: Prediction) -> Work:
        return Work(forwards=(self.direction != "forward") * len(prediction) + (self.direction != "backward"))

    def positions_read(self, tokens: int) -> int:
        return 1 if self.direction == "backward" else tokens

    def explain(self, prediction: Prediction) -> Scores:
        target, *foils = sides(prediction.target)
        foil = foils[0] if foils else runner_up(prediction)
        read, scores = partial(choices, target=target, foil=foil), []
        if self.direction != "forward":
            parts = torch.ones(len(prediction), len(prediction), dtype=torch.bool).tril().flip(1)  # from the end
            batches = prediction.batches(self.batch)
            scores.append(steps(coalitions.read_present(prediction, prediction.ids, parts, read, batches)).flip(0))
        if self.direction != "backward":
            prefixes = prediction.rerun(read=range(len(prediction))).logits(prediction.embeddings[None])[0]
            scores.append(steps(read(prefixes)))
        return Scores(torch.stack(scores).mean(0), {"foil": foil})


def choices(logits: Float[Tensor, "part vocab"], target: Side, foil: Side) -> Float[Tensor, "part"]:
    """Return d: from -1, surely the foil, to 1, surely the target."""
    return ((joint_logit(logits, target) - joint_logit(logits, foil)) / 2).tanh()


def steps(values: Float[Tensor, "part"]) -> Float[Tensor, "part"]:
    return values.diff(prepend=values.new_zeros(1))


# -------------------------------------------------------------------------------------------------------------- peering
@dataclass(frozen=True, eq=False, kw_only=True)
class Peering(WithLayer):
    """Peering into the mind (Phukan 2024): the similarity of every token's hidden state to the target's.

    ``a_i = max(0, cos(q, h_i) - θ)``, of the states h that leave a layer: ≥ 0, no direction.

    This is the only method that reads the target as an input, as ``diagnostics["sees_target"]`` says.

    - ``query``: q is the state of the ``target``, appended to the context, or of the ``predictor``, the last token
    - ``layer``: the layer to read, counted from 0; None is the middle one
    - ``threshold``: θ, the ``mean`` of the cosines or a number below 1
    """

    query: Literal["target", "predictor"] = "target"
    threshold: Annotated[float | int | Literal["mean"], AtLeast(-1, below=1.0)] = "mean"

    name: ClassVar = "peering"
    paper: ClassVar[str] = (
        "Phukan et al., Peering into the mind of language models: an approach for attribution in contextual "
        "question answering, Findings of ACL 2024, arXiv:2405.17980"
    )
    family: ClassVar = "hidden_states"
    cost: ClassVar = "F"
    signed: ClassVar = False
    kinds: ClassVar = ONE_TOKEN
    adapted: ClassVar = "the authors rank spans, with a tuned layer and threshold; here each token has a score"

    @property
    def ignores_target(self) -> bool:
        return self.query == "predictor"

    def check(self, prediction: Prediction) -> None:
        super().check(prediction)
        if self.query == "target":
            refuse_overlong(self, prediction, len(prediction) + 1, "query='predictor' needs no more than the context")

    def work(self, prediction: Prediction) -> Work:  # noqa: ARG002
        return Work(forwards=1)

    def explain(self, prediction: Prediction) -> Scores:
        layer, n = prediction.layers // 2 if self.layer is None else self.layer, len(prediction)
        ids, sees_target = prediction.whole_ids, self.query == "target"
        if sees_target:  # the rest of the prompt follows, for hooks that expect the whole prompt
            ids = torch.cat([prediction.ids, ids.new_tensor([prediction.target]), ids[n + 1 :]])
        states = prediction.streams(ids[None], [layer + 1])[layer + 1][0]
        query = states[n if sees_target else n - 1]
        similarity = normalize(states[:n], dim=-1) @ normalize(query, dim=-1)
        threshold = similarity.mean() if self.threshold == "mean" else self.threshold
        return Scores((similarity - threshold).relu(), {"sees_target": sees_target})
