"""Attention weights of the last position in one layer. A control, not an explanation."""

from dataclasses import dataclass
from typing import ClassVar

from heta_lens._util.work_counting import Work
from heta_lens.methods.base import Scores
from heta_lens.methods.layer_reading import chosen_layer, pattern_runs
from heta_lens.methods.shared_options import WithLayer
from heta_lens.prediction.prediction import Prediction


@dataclass(frozen=True, eq=False, kw_only=True)
class AttentionLast(WithLayer):
    """``a_i = mean_h A^{(l,h)}[N, i]``: ≥ 0, no direction, the same for every target."""

    name: ClassVar = "attention_last"
    family: ClassVar = "attention"
    cost: ClassVar = "nothing, with attention in the cache; else F"
    signed: ClassVar = False
    target_agnostic: ClassVar = True

    def work(self, prediction: Prediction) -> dict[str, int]:
        return {"forwards": pattern_runs(prediction, 1)}

    def explain(self, prediction: Prediction, progress: Work) -> Scores:
        pattern = prediction.patterns[chosen_layer(self.layer, prediction)]
        progress.add("forwards", self.work(prediction)["forwards"])
        return Scores(pattern[:, -1].mean(0))
