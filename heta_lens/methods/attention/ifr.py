"""IFR, information flow routes (Ferrando 2024): what each token supplies, followed from the last layer to the first."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from heta_lens._util.options import AtLeast
from heta_lens._util.work_counting import Work
from heta_lens.methods.attention.attention_rollout import shares
from heta_lens.methods.attention.information_flow import Flow, Layer, flow_runs, parts, proximity
from heta_lens.methods.base import Method, Scores
from heta_lens.prediction.prediction import Prediction

TINY = 1e-12  # to divide by, where nothing brings a position closer to what it has


@dataclass(frozen=True, eq=False, kw_only=True)
class Ifr(Method):
    """``a = C_1ᵀ ⋯ C_Lᵀ e_N``: ≥ 0, no direction, the same for every target; the scores sum to 1.

    Row i of C_l has the shares that each token supplies, through attention and by staying where it is, of what position
    i has after the attention of layer l: by how much closer each part is to the whole than nothing is, in absolute
    differences. A norm that follows attention in the model is not applied.

    - ``threshold``: leave out shares (of a head, from a token) that are not above it, and share out the rest again
    """

    threshold: Annotated[float | int, AtLeast(0, below=1)] = 0

    name: ClassVar = "ifr"
    paper: ClassVar[str] = (
        "Ferrando & Voita, Information flow routes: automatically interpreting language models at scale, EMNLP "
        "2024, arXiv:2403.00824"
    )
    family: ClassVar = "attention"
    cost: ClassVar = "F; 2 F more without attention in the cache"
    signed: ClassVar = False
    target_agnostic: ClassVar = True
    adapted: ClassVar = "the authors draw a graph, whose paths are weighed here; their shares are at least 1e-5 each"

    def work(self, prediction: Prediction) -> dict[str, int]:
        return {"forwards": flow_runs(prediction)}

    def explain(self, prediction: Prediction, progress: Work) -> Scores:
        flow = Flow.of(prediction)
        progress.add("forwards", self.work(prediction)["forwards"])
        scores = torch.zeros_like(prediction.embeddings[:, 0])
        scores[-1] = 1
        for number in reversed(range(prediction.adapter.layers)):
            reached = scores.nonzero()[:, 0]
            rows_of = partial(edges, flow[number], threshold=self.threshold)
            batches = prediction.prompt.batches("auto", len(prediction))
            scores = scores[reached] @ batches.map(rows_of, reached, len(prediction))
        return Scores(scores)


def edges(layer: Layer, queries: Int[Tensor, "query"], threshold: float | int) -> Float[Tensor, "query key"]:
    """Shares of what these positions have after attention: of every token, and of what was there, at their own."""
    supplied = parts(layer.pattern[:, queries], layer.read, layer.after[queries])
    stayed = proximity(layer.before[queries], layer.after[queries])
    whole = (supplied.sum((0, 2)) + stayed).clamp(min=TINY)
    supplied, stayed = supplied / rearrange(whole, "query -> 1 query 1"), stayed / whole
    own = torch.eye(len(layer.before)).to(supplied)[queries]
    kept = (supplied * (supplied > threshold)).sum(0)
    return shares(kept + rearrange(stayed * (stayed > threshold), "query -> query 1") * own, own)
