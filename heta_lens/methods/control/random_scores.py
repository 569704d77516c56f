"""Random scores: the level that any method has to beat."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from heta_lens._util.work_counting import Work
from heta_lens.methods.base import Scores
from heta_lens.methods.shared_options import WithSeed
from heta_lens.prediction.prediction import Prediction, prompt_generator


@dataclass(frozen=True, eq=False, kw_only=True)
class RandomScores(WithSeed):
    """``a = softmax(u)``, u uniform on [0, 1]: ≥ 0, no direction."""

    name: ClassVar = "random"
    family: ClassVar = "control"
    cost: ClassVar = "nothing"
    signed: ClassVar = False
    target_agnostic: ClassVar = True

    def work(self, prediction: Prediction) -> dict[str, int]:  # noqa: ARG002
        return {}

    def explain(self, prediction: Prediction, progress: Work) -> Scores:  # noqa: ARG002
        drawn = prompt_generator(self.seed, prediction.ids).random(len(prediction))
        return Scores(torch.from_numpy(drawn).softmax(0).to(prediction.embeddings))
