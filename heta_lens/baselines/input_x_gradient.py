"""Input × gradient: how much the target's likelihood changes along each token's embedding."""

from dataclasses import dataclass
from typing import ClassVar

from einops import einsum

from heta_lens.baselines.baseline import Baseline, Found
from heta_lens.likelihood import gradients
from heta_lens.prediction import Prediction
from heta_lens.progress import Work
from heta_lens.scales import Scale


@dataclass(frozen=True, eq=False, kw_only=True)
class InputXGradient(Baseline):
    """``a_i = Σ_c E_ic ∂g/∂E_ic``: above 0 speaks for the target.

    - ``scale``: what g is, the target's ``log_prob``, ``prob``, ``logit`` or ``log_odds``
    """

    scale: Scale = "log_prob"

    name: ClassVar = "input_x_gradient"
    cost: ClassVar = "F + B"

    def work(self, prediction: Prediction) -> dict[str, int]:  # noqa: ARG002
        return {"forwards": 1, "backwards": 1}

    def explain(self, asked: Prediction, work: Work) -> Found:
        gradient = gradients(asked, asked.embeddings[None], self.scale, work)[0]
        return einsum(asked.embeddings, gradient, "pos d, pos d -> pos"), {}
