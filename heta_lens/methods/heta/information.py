"""The information I of Eq. 3: how far the predicted distribution moves when one token is masked."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from heta_lens._util.divergence import Divergence
from heta_lens._util.work_counting import Done
from heta_lens.model.batching import Batches
from heta_lens.prediction.masking import masked_copies
from heta_lens.prediction.readout import log_softmax

Logits = Callable[[Float[Tensor, "copy pos d"]], Float[Tensor, "copy target vocab"]]
Objective = Callable[[Float[Tensor, "copy vocab"], Float[Tensor, "copy vocab"]], Float[Tensor, "copy"]]
"""g, of logits and the log-probabilities that they make."""


class Information(NamedTuple):
    """``divergence`` is I; ``drop`` says how much less likely the target becomes, ``g(X) - g(X with i masked)``."""

    divergence: Float[Tensor, "target pos"]
    drop: Float[Tensor, "target pos"]


class Reference(NamedTuple):
    """What is predicted of a target with nothing masked: the distribution, and the value of its g."""

    log_probs: Float[Tensor, "vocab"]
    value: Float[Tensor, ""]
    objective: Objective


@dataclass(frozen=True, eq=False)
class Clean:
    """What is predicted of each target with nothing masked, and how a masked prediction is compared with it."""

    references: Sequence[Reference]
    divergence: Divergence
    lengths: Sequence[int]

    def compared(
        self, masked: Float[Tensor, "copy reached vocab"], positions: Int[Tensor, "copy"]
    ) -> Float[Tensor, "copy kind target"]:
        """Divergence and drop of each copy, with the token at one of these positions masked; ``masked`` are logits of
        the last targets, whose contexts reach the first of them."""
        rows = masked.new_zeros(len(Information._fields), len(self.references), len(positions))
        first = len(self.references) - masked.shape[1]
        for target, (logits, moved) in enumerate(
            zip(masked.unbind(1), log_softmax(masked).unbind(1), strict=True), first
        ):
            log_probs, value, objective = self.references[target]
            reached = int((positions < self.lengths[target]).sum())  # the first ones: positions ascend
            rows[0, target, :reached] = self.divergence(log_probs, moved[:reached])
            rows[1, target, :reached] = value - objective(logits[:reached], moved[:reached])
        return rearrange(rows, "kind target copy -> copy kind target")


def information(
    logits_from: Callable[[int], Logits],
    embeddings: Float[Tensor, "pos d"],
    mask: Float[Tensor, "d"],
    clean: Sequence[Reference],
    divergence: Divergence,
    *,
    lengths: Sequence[int] | None = None,
    by_start: Sequence[Sequence[int]],
    batches: Batches,
    done: Done,
    floor: bool = False,
) -> Information:
    """``I[t, i] = D(P_t, P_t with token i masked)`` of tokens that are listed by the start which their runs share.

    One set of masked forwards serves every target. Targets have contexts of these ``lengths`` (ascending; all of it, if
    not given), and what lies after a target's context does not change it: ``logits_from(start)`` answers for those
    targets whose context reaches ``start``. A token whose embedding is the mask already changes nothing, and is not
    run; that, like a token in no list, is 0.

    ``floor`` also runs the clean context in the first and last batch of every list. It differs from the prediction by
    rounding alone, and so does a token that moves no further: that is 0 as well.
    """
    reference = Clean(clean, divergence, lengths or [len(embeddings)] * len(clean))
    moved = clean[0].log_probs.new_zeros(len(Information._fields), len(clean), len(embeddings))
    rounding = moved.new_zeros(len(Information._fields), len(clean), 1)
    changed = (embeddings != mask).any(-1).tolist()
    for group in ([i for i in group if changed[i]] for group in by_start):
        if group:
            start = group[0]
            run = partial(_masked_one_by_one, logits_from(start), embeddings, mask, start, reference, done)
            around = torch.tensor([[group[0], False], *([i, True] for i in group), [group[-1], False]])
            copies = around if floor else around[1:-1]
            rows = batches.map(run, copies, len(embeddings) - start)
            rows = rearrange(rows, "copy kind target -> kind target copy")
            moved[..., group] = rows[..., copies[:, 1].bool()]
            if floor:
                rounding = torch.maximum(rounding, rows[..., [0, -1]].abs().amax(-1, keepdim=True))
    return Information(*moved.masked_fill(moved.abs() <= rounding, 0))


def _masked_one_by_one(
    logits: Logits,
    embeddings: Float[Tensor, "pos d"],
    mask: Float[Tensor, "d"],
    start: int,
    clean: Clean,
    done: Done,
    copies: Int[Tensor, "copy 2"],
) -> Float[Tensor, "copy kind target"]:
    """A copy of the context from ``start`` on for each of these positions, with the token there masked, or clean."""
    positions, masked = copies.unbind(1)
    vectors = torch.where(masked.bool()[:, None].to(mask.device), mask, embeddings[positions])
    rows = clean.compared(logits(masked_copies(embeddings[start:], positions - start, vectors)), positions)
    done(len(positions))
    return rows
