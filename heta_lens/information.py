"""The information I of Eq. 3: how far the predicted distribution moves when one token is masked."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from heta_lens.batches import Batches
from heta_lens.divergence import Divergence
from heta_lens.masking import masked_copies
from heta_lens.progress import Done

LogProbs = Callable[[Float[Tensor, "copy pos d"]], Float[Tensor, "copy target vocab"]]
Objective = Callable[[Float[Tensor, "*copy vocab"]], Float[Tensor, "*copy"]]


class Information(NamedTuple):
    """``divergence`` is I; ``drop`` says how much less likely the target becomes, ``g(X) - g(X with i masked)``."""

    divergence: Float[Tensor, "target pos"]
    drop: Float[Tensor, "target pos"]


def information(
    log_probs_from: Callable[[int], LogProbs],
    embeddings: Float[Tensor, "pos d"],
    mask: Float[Tensor, "d"],
    clean: Float[Tensor, "target vocab"],
    objectives: Sequence[Objective],
    divergence: Divergence,
    *,
    lengths: Sequence[int] | None = None,
    groups: Sequence[Sequence[int]],
    batches: Batches,
    done: Done,
) -> Information:
    """``I[t, i] = D(P_t, P_t with token i masked)`` of the tokens in ``groups``, which share the start of their runs.

    One set of masked forwards serves every target. Targets have contexts of these ``lengths`` (ascending; all of it, if
    not given), and what lies after a target's context tells it nothing: ``log_probs_from(start)`` answers for those
    targets whose context reaches ``start``. A token whose embedding is the mask already changes nothing, and is not
    run; that, like a token in no group, is 0.
    """
    lengths = lengths or [len(embeddings)] * len(clean)
    found = clean.new_zeros(len(Information._fields), len(clean), len(embeddings))
    changed = (embeddings != mask).any(-1).tolist()
    for group in ([i for i in group if changed[i]] for group in groups):
        if group:
            start = group[0]
            log_probs = log_probs_from(start)

            def judged(some: Int[Tensor, "copy"], start: int = start, log_probs: LogProbs = log_probs) -> Tensor:
                masked = log_probs(masked_copies(embeddings[start:], some - start, mask))
                rows = clean.new_zeros(len(Information._fields), len(clean), len(some))
                for target, moved in enumerate(masked.unbind(1), len(clean) - masked.shape[1]):
                    reached = int((some < lengths[target]).sum())  # the first ones: positions ascend
                    before, after = objectives[target](clean[target]), objectives[target](moved[:reached])
                    rows[0, target, :reached] = divergence(clean[target], moved[:reached])
                    rows[1, target, :reached] = before - after
                done(len(some))
                return rearrange(rows, "kind target copy -> copy kind target")

            rows = batches.map(judged, torch.tensor(group), len(embeddings) - start)
            found[..., group] = rearrange(rows, "copy kind target -> kind target copy")
    return Information(*found)
