"""Peering into the mind (Phukan 2024): the similarity of each token's hidden state to the target's."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch.nn.functional import normalize

from heta_lens._util.options import AtLeast
from heta_lens._util.work import Work
from heta_lens.methods.base import ONE_TOKEN, Scores, WithLayer, refuse_overlong
from heta_lens.prediction.prediction import Prediction


@dataclass(frozen=True, eq=False, kw_only=True)
class Peering(WithLayer):
    """Peering into the mind (Phukan 2024): the similarity of every token's hidden state to the target's.

    ``a_i = max(0, cos(q, h_i) - θ)``, of the states h that leave a layer: ≥ 0, no direction.

    This is the only method that reads the target as an input, as ``diagnostics["sees_target"]`` says.

    - ``query``: q is the state of the ``target``, appended to the context, or of the ``predictor``, the last token
    - ``layer``: the layer to read, counted from 0; None is the middle one
    - ``threshold``: θ, the ``mean`` of the cosines or a number below 1
    """

    query: Literal["target", "predictor"] = "target"
    threshold: Annotated[float | int | Literal["mean"], AtLeast(-1, below=1.0)] = "mean"

    name: ClassVar = "peering"
    paper: ClassVar[str] = (
        "Phukan et al., Peering into the mind of language models: an approach for attribution in contextual "
        "question answering, Findings of ACL 2024, arXiv:2405.17980"
    )
    family: ClassVar = "hidden_states"
    cost: ClassVar = "F"
    signed: ClassVar = False
    kinds: ClassVar = ONE_TOKEN
    adapted: ClassVar = "the authors rank spans, with a tuned layer and threshold; here each token has a score"

    @property
    def ignores_target(self) -> bool:
        return self.query == "predictor"

    def check(self, prediction: Prediction) -> None:
        super().check(prediction)
        if self.query == "target":
            refuse_overlong(self, prediction, len(prediction) + 1, "query='predictor' needs no more than the context")

    def work(self, prediction: Prediction) -> Work:  # noqa: ARG002
        return Work(forwards=1)

    def explain(self, prediction: Prediction) -> Scores:
        layer, n = prediction.layers // 2 if self.layer is None else self.layer, len(prediction)
        ids, sees_target = prediction.whole_ids, self.query == "target"
        if sees_target:  # the rest of the prompt follows, for hooks that expect the whole prompt
            ids = torch.cat([prediction.ids, ids.new_tensor([prediction.target]), ids[n + 1 :]])
        states = prediction.streams(ids[None], [layer + 1])[layer + 1][0]
        query = states[n if sees_target else n - 1]
        similarity = normalize(states[:n], dim=-1) @ normalize(query, dim=-1)
        threshold = similarity.mean() if self.threshold == "mean" else self.threshold
        return Scores((similarity - threshold).relu(), {"sees_target": sees_target})
