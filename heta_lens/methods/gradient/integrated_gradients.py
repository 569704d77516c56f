"""Integrated gradients (Sundararajan 2017): gradients along the straight line from a baseline to the embeddings."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from einops import einsum, repeat
from jaxtyping import Float
from torch import Tensor

from heta_lens._util.options import COUNT
from heta_lens._util.work_counting import Work
from heta_lens.attribution import Attribution
from heta_lens.methods.base import Scores
from heta_lens.methods.shared_options import WithBatch, WithBos, WithScale
from heta_lens.model.norms_and_neurons import ignores_size
from heta_lens.prediction.masking import Mask, Masking, check_mask
from heta_lens.prediction.prediction import Prediction
from heta_lens.prediction.readout import likelihood, values_and_gradients

FEW = 8  # steps, below which more of them are the first thing to try

Rule: TypeAlias = Literal["gauss_legendre", "left", "right", "middle", "trapezoid"]


class Quadrature(NamedTuple):
    """Points on [0, 1] at which a function is evaluated, and their weights."""

    nodes: Float[Tensor, "step"]
    weights: Float[Tensor, "step"]


@dataclass(frozen=True, eq=False, kw_only=True)
class PathIntegral(WithBos, WithScale, WithBatch):
    """
    - ``mask``: the embedding where a path begins: ``zero``, ``mean`` (of the context), ``vocab_mean``, ``pad``,
      ``space``, a token id or a vector; None takes ``zero``, or ``space`` (without one, ``mean``) where a norm is the
      first to read the embeddings (Llama, Gemma, GPT-J): next to zero it makes any integral useless
    - ``steps``, ``rule``: the number of points on the path, and the quadrature rule; its weights sum to 1
    """

    mask: Annotated[Mask | None, check_mask] = None
    steps: Annotated[int, COUNT] = 50
    rule: Rule = "gauss_legendre"

    def __call__(self, prediction: Prediction) -> Attribution:
        """Explain a prediction; ``options`` of the result name the mask that was taken."""
        if self.mask is not None:
            return super().__call__(prediction)
        self.check(prediction)  # here it is still known which options were given
        return replace(self, mask=self.mask_for(prediction))(prediction)

    def mask_for(self, prediction: Prediction) -> Mask:
        if self.mask is not None:
            return self.mask
        if not ignores_size(prediction.adapter):
            return "zero"
        return "mean" if prediction.adapter.tokenizer.blank is None else "space"

    def check(self, prediction: Prediction) -> None:
        super().check(prediction)
        begin = prediction.mask_vector(self.mask_for(prediction))
        if self.rule in ("left", "trapezoid") and not begin.any() and ignores_size(prediction.adapter):
            raise ValueError(
                f"rule={self.rule!r} takes the slope where the path begins, and this model, whose first norm divides "
                "by the embeddings' size, has none at zero: give mask='space', or rule='gauss_legendre'"
            )


@dataclass(frozen=True, eq=False, kw_only=True)
class IntegratedGradients(PathIntegral):
    """``a_i = Σ_c (E - E')_ic ∫ ∂g/∂E_ic(E' + α(E - E')) dα``: above 0 speaks for the target.

    The path begins at E', where every token is masked. All tokens move together, so the scores add up to
    ``g(E) - g(E')``; ``diagnostics["completeness_gap"]`` is the error of that, and ``"completeness_cause"`` what to
    change where it is large: ``steps``, or the ``mask``.
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
        start = path_start(prediction, self.mask_for(prediction), self.keep_bos)
        change = prediction.embeddings - start
        nodes, weights = quadrature(self.rule, self.steps)

        def along(alphas: Float[Tensor, "step"]) -> Float[Tensor, "step pos_and_value"]:
            path = start + einsum(alphas.to(change), change, "step, pos d -> step pos d")
            values, slopes = values_and_gradients(prediction, path, self.scale, progress)
            return torch.cat([einsum(slopes, change, "step pos d, pos d -> step pos"), values[:, None]], 1)

        batches = prediction.prompt.batches(self.batch, len(prediction), products=True)
        found = batches.map(along, nodes, len(prediction))
        slopes, values = found[:, :-1], found[:, -1]
        scores = weights.to(slopes) @ slopes
        ends = likelihood(
            prediction, torch.stack([start, prediction.embeddings]), self.scale, partial(progress.add, "forwards")
        )
        cause = completeness_cause(nodes, values, slopes.sum(1), ends)
        return Scores(scores, {**completeness(float(ends[1] - ends[0]), float(scores.sum())), **cause})


def completeness(due: float, reached: float) -> dict[str, float]:
    """What the scores should add up to, and by how much they miss it."""
    return {"completeness_gap": abs(due - reached), "completeness_due": due}


def completeness_cause(
    nodes: Float[Tensor, "step"],
    values: Float[Tensor, "step"],
    slopes: Float[Tensor, "step"],
    ends: Float[Tensor, "2"],
) -> dict[str, str]:
    """Whether more steps would resolve the path, or another mask is needed, because they would not.

    Steps resolve a path if they predict g from each to the next at least twice as well as every other step does.
    """
    nodes, values, slopes = nodes.cpu(), values.detach().double().cpu(), slopes.detach().double().cpu()
    places = torch.cat([torch.zeros(1), nodes, torch.ones(1)])
    reached = torch.cat([ends[:1].cpu(), values, ends[1:].cpu()])
    rises = torch.cat([slopes[:1], slopes, slopes[-1:]])
    fine, coarse = (_missed(places[::by], reached[::by], rises[::by]) for by in (1, 2))
    return {"completeness_cause": "mask" if len(nodes) >= FEW and coarse < 2 * fine else "steps"}


def _missed(places: Float[Tensor, "point"], values: Float[Tensor, "point"], slopes: Float[Tensor, "point"]) -> float:
    """How far the slopes are from predicting each value from the one before it."""
    return float((values.diff() - places.diff() * (slopes[1:] + slopes[:-1]) / 2).abs().sum())


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
