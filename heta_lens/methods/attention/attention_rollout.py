"""Attention rollout (Abnar & Zuidema 2020): attention multiplied through the layers, from the last position down."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from heta_lens._util.options import AtLeast
from heta_lens._util.work_counting import Work
from heta_lens.methods.base import Method, Scores
from heta_lens.methods.layer_reading import check_layer, pattern_runs
from heta_lens.prediction.prediction import Prediction

Fusion: TypeAlias = Literal["mean", "max", "min"]

FUSIONS: dict[Fusion, Callable[[Tensor], Tensor]] = {
    "mean": lambda pattern: pattern.mean(0),
    "max": lambda pattern: pattern.amax(0),
    "min": lambda pattern: pattern.amin(0),
}


@dataclass(frozen=True, eq=False, kw_only=True)
class AttentionRollout(Method):
    """``a`` is the last row of ``Â_L ⋯ Â_1``, ``Â_l = A_l + I`` with rows normalised to sum to 1: ≥ 0, no direction.

    A_l fuses the heads of layer l. The scores are the same for every target.

    - ``residual``: add the ``I``, which keeps a part of each position where it is; without it, the plain product of
      the ``A_l``, whose rows are not normalised (weight in an attention sink is lost)
    - ``head_fusion``: how heads are fused: ``mean``, ``max`` or ``min``
    - ``start_layer``: leave out the layers below this one
    """

    residual: bool = True
    head_fusion: Fusion = "mean"
    start_layer: Annotated[int, AtLeast(0, whole=True)] = 0

    name: ClassVar = "attention_rollout"
    paper: ClassVar[str] = "Abnar & Zuidema, Quantifying attention flow in transformers, ACL 2020, arXiv:2005.00928"
    family: ClassVar = "attention"
    cost: ClassVar = "nothing, with attention in the cache; else 2 F"
    signed: ClassVar = False
    target_agnostic: ClassVar = True

    def check(self, prediction: Prediction) -> None:
        super().check(prediction)
        check_layer("start_layer", self.start_layer, prediction)

    def work(self, prediction: Prediction) -> dict[str, int]:
        return {"forwards": pattern_runs(prediction, prediction.adapter.layers - self.start_layer)}

    def explain(self, prediction: Prediction, progress: Work) -> Scores:
        patterns = prediction.patterns
        fused = (
            FUSIONS[self.head_fusion](patterns[layer])
            for layer in reversed(range(self.start_layer, prediction.adapter.layers))
        )
        scores = walked_down(with_residual(pattern) if self.residual else pattern for pattern in fused)
        progress.add("forwards", self.work(prediction)["forwards"])
        return Scores(scores)


def with_residual(pattern: Float[Tensor, "query key"]) -> Float[Tensor, "query key"]:
    kept = pattern + torch.eye(len(pattern)).to(pattern)
    return kept / kept.sum(-1, keepdim=True)


def walked_down(maps: Iterable[Float[Tensor, "query key"]]) -> Float[Tensor, "key"]:
    """The last position's row of the product of these maps, which come from the last layer to the first."""
    row = None
    for mixed in maps:
        row = mixed[-1] if row is None else row @ mixed
    assert row is not None, "there is at least one layer"
    return row


def shares(rows: Float[Tensor, "query key"], own: Float[Tensor, "query key"]) -> Float[Tensor, "query key"]:
    """Each row divided by its sum; a row of zeros keeps all weight at its ``own`` position."""
    sums = rows.sum(-1, keepdim=True)
    return torch.where(sums > 0, rows / torch.where(sums > 0, sums, 1), own)
