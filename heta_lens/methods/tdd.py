"""TDD, token distribution dynamics (Feng 2024): the shift of the choice between two tokens along the context."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from heta_lens._util.target_kinds import Kind, Side, sides
from heta_lens._util.work import Work
from heta_lens.methods.base import Scores, WithBatch, refuse_hooks
from heta_lens.prediction.coalitions import read_present
from heta_lens.prediction.prediction import Prediction, runner_up
from heta_lens.prediction.target import joint_logit


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
            scores.append(steps(read_present(prediction, prediction.ids, parts, read, batches)).flip(0))
        if self.direction != "backward":
            with torch.no_grad():
                prefixes = prediction.rerun(read=range(len(prediction))).logits(prediction.embeddings[None])[0]
            scores.append(steps(read(prefixes)))
        return Scores(torch.stack(scores).mean(0), {"foil": foil})


def choices(logits: Float[Tensor, "part vocab"], target: Side, foil: Side) -> Float[Tensor, "part"]:
    """Return d: from -1, surely the foil, to 1, surely the target."""
    return ((joint_logit(logits, target) - joint_logit(logits, foil)) / 2).tanh()


def steps(values: Float[Tensor, "part"]) -> Float[Tensor, "part"]:
    return values.diff(prepend=values.new_zeros(1))
