"""Random scores: what any method has to beat."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from heta_lens.baselines.baseline import Baseline, Found
from heta_lens.options import Seed
from heta_lens.prediction import Prediction
from heta_lens.progress import Work


@dataclass(frozen=True, eq=False, kw_only=True)
class RandomScores(Baseline):
    """``a = softmax(u)``, u uniform on [0, 1]: ≥ 0, no direction.

    - ``seed``: where u comes from
    """

    seed: Seed = 0

    name: ClassVar = "random"
    cost: ClassVar = "nothing"
    signed: ClassVar = False
    blind: ClassVar = True

    def work(self, prediction: Prediction) -> dict[str, int]:  # noqa: ARG002
        return {}

    def explain(self, asked: Prediction, work: Work) -> Found:  # noqa: ARG002
        drawn = np.random.default_rng([self.seed, len(asked)]).random(len(asked))
        return torch.from_numpy(drawn).softmax(0).to(asked.embeddings), {}
