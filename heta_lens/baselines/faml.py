"""fAML (Barkan 2024), attributive masking learned for one prediction: the mask that keeps it, and as little else."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import softplus

from heta_lens.baselines.baseline import Baseline, Found, refuse_contrast
from heta_lens.baselines.integrated_gradients import path_start
from heta_lens.masking import Masking
from heta_lens.options import COUNT, AtLeast
from heta_lens.prediction import Prediction
from heta_lens.progress import Work, count

AT_FIRST = 2.0  # the logit of every token's mask, which lets most of it through


@dataclass(frozen=True, eq=False, kw_only=True)
class Faml(Baseline):
    """``a = m = sigmoid(θ)``, ≥ 0: how much of each token the prediction P needs. θ minimises the weighted sum of

    - ``CE(P, P of mE + (1-m)E')`` (``fidelity``): what is kept predicts the same
    - ``mean_i -log(1 - m_i)`` (``sparsity``): little is kept
    - ``-log(1 - p(target))`` of ``(1-m)E + mE'`` (``complement``): the target does not follow from what is left

    Options beside these three weights:

    - ``penalty``: of what is kept, ``bce`` as above, or ``l1``, ``mean_i m_i``
    - ``steps``, ``rate``: of Adam, from θ = 2; the last θ counts
    - ``mask``: E': ``pad`` (which without one is the tokenizer's end of text), ``zero``, ``vocab_mean``, ``mean`` (of
      the context), a token id or a vector
    - ``keep_bos``: a token that only says that the text begins is never masked, and gets 0
    """

    fidelity: Annotated[float | int, AtLeast(0)] = 1.0
    sparsity: Annotated[float | int, AtLeast(0)] = 0.3
    complement: Annotated[float | int, AtLeast(0)] = 0.3
    penalty: Literal["bce", "l1"] = "bce"
    steps: Annotated[int, COUNT] = 200
    rate: Annotated[float | int, AtLeast(1e-6)] = 0.05
    mask: Masking = "pad"
    keep_bos: bool = True

    name: ClassVar = "faml"
    cost: ClassVar = "2 steps · (F + B)"
    signed: ClassVar = False
    adapted: ClassVar = "the mask is learned for one prediction, where its authors first train a network on a task"

    def check(self, prediction: Prediction) -> None:
        super().check(prediction)
        refuse_contrast(self, prediction)

    def work(self, prediction: Prediction) -> dict[str, int]:  # noqa: ARG002
        return {"forwards": 2 * self.steps, "backwards": 2 * self.steps}

    def explain(self, asked: Prediction, work: Work) -> Found:
        reference = path_start(asked, self.mask, self.keep_bos)
        theta = torch.full_like(reference[:, 0], AT_FIRST).requires_grad_()
        adam = torch.optim.Adam([theta], lr=float(self.rate))
        losses: list[float] = []
        for _ in range(self.steps):
            loss = self.loss(asked, reference, theta)
            (theta.grad,) = torch.autograd.grad(loss, theta)
            adam.step()
            losses.append(float(loss.detach()))
            count("backwards", 2)  # of both copies in one
            work.add("forwards", 2)
            work.add("backwards", 2)
        can_go = (asked.embeddings != reference).any(-1)
        return theta.detach().sigmoid() * can_go, {"first_loss": losses[0], "last_loss": losses[-1]}

    def loss(
        self, asked: Prediction, reference: Float[Tensor, "pos d"], theta: Float[Tensor, "pos"]
    ) -> Float[Tensor, ""]:
        assert isinstance(asked.target, int)  # no contrast
        kept = rearrange(theta.sigmoid(), "pos -> pos 1")
        change = asked.embeddings - reference
        both = torch.stack([reference + kept * change, asked.embeddings - kept * change])
        like, unlike = asked.log_probs_from(0)(both)
        entropy = -(asked.log_probs.exp() * like).sum()
        little = softplus(theta) if self.penalty == "bce" else theta.sigmoid()
        missed = -log_others(unlike, asked.target)
        return self.fidelity * entropy + self.sparsity * little.mean() + self.complement * missed


def log_others(log_probs: Float[Tensor, "vocab"], token: int) -> Float[Tensor, ""]:
    """``log(1 - p)``, to the last digit also where p is nearly 1."""
    return torch.cat([log_probs[:token], log_probs[token + 1 :]]).logsumexp(0)
