"""Gradient norm: how strongly the target's likelihood changes with each token's embedding."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from heta_lens._util.work_counting import Work
from heta_lens.methods.base import Scores
from heta_lens.methods.shared_options import WithScale
from heta_lens.prediction.prediction import Prediction
from heta_lens.prediction.readout import gradients


@dataclass(frozen=True, eq=False, kw_only=True)
class GradientNorm(WithScale):
    """``a_i = ‖∂g/∂E_i‖``: ≥ 0, no direction.

    - ``order``: of the norm, 2 or 1
    """

    order: Literal[2, 1] = 2

    name: ClassVar = "gradient_norm"
    paper: ClassVar[str] = (
        "Simonyan, Vedaldi & Zisserman, Deep inside convolutional networks: visualising image classification "
        "models and saliency maps, 2013, arXiv:1312.6034"
    )
    family: ClassVar = "gradient"
    differentiates: ClassVar = True
    cost: ClassVar = "F + B"
    signed: ClassVar = False

    def work(self, prediction: Prediction) -> dict[str, int]:  # noqa: ARG002
        return {"forwards": 1, "backwards": 1}

    def explain(self, prediction: Prediction, progress: Work) -> Scores:
        gradient = gradients(prediction, prediction.embeddings[None], self.scale, progress)[0]
        return Scores(gradient.norm(p=self.order, dim=-1))
