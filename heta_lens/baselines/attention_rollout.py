"""Attention rollout (Abnar & Zuidema 2020): attention, followed from the last position down to the embeddings."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from heta_lens.baselines.baseline import Baseline, Found
from heta_lens.baselines.reading import check_layer, runs_to_read
from heta_lens.lens import pattern_name
from heta_lens.options import AtLeast
from heta_lens.prediction import Prediction
from heta_lens.progress import Work

Fusion: TypeAlias = Literal["mean", "max", "min"]

FUSIONS: dict[Fusion, Callable[[Tensor], Tensor]] = {
    "mean": lambda pattern: pattern.mean(0),
    "max": lambda pattern: pattern.amax(0),
    "min": lambda pattern: pattern.amin(0),
}


@dataclass(frozen=True, eq=False, kw_only=True)
class AttentionRollout(Baseline):
    """``a`` is the last row of ``Â_L ⋯ Â_1``, ``Â_l = (A_l + I)`` with its rows made to sum to 1: ≥ 0, no direction.

    A_l are the heads of layer l as one. The scores are the same for every target.

    - ``residual``: the ``I``, which keeps a part of each position where it is; without it, the plain product of
      the ``A_l``, whose rows stay as they are (what an attention sink swallows is gone)
    - ``head_fusion``: how heads become one: ``mean``, ``max`` or ``min``
    - ``start_layer``: layers below this one are left out
    """

    residual: bool = True
    head_fusion: Fusion = "mean"
    start_layer: Annotated[int, AtLeast(0, whole=True)] = 0

    name: ClassVar = "attention_rollout"
    cost: ClassVar = "nothing, with attention in the cache; else L F"
    signed: ClassVar = False
    blind: ClassVar = True

    def check(self, prediction: Prediction) -> None:
        check_layer("start_layer", self.start_layer, prediction)

    def work(self, prediction: Prediction) -> dict[str, int]:
        return {"forwards": runs_to_read(prediction, pattern_name, prediction.lens.layers - self.start_layer)}

    def explain(self, asked: Prediction, work: Work) -> Found:
        fused = (
            FUSIONS[self.head_fusion](asked.patterns[layer])
            for layer in reversed(range(self.start_layer, asked.lens.layers))
        )
        scores = walked_down(with_residual(pattern) if self.residual else pattern for pattern in fused)
        work.add("forwards", self.work(asked)["forwards"])
        return scores, {}


def with_residual(pattern: Float[Tensor, "query key"]) -> Float[Tensor, "query key"]:
    kept = pattern + torch.eye(len(pattern)).to(pattern)
    return kept / kept.sum(-1, keepdim=True)


def walked_down(maps: Iterable[Float[Tensor, "query key"]]) -> Float[Tensor, "key"]:
    """The last position's row of the product of these, from the last layer's to the first's."""
    row = None
    for mixed in maps:
        row = mixed[-1] if row is None else row @ mixed
    assert row is not None, "there is at least one layer"
    return row


def shares(rows: Float[Tensor, "query key"], own: Float[Tensor, "query key"]) -> Float[Tensor, "query key"]:
    """Each row divided by its sum; a row of nothing stays with its ``own`` position."""
    sums = rows.sum(-1, keepdim=True)
    return torch.where(sums > 0, rows / torch.where(sums > 0, sums, 1), own)
