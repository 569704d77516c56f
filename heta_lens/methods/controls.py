"""Controls that methods have to beat: random scores and recency."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from heta_lens._util.work import Work
from heta_lens.methods.base import Method, Scores, WithSeed
from heta_lens.prediction.prediction import Prediction, prompt_generator


@dataclass(frozen=True, eq=False, kw_only=True)
class Control(Method):
    family: ClassVar = "control"
    signed: ClassVar = False
    target_agnostic: ClassVar = True

    def work(self, prediction: Prediction) -> Work:  # noqa: ARG002
        return Work()


@dataclass(frozen=True, eq=False, kw_only=True)
class RandomScores(Control, WithSeed):
    """Random scores: the level that methods have to beat.

    ``a = softmax(u)``, u uniform on [0, 1]: ≥ 0, no direction."""

    name: ClassVar = "random"
    cost: ClassVar = "nothing"

    def explain(self, prediction: Prediction) -> Scores:
        drawn = prompt_generator(self.seed, prediction.ids).random(len(prediction))
        return Scores(torch.from_numpy(drawn).softmax(0).to(prediction.embeddings))


@dataclass(frozen=True, eq=False, kw_only=True)
class Recency(Control):
    """Recency: the closer to the prediction, the higher the score.

    ``a_i = 1 / (N - i + 1)``, counted from 1: the last token gets 1, the one before it 1/2."""

    name: ClassVar = "recency"
    cost: ClassVar = "nothing"

    def explain(self, prediction: Prediction) -> Scores:
        return Scores(1 / torch.arange(len(prediction), 0, -1).to(prediction.embeddings))
