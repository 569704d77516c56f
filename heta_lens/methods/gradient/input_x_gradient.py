"""Input × gradient: each token's embedding times the gradient of the target's likelihood."""

from dataclasses import dataclass
from typing import ClassVar

from einops import einsum

from heta_lens._util.work_counting import Work
from heta_lens.methods.base import Scores
from heta_lens.methods.shared_options import WithScale
from heta_lens.prediction.prediction import Prediction
from heta_lens.prediction.readout import gradients


@dataclass(frozen=True, eq=False, kw_only=True)
class InputXGradient(WithScale):
    """``a_i = Σ_c E_ic ∂g/∂E_ic``: above 0 speaks for the target."""

    name: ClassVar = "input_x_gradient"
    paper: ClassVar[str] = (
        "Shrikumar, Greenside & Kundaje, Learning important features through propagating activation differences, "
        "ICML 2017, arXiv:1704.02685"
    )
    family: ClassVar = "gradient"
    differentiates: ClassVar = True
    cost: ClassVar = "F + B"

    def work(self, prediction: Prediction) -> dict[str, int]:  # noqa: ARG002
        return {"forwards": 1, "backwards": 1}

    def explain(self, prediction: Prediction, progress: Work) -> Scores:
        gradient = gradients(prediction, prediction.embeddings[None], self.scale, progress)[0]
        return Scores(einsum(prediction.embeddings, gradient, "pos d, pos d -> pos"))
