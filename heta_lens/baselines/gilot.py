"""GiLOT (Li 2024): how far what the model writes moves, between the meanings of its tokens, when one is masked."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, Literal, TypeAlias

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from heta_lens.baselines.baseline import Baseline, Found, refuse_contrast, refuse_hooks, refuse_overlong
from heta_lens.batches import MASKED, Batches
from heta_lens.divergence import kl
from heta_lens.generation import Beams, Writer, beam_search
from heta_lens.masking import Masking, masked_copies
from heta_lens.options import COUNT, AtLeast, Batch
from heta_lens.prediction import Prediction
from heta_lens.progress import Done, Work
from heta_lens.scales import log_softmax

Distance: TypeAlias = Callable[[Tensor, Tensor], Tensor]  # between the log-probabilities of two distributions


@dataclass(frozen=True, eq=False, kw_only=True)
class Gilot(Baseline):
    """``a_i = D(P, P with token i masked)``: ≥ 0, no direction, and whichever the target is.

    P is the distribution of the ``length``-th token from here: a beam search writes the ``length - 1`` tokens before
    it, and the distribution after each beam is weighted by that beam's probability.

    - ``distance``: ``ot``, optimal transport, where a token is as far from another as 1 less the cosine of their
      embeddings; ``kl``, the divergence KL(P ‖ P masked); or ``l2``
    - ``nucleus``, ``support``: transport is between the likeliest tokens of both, which have this much of the
      probability, and are at most so many of each
    - ``length``, ``beams``: how far ahead to look, and along how many continuations
    - ``mask``: what a masked token's embedding becomes: ``zero``, ``mean``, ``vocab_mean``, ``pad``, a token id or a
      vector
    - ``batch``: copies of the context, or beams, run at once
    """

    distance: Literal["ot", "kl", "l2"] = "ot"
    nucleus: Annotated[float | int, AtLeast(0)] = 0.9999
    support: Annotated[int, AtLeast(1, whole=True)] = 1000
    length: Annotated[int, COUNT] = 1
    beams: Annotated[int, COUNT] = 1
    mask: Masking = "zero"
    batch: Batch = "auto"

    name: ClassVar = "gilot"
    cost: ClassVar = "N F and N linear programmes; (N + 1) (1 + (length - 1) beams) F when it looks ahead"
    signed: ClassVar = False
    adapted: ClassVar = (
        "the next token only, by default; the transport is exact, a token's embedding is masked, and texts go on"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.nucleus <= 1:
            raise ValueError(f"nucleus={self.nucleus} must be above 0 and at most 1")

    @property
    def without_effect(self) -> Mapping[str, str]:
        every = f"distance={self.distance!r} (which compares all tokens)"
        return {
            **({"beams": "length=1 (before which no token is written)"} if self.length == 1 else {}),
            **({} if self.distance == "ot" else {"nucleus": every, "support": every}),
        }

    def check(self, prediction: Prediction) -> None:
        super().check(prediction)
        refuse_contrast(self, prediction)
        if self.length > 1:
            refuse_hooks(self, prediction, "writes after the context")
            refuse_overlong(self, prediction, len(prediction) + self.length - 1, f"make length={self.length} smaller")

    def work(self, prediction: Prediction) -> dict[str, int]:
        n, ahead = len(prediction), (self.length - 1) * self.beams
        return {"forwards": (n + 1) * (1 + ahead) if ahead else n}

    def explain(self, asked: Prediction, work: Work) -> Found:
        done, vector = partial(work.add, "forwards"), asked.mask_vector(self.mask)
        batches = asked.prompt.batches(self.batch, len(asked))
        if self.length == 1:
            return masked_distances(asked, vector, self._distance(asked), batches, done), {}
        write = partial(Writer.after, asked, batches, done)
        clean = self._later(write())
        places = torch.arange(len(asked), device=asked.ids.device)
        masked = (masked_copies(asked.embeddings, place, vector)[0] for place in places.split(1))
        moved = [self._later(write(states=states)) for states in masked]
        apart = self._distance(asked)
        return torch.stack([apart(clean, one) for one in moved]), {}

    def _later(self, writer: Writer) -> Float[Tensor, "vocab"]:
        return later(beam_search(writer, self.beams, self.length - 1))

    def _distance(self, asked: Prediction) -> Distance:
        if self.distance == "ot":
            return partial(transport, asked.lens.token_weights, self.nucleus, self.support)
        return kl if self.distance == "kl" else euclidean


@torch.no_grad()
def masked_distances(
    asked: Prediction,
    vector: Float[Tensor, "d"],
    distance: Distance,
    batches: Batches,
    done: Done,
) -> Float[Tensor, "pos"]:
    """How far the next token's distribution moves as each token is masked; runs start where something changes."""

    def moved(some: Int[Tensor, "copy"], start: int) -> Float[Tensor, "copy"]:
        masked = masked_copies(asked.embeddings[start:], some - start, vector)
        log_probs = log_softmax(asked.logits_from(start)(masked))
        done(len(some))
        return torch.stack([distance(asked.log_probs, one) for one in log_probs])

    n = len(asked)
    found = [
        batches.map(partial(moved, start=group[0]), torch.tensor(group, device=asked.ids.device), n - group[0])
        for group in asked.prompt.groups(range(n), n, MASKED)
    ]
    return torch.cat(found)


def later(beams: Beams) -> Float[Tensor, "vocab"]:
    """Log-probabilities of the token after the beams: the mean of theirs, weighted by each beam's probability."""
    weights = rearrange(beams.log_probs.log_softmax(0), "beam -> beam 1")
    return (weights + beams.following).logsumexp(0)


def euclidean(log_p: Float[Tensor, "vocab"], log_q: Float[Tensor, "vocab"]) -> Float[Tensor, ""]:
    return (log_p.exp() - log_q.exp()).norm()


def transport(
    table: Float[Tensor, "vocab d"],
    nucleus: float | int,
    support: int,
    log_p: Float[Tensor, "vocab"],
    log_q: Float[Tensor, "vocab"],
) -> Float[Tensor, ""]:
    """What it costs to turn one distribution into the other, both reduced to the likeliest tokens of either."""
    union = (likeliest(log_p, nucleus, support) | likeliest(log_q, nucleus, support)).nonzero()[:, 0]
    p, q = (log_probs.cpu().double()[union].softmax(0) for log_probs in (log_p, log_q))
    vectors = torch.nn.functional.normalize(table[union.to(table.device)].cpu().double(), dim=-1)
    costs = (1 - vectors @ vectors.T).clamp(min=0).fill_diagonal_(0)
    return exact_transport(p, q, costs).to(log_p)


def likeliest(log_probs: Float[Tensor, "vocab"], nucleus: float | int, support: int) -> Bool[Tensor, "vocab"]:
    """The fewest tokens that have this share of the probability, but at most so many."""
    probs, order = log_probs.cpu().double().exp().sort(descending=True, stable=True)
    chosen = order[:support][(probs.cumsum(0) - probs < nucleus)[:support]]
    return torch.zeros(len(probs), dtype=torch.bool).index_fill(0, chosen, True)


def exact_transport(
    p: Float[Tensor, "from"], q: Float[Tensor, "to"], costs: Float[Tensor, "from to"]
) -> Float[Tensor, ""]:
    """The least ``Σ T_uv C_uv`` of all plans T that move p to q."""
    import ot  # takes a while, and nothing else needs it

    return torch.tensor(ot.emd2(p.numpy(), q.numpy(), costs.numpy(), numItermax=10_000_000), dtype=torch.float64)
