"""TDD, token distribution dynamics (Feng 2024): how the choice between two tokens moves as the context is read."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from heta_lens.baselines.baseline import Baseline, Found, refuse_hooks
from heta_lens.pieces import rival
from heta_lens.prediction import Prediction
from heta_lens.progress import Work


@dataclass(frozen=True, eq=False, kw_only=True)
class Tdd(Baseline):
    """``a_i = d_i - d_(i-1)``: how much token i moves d towards the target; above 0 speaks for the target.

    ``d = tanh((z_target - z_foil) / 2)`` of the logits z: the target's probability less the foil's, if there were only
    these two. Before the first token it is 0, so the scores add up to d after the whole context.

    - ``direction``: ``forward`` reads d at every position, so that ``d_i`` follows the first i tokens; ``backward``
      lets the context grow the other way, from its last token to all of it, each part run alone; ``bidirectional`` is
      the mean of both
    - ``foil``: ``rival``, the model's most likely other token, or ``none``, where d is the target's probability. Of a
      contrastive target (a, b), b is the foil.
    - ``add_bos``: parts that are run alone begin with the token that says that a text begins
    """

    direction: Literal["backward", "forward", "bidirectional"] = "backward"
    foil: Literal["rival", "none"] = "rival"
    add_bos: bool = False

    name: ClassVar = "tdd"
    cost: ClassVar = "N F of N/2 tokens; forward: F"
    adapted: ClassVar = "the foil is the model's most likely other token, where no contrast is asked for"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.add_bos and self.direction == "forward":
            raise ValueError("add_bos=True is for parts that are run alone, and direction='forward' runs none")

    def check(self, prediction: Prediction) -> None:
        if isinstance(prediction.target, tuple) and self.foil == "none":
            raise ValueError(f"target={prediction.target} has a foil, and foil='none' asks for none: leave out one")
        if self.direction != "forward":
            refuse_hooks(self, prediction, f"direction={self.direction!r} runs parts of the context")
        if self.add_bos and prediction.lens.speller.bos is None:
            raise ValueError("add_bos=True needs a tokenizer with a token that begins a text")

    def work(self, prediction: Prediction) -> dict[str, int]:
        return {"forwards": (self.direction != "forward") * len(prediction) + (self.direction != "backward")}

    def explain(self, asked: Prediction, work: Work) -> Found:
        target, foil = asked.target if isinstance(asked.target, tuple) else (asked.target, rival(asked))
        against = None if self.foil == "none" else foil
        found = []
        if self.direction != "forward":
            found.append(steps(suffix_choices(asked, self.add_bos, target, against, work)).flip(0))
        if self.direction != "backward":
            found.append(steps(choices(prefix_logits(asked, work), target, against)))
        return torch.stack(found).mean(0), {"foil": against}


@torch.no_grad()
def prefix_logits(asked: Prediction, work: Work) -> Float[Tensor, "pos vocab"]:
    """What comes next after the first token, the first two, and so on."""
    logits = asked.prompt.logits_from(0, read=range(len(asked)))(asked.embeddings[None])[0]
    work.add("forwards", 1)
    return logits


@torch.no_grad()
def suffix_choices(asked: Prediction, add_bos: bool, target: int, foil: int | None, work: Work) -> Float[Tensor, "pos"]:
    """d after the last token alone, the last two, and so on."""
    found = []
    for length in range(1, len(asked) + 1):
        ids = asked.ids[len(asked) - length :]
        if add_bos and int(ids[0]) != asked.lens.speller.bos:
            ids = torch.cat([ids.new_tensor([asked.lens.speller.bos]), ids])
        found.append(choices(asked.prompt.logits_of(ids[None])[:, 0], target, foil))
        work.add("forwards", 1)
    return torch.cat(found)


def choices(logits: Float[Tensor, "part vocab"], target: int, foil: int | None) -> Float[Tensor, "part"]:
    """d: from -1, surely the foil, to 1, surely the target; without a foil, the target's probability."""
    if foil is None:
        return logits.softmax(-1)[:, target]
    return ((logits[:, target] - logits[:, foil]) / 2).tanh()


def steps(values: Float[Tensor, "part"]) -> Float[Tensor, "part"]:
    """How far each lies from the one before it, and the first from 0."""
    return values.diff(prepend=values.new_zeros(1))
