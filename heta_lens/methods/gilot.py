"""GiLOT (Li 2024): the move of the output distribution, in optimal transport, when a token is masked."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor

from heta_lens._util.options import COUNT, AtLeast
from heta_lens._util.python import check_extra, extra
from heta_lens._util.work import Work
from heta_lens.diagnostics import Diagnostics
from heta_lens.methods.base import Scores, WithForwards, refuse_hooks, refuse_overlong
from heta_lens.prediction.generation import Beams, Writer, beam_search
from heta_lens.prediction.masking import mask_vector, masked_copies
from heta_lens.prediction.prediction import Prediction


@dataclass(frozen=True, eq=False, kw_only=True)
class Gilot(WithForwards):
    """GiLOT (Li 2024): the move of the output distribution, in optimal transport, when a token is masked.

    ``a_i = D(P, P with token i masked)``: ≥ 0, no direction, and the same for every target.

    D is the cost of transport, where the distance of two tokens is 1 minus the cosine of their embeddings.
    P is the distribution of the ``length``-th token from here: a beam search writes the ``length - 1`` tokens before
    it, and the distribution after each beam is weighted by that beam's probability.

    - ``nucleus``, ``support``: transport is computed between the likeliest tokens of both: those that have this much of
      the probability, and at most so many of each
    - ``length``, ``beams``: how far to look ahead, and along how many continuations
    """

    nucleus: Annotated[float | int, AtLeast(1e-9, most=1)] = 0.9999
    support: Annotated[int, AtLeast(1, whole=True)] = 1000
    length: Annotated[int, COUNT] = 1
    beams: Annotated[int, COUNT] = 1

    name: ClassVar = "gilot"
    paper: ClassVar[str] = "Li et al., GiLOT: interpreting generative language models via optimal transport, ICML 2024"
    family: ClassVar = "generation"
    cost: ClassVar = (
        "N F and N linear programmes, or as many as ``forwards`` allows; (N + 1) (1 + (length - 1) beams) F when it "
        "looks ahead"
    )
    scaled_by: ClassVar = ("forwards",)
    signed: ClassVar = False
    target_agnostic: ClassVar = True
    adapted: ClassVar = "by default only the next token is considered; transport is exact; texts do not end"

    @property
    def without_effect(self) -> Mapping[str, str]:
        if self.length == 1:
            return {"beams": "length=1 (before which no token is written)"}
        return {"forwards": f"length={self.length} (which masks every token alone)"}

    def check(self, prediction: Prediction) -> None:
        super().check(prediction)
        check_extra("ot", f"method={self.name!r}")
        if self.length > 1:
            refuse_hooks(self, prediction, "writes after the context")
            refuse_overlong(self, prediction, len(prediction) + self.length - 1, f"make length={self.length} smaller")

    def work(self, prediction: Prediction) -> Work:
        if self.length == 1:
            return super().work(prediction)
        return Work(forwards=(len(prediction) + 1) * (1 + (self.length - 1) * self.beams))

    def explain(self, prediction: Prediction) -> Scores:
        distance = partial(transport, prediction.adapter.token_weights, self.nucleus, self.support)
        if self.length == 1:

            def distances(log_p: Float[Tensor, "vocab"], log_qs: Float[Tensor, "copy vocab"]) -> Float[Tensor, "copy"]:
                return torch.stack([distance(log_p, log_q) for log_q in log_qs])

            (found,) = self.token_effects([prediction], distances)
            return Scores(found.effects.divergence, Diagnostics(masked_together=found.together))

        batches, vector = prediction.batches(self.batch), mask_vector(prediction, self.mask)

        def ahead(states: Float[Tensor, "pos d"] | None = None) -> Float[Tensor, "vocab"]:
            writer = Writer.after(prediction, batches, states=states)
            return later(beam_search(writer, self.beams, self.length - 1))

        clean, places = ahead(), torch.arange(len(prediction), device=vector.device)
        moved = [ahead(masked_copies(prediction.embeddings, place, vector)[0]) for place in places.split(1)]
        return Scores(torch.stack([distance(clean, other) for other in moved]))


def later(beams: Beams) -> Float[Tensor, "vocab"]:
    """Return log-probabilities of the token after the beams: the mean, weighted by each beam's probability."""
    weights = rearrange(beams.log_probs.log_softmax(0), "beam -> beam 1")
    return (weights + beams.following).logsumexp(0)


def transport(
    table: Float[Tensor, "vocab d"],
    nucleus: float | int,
    support: int,
    log_p: Float[Tensor, "vocab"],
    log_q: Float[Tensor, "vocab"],
) -> Float[Tensor, ""]:
    """Compute the cost of transport between two distributions, reduced to the likeliest tokens of either."""
    union = (likeliest(log_p, nucleus, support) | likeliest(log_q, nucleus, support)).nonzero()[:, 0]
    p, q = (log_probs.cpu().double()[union].softmax(0) for log_probs in (log_p, log_q))
    vectors = torch.nn.functional.normalize(table[union.to(table.device)].cpu().double(), dim=-1)
    costs = (1 - vectors @ vectors.T).clamp(min=0).fill_diagonal_(0)
    ot = extra("ot", "optimal transport")
    return log_p.new_tensor(ot.emd2(p.numpy(), q.numpy(), costs.numpy(), numItermax=10_000_000))


def likeliest(log_probs: Float[Tensor, "vocab"], nucleus: float | int, support: int) -> Bool[Tensor, "vocab"]:
    """Return the fewest tokens with this share of the probability, at most ``support``."""
    probs, order = log_probs.cpu().double().exp().sort(descending=True, stable=True)
    chosen = order[:support][(probs.cumsum(0) - probs < nucleus)[:support]]
    return torch.zeros(len(probs), dtype=torch.bool).index_fill(0, chosen, True)
