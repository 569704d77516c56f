"""TDD, token distribution dynamics (Feng 2024): how the choice between two tokens moves as the context is read."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from heta_lens.baselines.baseline import Baseline, Found, refuse_hooks, refuse_overlong
from heta_lens.coalitions import led_by, read_alone
from heta_lens.options import Batch
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
    - ``batch``: parts run at once
    """

    direction: Literal["backward", "forward", "bidirectional"] = "backward"
    foil: Literal["rival", "none"] = "rival"
    add_bos: bool = False
    batch: Batch = "auto"

    name: ClassVar = "tdd"
    cost: ClassVar = "N F, most of them of fewer tokens; forward: F"
    adapted: ClassVar = "the foil is the model's most likely other token, where no contrast is asked for"

    @property
    def without_effect(self) -> Mapping[str, str]:
        return {"add_bos": "direction='forward' (which runs no part alone)"} if self.direction == "forward" else {}

    def check(self, prediction: Prediction) -> None:
        if isinstance(prediction.target, tuple) and self.foil == "none":
            raise ValueError(f"target={prediction.target} has a foil, and foil='none' asks for none: leave out one")
        if self.direction != "forward":
            refuse_hooks(self, prediction, "runs parts of the context (unless direction='forward')")
        if self.add_bos and self.direction != "forward" and prediction.lens.speller.bos is None:
            raise ValueError("add_bos=True needs a tokenizer with a token that begins a text")
        if self.add_bos and self.direction != "forward" and not prediction.begins:
            refuse_overlong(self, prediction, len(prediction) + 1, "leave out add_bos=True")

    def work(self, prediction: Prediction) -> dict[str, int]:
        return {"forwards": (self.direction != "forward") * len(prediction) + (self.direction != "backward")}

    def positions_read(self, prediction: Prediction) -> int:
        return 1 if self.direction == "backward" else len(prediction)

    def explain(self, asked: Prediction, work: Work) -> Found:
        target, foil = asked.target if isinstance(asked.target, tuple) else (asked.target, rival(asked))
        against = None if self.foil == "none" else foil
        found = []
        if self.direction != "forward":
            read, batches = partial(choices, target=target, foil=against), asked.prompt.batches(self.batch, len(asked))
            parts = read_alone(asked, *suffixes(asked, self.add_bos), read, batches, partial(work.add, "forwards"))
            found.append(steps(parts).flip(0))
        if self.direction != "backward":
            found.append(steps(choices(prefix_logits(asked, work), target, against)))
        return torch.stack(found).mean(0), {"foil": against}


@torch.no_grad()
def prefix_logits(asked: Prediction, work: Work) -> Float[Tensor, "pos vocab"]:
    """What comes next after the first token, the first two, and so on."""
    logits = asked.prompt.logits_from(0, read=range(len(asked)))(asked.embeddings[None])[0]
    work.add("forwards", 1)
    return logits


def suffixes(asked: Prediction, add_bos: bool) -> tuple[Int[Tensor, "pos"], Bool[Tensor, "part pos"]]:
    """Ids, and which of them are the last token alone, the last two, and so on."""
    ids, bos = asked.ids, asked.lens.speller.bos
    present = torch.ones(len(ids), len(ids), dtype=torch.bool, device=ids.device).tril().flip(1)
    return led_by(bos, ids, present, ids.flip(0) != bos) if add_bos and bos is not None else (ids, present)


def choices(logits: Float[Tensor, "part vocab"], target: int, foil: int | None) -> Float[Tensor, "part"]:
    """d: from -1, surely the foil, to 1, surely the target; without a foil, the target's probability."""
    if foil is None:
        return logits.softmax(-1)[:, target]
    return ((logits[:, target] - logits[:, foil]) / 2).tanh()


def steps(values: Float[Tensor, "part"]) -> Float[Tensor, "part"]:
    """How far each lies from the one before it, and the first from 0."""
    return values.diff(prepend=values.new_zeros(1))
