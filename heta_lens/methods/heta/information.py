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

LogProbs = Callable[[Float[Tensor, "copy pos d"]], Float[Tensor, "copy target vocab"]]
Objective = Callable[[Float[Tensor, "*copy vocab"]], Float[Tensor, "*copy"]]


class Information(NamedTuple):
    """``divergence`` is I; ``drop`` says how much less likely the target becomes, ``g(X) - g(X with i masked)``."""

    divergence: Float[Tensor, "target pos"]
    drop: Float[Tensor, "target pos"]


@dataclass(frozen=True, eq=False)
class Clean:
    """What is predicted of each target with nothing masked, and how a masked prediction is compared with it."""

    log_probs: Float[Tensor, "target vocab"]
    objectives: Sequence[Objective]
    divergence: Divergence
    lengths: Sequence[int]

    def compared(
        self, masked: Float[Tensor, "copy reached vocab"], positions: Int[Tensor, "copy"]
    ) -> Float[Tensor, "copy kind target"]:
        """Divergence and drop of each copy, with the token at one of these positions masked; ``masked`` is of the last
        targets, whose contexts reach the first of them."""
        rows = self.log_probs.new_zeros(len(Information._fields), len(self.log_probs), len(positions))
        first = len(self.log_probs) - masked.shape[1]
        for target, moved in enumerate(masked.unbind(1), first):
            clean, objective = self.log_probs[target], self.objectives[target]
            reached = int((positions < self.lengths[target]).sum())  # the first ones: positions ascend
            rows[0, target, :reached] = self.divergence(clean, moved[:reached])
            rows[1, target, :reached] = objective(clean) - objective(moved[:reached])
        return rearrange(rows, "kind target copy -> copy kind target")


def information(
    log_probs_from: Callable[[int], LogProbs],
    embeddings: Float[Tensor, "pos d"],
    mask: Float[Tensor, "d"],
    clean: Float[Tensor, "target vocab"],
    objectives: Sequence[Objective],
    divergence: Divergence,
    *,
    lengths: Sequence[int] | None = None,
    by_start: Sequence[Sequence[int]],
    batches: Batches,
    done: Done,
) -> Information:
    """``I[t, i] = D(P_t, P_t with token i masked)`` of tokens that are listed by the start which their runs share.

    One set of masked forwards serves every target. Targets have contexts of these ``lengths`` (ascending; all of it, if
    not given), and what lies after a target's context does not change it: ``log_probs_from(start)`` answers for those
    targets whose context reaches ``start``. A token whose embedding is the mask already changes nothing, and is not
    run; that, like a token in no list, is 0.
    """
    reference = Clean(clean, objectives, divergence, lengths or [len(embeddings)] * len(clean))
    moved = clean.new_zeros(len(Information._fields), len(clean), len(embeddings))
    changed = (embeddings != mask).any(-1).tolist()
    for group in ([i for i in group if changed[i]] for group in by_start):
        if group:
            start = group[0]
            run = partial(_masked_one_by_one, log_probs_from(start), embeddings, mask, start, reference, done)
            rows = batches.map(run, torch.tensor(group), len(embeddings) - start)
            moved[..., group] = rearrange(rows, "copy kind target -> kind target copy")
    return Information(*moved)


def _masked_one_by_one(
    log_probs: LogProbs,
    embeddings: Float[Tensor, "pos d"],
    mask: Float[Tensor, "d"],
    start: int,
    clean: Clean,
    done: Done,
    positions: Int[Tensor, "copy"],
) -> Float[Tensor, "copy kind target"]:
    """A copy of the context from ``start`` on for each of these positions, which is masked there."""
    rows = clean.compared(log_probs(masked_copies(embeddings[start:], positions - start, mask)), positions)
    done(len(positions))
    return rows
