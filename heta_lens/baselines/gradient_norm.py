"""Gradient norm: how fast the target's likelihood changes with each token's embedding."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from heta_lens.baselines.baseline import Baseline, Found
from heta_lens.likelihood import gradients
from heta_lens.prediction import Prediction
from heta_lens.progress import Work
from heta_lens.scales import Scale


@dataclass(frozen=True, eq=False, kw_only=True)
class GradientNorm(Baseline):
    """``a_i = ‖∂g/∂E_i‖``: ≥ 0, no direction.

    - ``order``: of the norm, 2 or 1
    - ``scale``: what g is, the target's ``log_prob``, ``prob``, ``logit`` or ``log_odds``
    """

    order: Literal[2, 1] = 2
    scale: Scale = "log_prob"

    name: ClassVar = "gradient_norm"
    cost: ClassVar = "F + B"
    signed: ClassVar = False

    def work(self, prediction: Prediction) -> dict[str, int]:  # noqa: ARG002
        return {"forwards": 1, "backwards": 1}

    def explain(self, asked: Prediction, work: Work) -> Found:
        gradient = gradients(asked, asked.embeddings[None], self.scale, work)[0]
        return gradient.norm(p=self.order, dim=-1), {}
