"""fAML (Barkan 2024), attributive masking learned for one prediction: the sparsest mask that preserves it."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import softplus

from heta_lens._util.options import COUNT, AtLeast
from heta_lens._util.target_kinds import Kind, Side, members, sides
from heta_lens._util.work_counting import Work, count
from heta_lens.methods.base import Scores
from heta_lens.methods.gradient.integrated_gradients import path_start
from heta_lens.methods.shared_options import WithBos, WithMask
from heta_lens.prediction.masking import Masking
from heta_lens.prediction.prediction import Prediction

AT_FIRST = 2.0  # the initial logit of every token's mask, which keeps most of it


@dataclass(frozen=True, eq=False, kw_only=True)
class Faml(WithMask, WithBos):
    """``a = m = sigmoid(θ)``, ≥ 0: how much of each token the prediction P needs. θ minimises the weighted sum of

    - ``CE(P, P of mE + (1-m)E')`` (``fidelity``): what is kept predicts the same
    - ``mean_i -log(1 - m_i)`` (``sparsity``): little is kept
    - ``-log(1 - p(target))`` of ``(1-m)E + mE'`` (``complement``): the rest does not predict the target

    E' are the masked embeddings. Options beside these three weights:

    - ``penalty``: on what is kept, ``bce`` as above, or ``l1``, ``mean_i m_i``
    - ``steps``, ``rate``: of Adam, from θ = 2; the last θ counts
    """

    fidelity: Annotated[float | int, AtLeast(0)] = 1.0
    sparsity: Annotated[float | int, AtLeast(0)] = 0.3
    complement: Annotated[float | int, AtLeast(0)] = 0.3
    penalty: Literal["bce", "l1"] = "bce"
    steps: Annotated[int, COUNT] = 200
    rate: Annotated[float | int, AtLeast(1e-6)] = 0.05
    mask: Masking = "pad"

    name: ClassVar = "faml"
    paper: ClassVar[str] = "Barkan et al., LLM explainability via attributive masking learning, Findings of EMNLP 2024"
    family: ClassVar = "gradient"
    differentiates: ClassVar = True
    cost: ClassVar = "2 steps · (F + B)"
    scaled_by: ClassVar = ("steps",)
    signed: ClassVar = False
    adapted: ClassVar = "the mask is learned for one prediction, where its authors first train a network on a task"

    @property
    def ignores_target(self) -> bool:
        return not self.complement

    @property
    def takes(self) -> frozenset[Kind]:
        return super().takes & {"token", "set"}

    def work(self, prediction: Prediction) -> dict[str, int]:  # noqa: ARG002
        return {"forwards": 2 * self.steps, "backwards": 2 * self.steps}

    def explain(self, prediction: Prediction, progress: Work) -> Scores:
        reference = path_start(prediction, self.mask, self.keep_bos)
        theta = torch.full_like(reference[:, 0], AT_FIRST).requires_grad_()
        adam = torch.optim.Adam([theta], lr=float(self.rate))
        losses: list[float] = []
        for _ in range(self.steps):
            loss = self.loss(prediction, reference, theta)
            (theta.grad,) = torch.autograd.grad(loss, theta)
            adam.step()
            losses.append(float(loss.detach()))
            count("backwards", 2)  # for both copies in one call
            progress.add("forwards", 2)
            progress.add("backwards", 2)
        maskable = (prediction.embeddings != reference).any(-1)
        return Scores(theta.detach().sigmoid() * maskable, {"first_loss": losses[0], "last_loss": losses[-1]})

    def loss(
        self, prediction: Prediction, reference: Float[Tensor, "pos d"], theta: Float[Tensor, "pos"]
    ) -> Float[Tensor, ""]:
        (target,) = sides(prediction.target)
        kept = rearrange(theta.sigmoid(), "pos -> pos 1")
        change = prediction.embeddings - reference
        both = torch.stack([reference + kept * change, prediction.embeddings - kept * change])
        like, unlike = prediction.log_probs_from(0)(both)
        entropy = -(prediction.log_probs.exp() * like).sum()
        kept_size = softplus(theta) if self.penalty == "bce" else theta.sigmoid()
        still_predicted = -log_others(unlike, target)
        return self.fidelity * entropy + self.sparsity * kept_size.mean() + self.complement * still_predicted


def log_others(log_probs: Float[Tensor, "vocab"], tokens: Side) -> Float[Tensor, ""]:
    """``log(1 - p)``, without loss of precision where p is nearly 1."""
    others = torch.ones_like(log_probs, dtype=torch.bool)
    others[members(tokens)] = False
    return log_probs[others].logsumexp(0)
