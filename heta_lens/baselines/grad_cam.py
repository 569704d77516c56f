"""Grad-CAM (Selvaraju 2017) on the residual stream: features that help the target, and the tokens that have them."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from einops import einsum, reduce
from jaxtyping import Float
from torch import Tensor

from heta_lens.baselines.baseline import Baseline, Found
from heta_lens.baselines.reading import check_layer
from heta_lens.likelihood import gradients
from heta_lens.options import AtLeast
from heta_lens.prediction import Prediction
from heta_lens.progress import Work
from heta_lens.scales import Scale


@dataclass(frozen=True, eq=False, kw_only=True)
class GradCam(Baseline):
    """``a_i = relu(Σ_c w_c H_ic)``, ``w_c = mean_i ∂g/∂H_ic``, H what leaves a block: ≥ 0, what speaks for the target.

    A token that has a helpful feature is scored for it, whether or not the target is read off it there.

    - ``layer``: the block, from 0; None for the one in the middle, ``L // 2``. What leaves the last block reaches the
      prediction from the last token only
    - ``elementwise``: with each token's own gradient in place of the mean (HiResCAM)
    - ``scale``: what g is, the target's ``log_prob``, ``prob``, ``logit`` or ``log_odds``
    """

    layer: Annotated[int | None, AtLeast(0, whole=True)] = None
    elementwise: bool = False
    scale: Scale = "log_prob"

    name: ClassVar = "grad_cam"
    cost: ClassVar = "2 F + B"
    signed: ClassVar = False
    adapted: ClassVar = "made for the feature maps of images: tokens stand for places, the residual stream for features"

    def check(self, prediction: Prediction) -> None:
        check_layer("layer", self.layer, prediction)

    def work(self, prediction: Prediction) -> dict[str, int]:  # noqa: ARG002
        return {"forwards": 2, "backwards": 1}

    def explain(self, asked: Prediction, work: Work) -> Found:
        layer = asked.lens.layers // 2 if self.layer is None else self.layer
        states = asked.states(layer + 1)
        work.add("forwards", 1)
        gradient = gradients(asked, states[None], self.scale, work, layer=layer + 1)[0]
        return evidence(states, gradient, self.elementwise).relu(), {"layer": layer}


def evidence(
    states: Float[Tensor, "pos d"], gradient: Float[Tensor, "pos d"], elementwise: bool
) -> Float[Tensor, "pos"]:
    """What each token's features say for the target."""
    if elementwise:
        return einsum(states, gradient, "pos d, pos d -> pos")
    return einsum(states, reduce(gradient, "pos d -> d", "mean"), "pos d, d -> pos")
