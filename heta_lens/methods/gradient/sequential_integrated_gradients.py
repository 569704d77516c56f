"""Sequential integrated gradients (Enguehard 2023): each token moves along its own line, the others stay."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from einops import einsum, rearrange
from jaxtyping import Float, Int
from torch import Tensor

from heta_lens._util.work_counting import Work
from heta_lens.methods.base import Scores
from heta_lens.methods.gradient.integrated_gradients import (
    PathIntegral,
    Quadrature,
    completeness,
    completeness_cause,
    path_start,
    quadrature,
)
from heta_lens.model.batching import MASKED
from heta_lens.prediction.masking import masked_copies
from heta_lens.prediction.prediction import Prediction
from heta_lens.prediction.readout import Scale, likelihood, values_and_gradients


@dataclass(frozen=True, eq=False, kw_only=True)
class SequentialIntegratedGradients(PathIntegral):
    """``a_i = Σ_c (E - E')_ic ∫ ∂g/∂E_ic(E with E'_i + α(E - E')_i at i) dα``: above 0 speaks for the target.

    The path of a token begins at E', where it is masked. Each score is ``g(E) - g(E with E'_i at i)``, the effect of
    leaving the token out; ``diagnostics["completeness_gaps"]`` is the error per token, ``"completeness_gap"`` the
    largest, and ``"completeness_cause"`` what to change where it is large: ``steps``, or the ``mask``.
    """

    name: ClassVar = "sequential_integrated_gradients"
    paper: ClassVar[str] = (
        "Enguehard, Sequential integrated gradients: a simple but effective method for explaining language "
        "models, Findings of ACL 2023, arXiv:2305.15853"
    )
    family: ClassVar = "gradient"
    differentiates: ClassVar = True
    cost: ClassVar = "N · (steps · (F + B) + F), each from the moved token on"
    scaled_by: ClassVar = ("steps",)

    def work(self, prediction: Prediction) -> dict[str, int]:
        points = len(prediction) * self.steps
        return {"forwards": points + len(prediction) + 1, "backwards": points}

    def explain(self, prediction: Prediction, progress: Work) -> Scores:
        done = partial(progress.add, "forwards")
        start = path_start(prediction, self.mask_for(prediction), self.keep_bos)
        batches = prediction.prompt.batches(self.batch, len(prediction), products=True)
        rule = quadrature(self.rule, self.steps)
        moving = (prediction.embeddings != start).any(-1).nonzero().flatten().tolist()
        scores, drops = torch.zeros_like(prediction.embeddings[:, 0]), torch.zeros_like(prediction.embeddings[:, 0])
        whole = likelihood(prediction, prediction.embeddings[None], self.scale, done)
        paths = dict[int, tuple[Tensor, Tensor]]()  # of each token: g and its slopes
        for group in prediction.prompt.by_start(moving, len(prediction), MASKED / self.steps):
            first, places = group[0], torch.tensor(group)
            points = torch.cartesian_prod(places, torch.arange(self.steps))
            slopes = partial(slopes_at, prediction, first, start, rule, self.scale, progress)
            found = batches.map(slopes, points, len(prediction) - first)
            along, values = rearrange(found, "(pos step) both -> both pos step", pos=len(group))
            paths |= {place: (values[row], along[row]) for row, place in enumerate(group)}
            without = partial(likelihood_without, prediction, first, start, self.scale, progress)
            scores[group] = along @ rule.weights.to(along)
            drops[group] = whole - batches.map(without, places, len(prediction) - first)
        gaps = (drops - scores).abs()
        worst = int(gaps.argmax())
        facts = {"completeness_gaps": gaps, **completeness(float(drops[worst]), float(scores[worst]))}
        if worst in paths:
            ends = torch.cat([whole - drops[worst], whole])
            facts |= completeness_cause(rule.nodes, *paths[worst], ends)
        return Scores(scores, facts)


def slopes_at(
    prediction: Prediction,
    first: int,
    start: Float[Tensor, "pos d"],
    rule: Quadrature,
    scale: Scale,
    progress: Work,
    points: Int[Tensor, "point 2"],
) -> Float[Tensor, "point 2"]:
    """The slope of g along a token's path, and g, at one of its steps; runs begin at the ``first`` token."""
    places, steps = points.unbind(-1)
    change = (prediction.embeddings - start)[places]
    moved = start[places] + einsum(rule.nodes[steps].to(change), change, "point, point d -> point d")
    copies = masked_copies(prediction.embeddings[first:], places - first, moved)
    values, slopes = values_and_gradients(prediction, copies, scale, progress, start=first)
    own = slopes[torch.arange(len(points)), places - first]
    return torch.stack([einsum(own, change, "point d, point d -> point"), values], 1)


def likelihood_without(
    prediction: Prediction,
    first: int,
    start: Float[Tensor, "pos d"],
    scale: Scale,
    progress: Work,
    places: Int[Tensor, "copy"],
) -> Float[Tensor, "copy"]:
    """g with one token masked, where its path begins."""
    copies = masked_copies(prediction.embeddings[first:], places - first, start[places])
    return likelihood(prediction, copies, scale, partial(progress.add, "forwards"), start=first)
