"""Sequential integrated gradients (Enguehard 2023): each token's own line, while the others stay as they are."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar

import torch
from einops import einsum, rearrange
from jaxtyping import Float, Int
from torch import Tensor

from heta_lens.baselines.baseline import Baseline, Found
from heta_lens.baselines.integrated_gradients import Quadrature, Rule, completeness, path_start, quadrature
from heta_lens.batches import MASKED
from heta_lens.likelihood import gradients, likelihood
from heta_lens.masking import Masking, masked_copies
from heta_lens.options import COUNT, Batch
from heta_lens.prediction import Prediction
from heta_lens.progress import Work
from heta_lens.scales import Scale


@dataclass(frozen=True, eq=False, kw_only=True)
class SequentialIntegratedGradients(Baseline):
    """``a_i = Σ_c (E - E')_ic ∫ ∂g/∂E_ic(E with E'_i + α(E - E')_i at i) dα``: above 0 speaks for the target.

    Each score is ``g(E) - g(E with E'_i at i)``, what leaving the token out costs; of that
    ``diagnostics["completeness_gaps"]`` says for each token how much is missing, ``"completeness_gap"`` the most.

    - ``mask``: E', where the paths begin: ``zero``, ``vocab_mean``, ``mean`` (of the context), ``pad``, a token id or a
      vector
    - ``keep_bos``: a token that only says that the text begins stays as it is, and gets 0
    - ``steps``, ``rule``: at how many points of each path, and by which rule, the integral is
      taken; all weights sum to 1
    - ``scale``: what g is, the target's ``log_prob``, ``prob``, ``logit`` or ``log_odds``
    - ``batch``: points of paths that are run at once
    """

    mask: Masking = "zero"
    keep_bos: bool = True
    steps: Annotated[int, COUNT] = 50
    rule: Rule = "gauss_legendre"
    scale: Scale = "log_prob"
    batch: Batch = "auto"

    name: ClassVar = "sequential_integrated_gradients"
    cost: ClassVar = "N · (steps · (F + B) + F), each from the moved token on"

    def work(self, prediction: Prediction) -> dict[str, int]:
        points = len(prediction) * self.steps
        return {"forwards": points + len(prediction) + 1, "backwards": points}

    def explain(self, asked: Prediction, work: Work) -> Found:
        done = partial(work.add, "forwards")
        start = path_start(asked, self.mask, self.keep_bos)
        batches = asked.prompt.batches(self.batch, len(asked), products=True)
        rule = quadrature(self.rule, self.steps)
        moving = (asked.embeddings != start).any(-1).nonzero().flatten().tolist()
        scores, drops = torch.zeros_like(asked.embeddings[:, 0]), torch.zeros_like(asked.embeddings[:, 0])
        whole = likelihood(asked, asked.embeddings[None], self.scale, done)
        for group in asked.prompt.groups(moving, len(asked), MASKED / self.steps):
            first, places = group[0], torch.tensor(group)
            points = torch.cartesian_prod(places, torch.arange(self.steps))
            slopes = partial(slopes_at, asked, first, start, rule, self.scale, work)
            along = rearrange(batches.map(slopes, points, len(asked) - first), "(pos step) -> pos step", pos=len(group))
            without = partial(likelihood_without, asked, first, start, self.scale, work)
            scores[group] = along @ rule.weights.to(along)
            drops[group] = whole - batches.map(without, places, len(asked) - first)
        gaps = (drops - scores).abs()
        worst = int(gaps.argmax())
        return scores, {"completeness_gaps": gaps, **completeness(float(drops[worst]), float(scores[worst]))}


def slopes_at(
    asked: Prediction,
    first: int,
    start: Float[Tensor, "pos d"],
    rule: Quadrature,
    scale: Scale,
    work: Work,
    points: Int[Tensor, "point 2"],
) -> Float[Tensor, "point"]:
    """How fast g rises on the way of a token, at one of its steps; runs begin at the ``first`` token."""
    places, steps = points.unbind(-1)
    change = (asked.embeddings - start)[places]
    moved = start[places] + einsum(rule.nodes[steps].to(change), change, "point, point d -> point d")
    copies = masked_copies(asked.embeddings[first:], places - first, moved)
    own = gradients(asked, copies, scale, work, start=first)[torch.arange(len(points)), places - first]
    return einsum(own, change, "point d, point d -> point")


def likelihood_without(
    asked: Prediction, first: int, start: Float[Tensor, "pos d"], scale: Scale, work: Work, places: Int[Tensor, "copy"]
) -> Float[Tensor, "copy"]:
    """Where the token's way begins."""
    copies = masked_copies(asked.embeddings[first:], places - first, start[places])
    return likelihood(asked, copies, scale, partial(work.add, "forwards"), start=first)
