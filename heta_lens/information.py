"""The information I of Eq. 3: how far the predicted distribution moves when one token is masked."""

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor

from heta_lens.divergence import Divergence
from heta_lens.masking import masked_copies

LogProbs = Callable[[Float[Tensor, "copy pos d"]], Float[Tensor, "copy target vocab"]]


def information(
    log_probs_from: Callable[[int], LogProbs],
    embeddings: Float[Tensor, "pos d"],
    mask: Float[Tensor, "d"],
    clean: Float[Tensor, "target vocab"],
    divergence: Divergence,
    *,
    chunk: int,
    done: Callable[[int], None],
) -> Float[Tensor, "target pos"]:
    """``I[t, i] = D(P_t, P_t with token i masked)``; one set of masked forwards serves every target.

    A chunk's masked copies run as one batch from its first position on. A token whose embedding is the mask already
    changes nothing, and is not run.
    """
    result = clean.new_zeros(len(clean), len(embeddings))
    changed = (embeddings != mask).any(-1).nonzero().flatten()
    for positions in changed.split(chunk):
        start = int(positions[0])
        copies = masked_copies(embeddings[start:], positions - start, mask)
        masked = log_probs_from(start)(copies)
        result[:, positions] = divergence(clean, masked).T
        done(len(positions))
    return result
