"""The information I of Eq. 3: how far the predicted distribution moves when one token is masked."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from heta_lens.divergence import Divergence
from heta_lens.masking import masked_copies

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
    chunk: int,
    done: Callable[[int], None],
) -> Information:
    """``I[t, i] = D(P_t, P_t with token i masked)``; one set of masked forwards serves every target.

    Targets have contexts of these ``lengths`` (ascending; all of it, if not given), and what lies after a target's
    context tells it nothing: ``log_probs_from(start)`` answers for those targets whose context reaches ``start``.
    A chunk's masked copies run as one batch from its first position on. A token whose embedding is the mask already
    changes nothing, and is not run.
    """
    lengths = lengths or [len(embeddings)] * len(clean)
    found = Information(*(clean.new_zeros(len(clean), len(embeddings)) for _ in Information._fields))
    changed = (embeddings != mask).any(-1).nonzero().flatten()
    for positions in changed.split(chunk):
        start = int(positions[0])
        masked = log_probs_from(start)(masked_copies(embeddings[start:], positions - start, mask))
        first = len(clean) - masked.shape[1]
        for target, log_probs in enumerate(masked.unbind(1), first):
            reached = positions < lengths[target]
            at, moved = positions[reached], log_probs[reached]
            found.divergence[target, at] = divergence(clean[target], moved)
            found.drop[target, at] = objectives[target](clean[target]) - objectives[target](moved)
        done(len(positions))
    return found
