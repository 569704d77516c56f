"""Attention of one layer: what the last position looks at. A control, not an explanation."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from heta_lens.baselines.baseline import Baseline, Found
from heta_lens.baselines.reading import check_layer, chosen_layer, runs_to_read
from heta_lens.lens import pattern_name
from heta_lens.options import AtLeast
from heta_lens.prediction import Prediction
from heta_lens.progress import Work


@dataclass(frozen=True, eq=False, kw_only=True)
class AttentionLast(Baseline):
    """``a_i = mean_h A^{(l,h)}[N, i]``: ≥ 0, no direction, the same for every target.

    - ``layer``: l, counted from 0; None is the last
    """

    layer: Annotated[int | None, AtLeast(0, whole=True)] = None

    name: ClassVar = "attention_last"
    cost: ClassVar = "nothing, with attention in the cache; else F"
    signed: ClassVar = False
    blind: ClassVar = True

    def check(self, prediction: Prediction) -> None:
        check_layer("layer", self.layer, prediction)

    def work(self, prediction: Prediction) -> dict[str, int]:
        return {"forwards": runs_to_read(prediction, pattern_name, 1)}

    def explain(self, asked: Prediction, work: Work) -> Found:
        pattern = asked.patterns[chosen_layer(self.layer, asked)]
        work.add("forwards", self.work(asked)["forwards"])
        return pattern[:, -1].mean(0), {}
