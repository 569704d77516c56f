"""Integrated gradients (Sundararajan 2017): gradients along the straight line from a baseline to the embeddings."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from einops import einsum, repeat
from jaxtyping import Float
from torch import Tensor

from heta_lens.baselines.baseline import Baseline, Found
from heta_lens.likelihood import gradients, likelihood
from heta_lens.masking import Masking
from heta_lens.options import COUNT, Batch
from heta_lens.prediction import Prediction
from heta_lens.progress import Work
from heta_lens.scales import Scale

Rule: TypeAlias = Literal["gauss_legendre", "left", "right", "middle", "trapezoid"]


class Quadrature(NamedTuple):
    """Where on [0, 1] a function is looked at, and how much each place counts."""

    nodes: Float[Tensor, "step"]
    weights: Float[Tensor, "step"]


@dataclass(frozen=True, eq=False, kw_only=True)
class IntegratedGradients(Baseline):
    """``a_i = Σ_c (E - E')_ic ∫ ∂g/∂E_ic(E' + α(E - E')) dα``: above 0 speaks for the target.

    All tokens move together, so the scores add up to ``g(E) - g(E')``; ``diagnostics["completeness_gap"]`` is what is
    missing of that.

    - ``mask``: E', where the path begins: ``zero``, ``vocab_mean``, ``mean`` (of the context), ``pad``, a token id or a
      vector
    - ``keep_bos``: a token that only says that the text begins stays as it is, and gets 0
    - ``steps``, ``rule``: at how many points of the path, and by which rule, the integral is
      taken; all weights sum to 1
    - ``scale``: what g is, the target's ``log_prob``, ``prob``, ``logit`` or ``log_odds``
    - ``batch``: points of the path that are run at once
    """

    mask: Masking = "zero"
    keep_bos: bool = True
    steps: Annotated[int, COUNT] = 50
    rule: Rule = "gauss_legendre"
    scale: Scale = "log_prob"
    batch: Batch = "auto"

    name: ClassVar = "integrated_gradients"
    cost: ClassVar = "steps · (F + B)"

    def work(self, prediction: Prediction) -> dict[str, int]:  # noqa: ARG002
        return {"forwards": self.steps + 2, "backwards": self.steps}

    def explain(self, asked: Prediction, work: Work) -> Found:
        start = path_start(asked, self.mask, self.keep_bos)
        change = asked.embeddings - start
        nodes, weights = quadrature(self.rule, self.steps)

        def slopes(some: Float[Tensor, "step"]) -> Float[Tensor, "step pos"]:
            path = start + einsum(some.to(change), change, "step, pos d -> step pos d")
            return einsum(gradients(asked, path, self.scale, work), change, "step pos d, pos d -> step pos")

        batches = asked.prompt.batches(self.batch, len(asked), products=True)
        along = batches.map(slopes, nodes, len(asked))
        scores = weights.to(along) @ along
        ends = likelihood(asked, torch.stack([start, asked.embeddings]), self.scale, partial(work.add, "forwards"))
        return scores, completeness(float(ends[1] - ends[0]), float(scores.sum()))


def completeness(due: float, reached: float) -> dict[str, float]:
    """What scores should add up to, and how far from it they do."""
    return {"completeness_gap": abs(due - reached), "completeness_due": due}


def path_start(asked: Prediction, mask: Masking, keep_bos: bool) -> Float[Tensor, "pos d"]:
    """The embeddings that say nothing."""
    start = repeat(asked.mask_vector(mask), "d -> pos d", pos=len(asked)).clone()
    if keep_bos and asked.begins:
        start[0] = asked.embeddings[0]
    return start


def quadrature(rule: Rule, steps: int) -> Quadrature:
    if rule == "gauss_legendre":
        nodes, weights = np.polynomial.legendre.leggauss(steps)
        return Quadrature(torch.from_numpy((1 + nodes) / 2), torch.from_numpy(weights / 2))
    if rule == "trapezoid":
        ends = torch.ones(steps, dtype=torch.float64)
        ends[[0, -1]] /= 2
        return Quadrature(torch.linspace(0, 1, steps, dtype=torch.float64), ends / ends.sum())
    first = {"left": 0.0, "middle": 0.5, "right": 1.0}[rule]
    places = torch.arange(steps, dtype=torch.float64)
    return Quadrature((places + first) / steps, torch.full_like(places, 1 / steps))
