"""Recency: the closer to the prediction, the higher the score."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from heta_lens._util.work_counting import Work
from heta_lens.methods.base import Method, Scores
from heta_lens.prediction.prediction import Prediction


@dataclass(frozen=True, eq=False, kw_only=True)
class Recency(Method):
    """``a_i = 1 / (N - i + 1)``, counted from 1: the last token gets 1, the one before it 1/2."""

    name: ClassVar = "recency"
    family: ClassVar = "control"
    cost: ClassVar = "nothing"
    signed: ClassVar = False
    target_agnostic: ClassVar = True

    def work(self, prediction: Prediction) -> dict[str, int]:  # noqa: ARG002
        return {}

    def explain(self, prediction: Prediction, progress: Work) -> Scores:  # noqa: ARG002
        return Scores(1 / torch.arange(len(prediction), 0, -1).to(prediction.embeddings))
