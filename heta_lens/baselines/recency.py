"""Recency: the nearer to the prediction, the higher the score."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from heta_lens.baselines.baseline import Baseline, Found
from heta_lens.prediction import Prediction
from heta_lens.progress import Work


@dataclass(frozen=True, eq=False, kw_only=True)
class Recency(Baseline):
    """``a_i = 1 / (N - i + 1)``, counted from 1: the last token gets 1, the one before it 1/2."""

    name: ClassVar = "recency"
    cost: ClassVar = "nothing"
    signed: ClassVar = False
    blind: ClassVar = True

    def work(self, prediction: Prediction) -> dict[str, int]:  # noqa: ARG002
        return {}

    def explain(self, asked: Prediction, work: Work) -> Found:  # noqa: ARG002
        return 1 / torch.arange(len(asked), 0, -1).to(asked.embeddings), {}
