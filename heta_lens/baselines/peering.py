"""Peering into the mind (Phukan 2024): which tokens' hidden states are like the target's own."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn.functional import normalize

from heta_lens.baselines.baseline import Baseline, Found, refuse_contrast, refuse_overlong
from heta_lens.baselines.reading import check_layer, full_ids, streams
from heta_lens.options import AtLeast
from heta_lens.prediction import Prediction
from heta_lens.progress import Work


@dataclass(frozen=True, eq=False, kw_only=True)
class Peering(Baseline):
    """``a_i = max(0, cos(q, h_i) - θ)``, of the states h that leave a layer: ≥ 0, no direction.

    Alone among the methods it reads the target as an input, and says so: ``diagnostics["sees_target"]``.

    - ``query``: q is the state of the ``target``, put after the context, or of the ``predictor``, the last token
    - ``layer``: whose states, counted from 0; None is the one in the middle
    - ``threshold``: θ, the ``mean`` of the cosines or a number below 1
    - ``center``: take the context's mean state from all of them first, since most have much in common
    """

    query: Literal["target", "predictor"] = "target"
    layer: Annotated[int | None, AtLeast(0, whole=True)] = None
    threshold: Annotated[float | int | Literal["mean"], AtLeast(-1, below=1.0)] = "mean"
    center: bool = False

    name: ClassVar = "peering"
    cost: ClassVar = "F"
    signed: ClassVar = False
    adapted: ClassVar = "its authors rank spans, by a layer and a threshold they tuned: here each token has a score"

    def check(self, prediction: Prediction) -> None:
        check_layer("layer", self.layer, prediction)
        if self.query == "predictor":
            return
        refuse_contrast(self, prediction)
        refuse_overlong(self, prediction, len(prediction) + 1, "query='predictor' needs no more than the context")

    def work(self, prediction: Prediction) -> dict[str, int]:  # noqa: ARG002
        return {"forwards": 1}

    def explain(self, asked: Prediction, work: Work) -> Found:
        layer, n = asked.lens.layers // 2 if self.layer is None else self.layer, len(asked)
        ids = with_target(asked) if self.query == "target" else full_ids(asked)
        states = streams(asked, ids[None], [layer + 1])[layer + 1][0]
        work.add("forwards", 1)
        query = states[n if self.query == "target" else n - 1]
        common = states[:n].mean(0) if self.center else torch.zeros_like(query)
        alike = normalize(states[:n] - common, dim=-1) @ normalize(query - common, dim=-1)
        threshold = alike.mean() if self.threshold == "mean" else self.threshold
        return (alike - threshold).relu(), {"sees_target": self.query == "target"}


def with_target(asked: Prediction) -> Int[Tensor, "pos"]:
    """The context and the target; what comes after it is left as it is, for hooks that know the whole prompt."""
    target = torch.tensor([asked.target], device=asked.ids.device)
    return torch.cat([asked.ids, target, full_ids(asked)[len(asked) + 1 :]])
