"""Grad-CAM (Selvaraju 2017) on the residual stream: features that raise the target, and the tokens that have them."""

from dataclasses import dataclass
from typing import ClassVar

from einops import einsum, reduce
from jaxtyping import Float
from torch import Tensor

from heta_lens._util.work_counting import Work
from heta_lens.methods.base import Scores
from heta_lens.methods.shared_options import WithLayer, WithScale
from heta_lens.prediction.prediction import Prediction
from heta_lens.prediction.readout import gradients


@dataclass(frozen=True, eq=False, kw_only=True)
class GradCam(WithLayer, WithScale):
    """``a_i = relu(Σ_c w_c H_ic)``, ``w_c = mean_i ∂g/∂H_ic``, H the output of a block: ≥ 0, evidence for the target.

    A token with a helpful feature gets a score for it, whether or not the prediction reads it there.

    - ``layer``: which block, counted from 0; None is the middle one, ``L // 2``. The last block's output affects the
      prediction through the last token only
    - ``elementwise``: use each token's own gradient instead of the mean (HiResCAM)
    """

    elementwise: bool = False

    name: ClassVar = "grad_cam"
    paper: ClassVar[str] = (
        "Selvaraju et al., Grad-CAM: visual explanations from deep networks via gradient-based localization, ICCV "
        "2017, arXiv:1610.02391"
    )
    family: ClassVar = "gradient"
    differentiates: ClassVar = True
    cost: ClassVar = "2 F + B"
    signed: ClassVar = False
    adapted: ClassVar = "made for the feature maps of images: tokens stand for places, the residual stream for features"

    def work(self, prediction: Prediction) -> dict[str, int]:  # noqa: ARG002
        return {"forwards": 2, "backwards": 1}

    def explain(self, prediction: Prediction, progress: Work) -> Scores:
        layer = prediction.adapter.layers // 2 if self.layer is None else self.layer
        states = prediction.states(layer + 1)
        progress.add("forwards", 1)
        gradient = gradients(prediction, states[None], self.scale, progress, layer=layer + 1)[0]
        return Scores(evidence(states, gradient, self.elementwise).relu(), {"layer": layer})


def evidence(
    states: Float[Tensor, "pos d"], gradient: Float[Tensor, "pos d"], elementwise: bool
) -> Float[Tensor, "pos"]:
    """How much each token's features raise the target."""
    if elementwise:
        return einsum(states, gradient, "pos d, pos d -> pos")
    return einsum(states, reduce(gradient, "pos d -> d", "mean"), "pos d, d -> pos")
