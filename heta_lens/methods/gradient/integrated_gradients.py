"""Integrated gradients (Sundararajan 2017): gradients along the straight line from a baseline to the embeddings."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from einops import einsum, repeat
from jaxtyping import Float
from torch import Tensor

from heta_lens._util.options import COUNT
from heta_lens._util.work_counting import Work
from heta_lens.methods.base import Scores
from heta_lens.methods.shared_options import WithBatch, WithBos, WithMask, WithScale
from heta_lens.prediction.masking import Masking
from heta_lens.prediction.prediction import Prediction
from heta_lens.prediction.readout import gradients, likelihood

Rule: TypeAlias = Literal["gauss_legendre", "left", "right", "middle", "trapezoid"]


class Quadrature(NamedTuple):
    """Points on [0, 1] at which a function is evaluated, and their weights."""

    nodes: Float[Tensor, "step"]
    weights: Float[Tensor, "step"]


@dataclass(frozen=True, eq=False, kw_only=True)
class PathIntegral(WithMask, WithBos, WithScale, WithBatch):
    """- ``steps``, ``rule``: the number of points on the path, and the quadrature rule; its weights sum to 1"""

    steps: Annotated[int, COUNT] = 50
    rule: Rule = "gauss_legendre"


@dataclass(frozen=True, eq=False, kw_only=True)
class IntegratedGradients(PathIntegral):
    """``a_i = Σ_c (E - E')_ic ∫ ∂g/∂E_ic(E' + α(E - E')) dα``: above 0 speaks for the target.

    The path begins at E', where every token is masked. All tokens move together, so the scores add up to
    ``g(E) - g(E')``; ``diagnostics["completeness_gap"]`` is the error of that.
    """

    name: ClassVar = "integrated_gradients"
    paper: ClassVar[str] = (
        "Sundararajan, Taly & Yan, Axiomatic attribution for deep networks, ICML 2017, arXiv:1703.01365"
    )
    family: ClassVar = "gradient"
    differentiates: ClassVar = True
    cost: ClassVar = "steps · (F + B)"
    scaled_by: ClassVar = ("steps",)

    def work(self, prediction: Prediction) -> dict[str, int]:  # noqa: ARG002
        return {"forwards": self.steps + 2, "backwards": self.steps}

    def explain(self, prediction: Prediction, progress: Work) -> Scores:
        start = path_start(prediction, self.mask, self.keep_bos)
        change = prediction.embeddings - start
        nodes, weights = quadrature(self.rule, self.steps)

        def slopes(alphas: Float[Tensor, "step"]) -> Float[Tensor, "step pos"]:
            path = start + einsum(alphas.to(change), change, "step, pos d -> step pos d")
            return einsum(gradients(prediction, path, self.scale, progress), change, "step pos d, pos d -> step pos")

        batches = prediction.prompt.batches(self.batch, len(prediction), products=True)
        along = batches.map(slopes, nodes, len(prediction))
        scores = weights.to(along) @ along
        ends = likelihood(
            prediction, torch.stack([start, prediction.embeddings]), self.scale, partial(progress.add, "forwards")
        )
        return Scores(scores, completeness(float(ends[1] - ends[0]), float(scores.sum())))


def completeness(due: float, reached: float) -> dict[str, float]:
    """What the scores should add up to, and by how much they miss it."""
    return {"completeness_gap": abs(due - reached), "completeness_due": due}


def path_start(prediction: Prediction, mask: Masking, keep_bos: bool) -> Float[Tensor, "pos d"]:
    """The embeddings where the path begins: every token masked."""
    start = repeat(prediction.mask_vector(mask), "d -> pos d", pos=len(prediction)).clone()
    if keep_bos and prediction.begins:
        start[0] = prediction.embeddings[0]
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
