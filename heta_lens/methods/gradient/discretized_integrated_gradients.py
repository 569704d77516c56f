"""Discretized integrated gradients (Sanyal & Ren 2021): gradients along a path that stays close to other words."""

from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Annotated, ClassVar, Literal, NamedTuple, TypeAlias

import torch
from einops import einsum, rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from heta_lens._util.options import COUNT, AtLeast
from heta_lens._util.work_counting import Work
from heta_lens.methods.base import Scores
from heta_lens.methods.gradient.integrated_gradients import completeness, path_start
from heta_lens.methods.shared_options import WithBatch, WithBos, WithMask, WithScale
from heta_lens.model.batching import Batches
from heta_lens.prediction.masking import Masking
from heta_lens.prediction.prediction import Prediction
from heta_lens.prediction.readout import Scale, gradients, likelihood

Strategy: TypeAlias = Literal["greedy", "maxcount"]

AT_ONCE = 2**22  # numbers in the largest tensor of the search for anchors


@dataclass(frozen=True, eq=False, kw_only=True)
class DiscretizedIntegratedGradients(WithMask, WithBos, WithScale, WithBatch):
    """``a_i = Σ_s Σ_c (p_{s+1} - p_s)_ic ∂g/∂E_ic(p_s)``, along a path p from E' to E: above 0 speaks for the target.

    The path begins at E', where every token is masked. From each token's embedding it leads back to E' through other
    words, its anchors. In dimensions where an anchor does not lie between the path and E', the path takes the step of a
    straight line. All tokens move together; the scores add up to ``g(E) - g(E')`` only approximately, and
    ``diagnostics["completeness_gap"]`` is the error.

    - ``steps``: number of anchors on each path
    - ``strategy``: the next anchor is the word that needs the smallest correction (``greedy``), or that lies between in
      most dimensions (``maxcount``); ties go to the lower token id
    - ``neighbours``: how many nearest neighbours of the last anchor are candidates for the next one
    - ``factor``: how many times the path is refined by midpoints between its points
    """

    mask: Masking = "pad"
    steps: Annotated[int, COUNT] = 30
    strategy: Strategy = "greedy"
    neighbours: Annotated[int, AtLeast(1, whole=True)] = 500
    factor: Annotated[int, AtLeast(0, whole=True, most=20)] = 0

    name: ClassVar = "discretized_integrated_gradients"
    paper: ClassVar[str] = (
        "Sanyal & Ren, Discretized integrated gradients for explaining language models, EMNLP 2021, arXiv:2108.13654"
    )
    family: ClassVar = "gradient"
    differentiates: ClassVar = True
    cost: ClassVar = "2^factor · (steps + 1) · (F + B), and a search of the vocabulary for each step of each token"
    scaled_by: ClassVar = ("steps",)
    adapted: ClassVar = (
        "scores are not divided by their norm; of special tokens only one that begins the text stays as it is"
    )

    def work(self, prediction: Prediction) -> dict[str, int]:  # noqa: ARG002
        points = 2**self.factor * (self.steps + 1)
        return {"forwards": points + 2, "backwards": points}

    def explain(self, prediction: Prediction, progress: Work) -> Scores:
        start = path_start(prediction, self.mask, self.keep_bos)
        path = word_path(prediction.embeddings, start, self.anchors(prediction))
        for _ in range(self.factor):
            path = halved(path)
        batches = prediction.prompt.batches(self.batch, len(prediction), products=True)
        slopes = partial(rises_at, prediction, path, self.scale, progress)
        scores = batches.map(slopes, torch.arange(len(path) - 1), len(prediction)).sum(0)
        ends = likelihood(prediction, path[[0, -1]], self.scale, partial(progress.add, "forwards"))
        return Scores(scores, completeness(float(ends[1] - ends[0]), float(scores.sum())))

    @torch.no_grad()
    def anchors(self, prediction: Prediction) -> Float[Tensor, "step pos d"]:
        """The anchors of every token, a few tokens at a time."""
        table = prediction.adapter.embedding_table().to(prediction.embeddings)
        near = min(self.neighbours, len(table) - 1)
        search = partial(
            anchor_words, Words.of(table, prediction.mask_vector(self.mask)), self.steps, self.strategy, near
        )
        tokens, places = prediction.ids.unique(return_inverse=True)
        batches = Batches(max(1, AT_ONCE // max(near * table.shape[1], len(table))))
        return rearrange(batches.map(search, tokens, 1)[places], "pos step d -> step pos d")


class Words(NamedTuple):
    """The vocabulary's embeddings, which of them equal the ``baseline``, and their squared norms."""

    table: Float[Tensor, "vocab d"]
    baseline: Float[Tensor, "d"]
    nothing: Bool[Tensor, "vocab"]
    squares: Float[Tensor, "vocab"]

    @classmethod
    def of(cls, table: Float[Tensor, "vocab d"], baseline: Float[Tensor, "d"]) -> "Words":
        return cls(table, baseline, (table == baseline).all(-1), table.square().sum(-1))


def rises_at(
    prediction: Prediction,
    path: Float[Tensor, "point pos d"],
    scale: Scale,
    progress: Work,
    points: Int[Tensor, "some"],
) -> Float[Tensor, "some pos"]:
    """How much g changes up to the next point, by the gradient at this one."""
    gradient = gradients(prediction, path[points], scale, progress)
    return einsum(gradient, path[points + 1] - path[points], "step pos d, step pos d -> step pos")


def anchor_words(
    words: Words, steps: int, strategy: Strategy, near: int, tokens: Int[Tensor, "word"]
) -> Float[Tensor, "word step d"]:
    """The anchors on each token's way back, no word twice; the baseline once no word is left."""
    table, baseline, nothing, squares = words
    rows, current, here = torch.arange(len(tokens), device=table.device), tokens, table[tokens]
    arrived, used = nothing[tokens], nothing.expand(len(tokens), -1).clone()
    anchors: list[Tensor] = []
    for _ in range(steps):
        used[rows, current] = True
        around = neighbours(table, squares, current, near)
        costs = cost(table[around], rearrange(here, "word d -> word 1 d"), baseline, steps, strategy)
        least = costs.masked_fill(used.gather(1, around), inf).min(-1)  # the first of equal ones
        arrived = arrived | least.values.isinf()
        current = around[rows, least.indices]
        here = torch.where(rearrange(arrived, "word -> word 1"), baseline, table[current])
        anchors.append(here)
    return torch.stack(anchors, 1)


def neighbours(
    table: Float[Tensor, "vocab d"], squares: Float[Tensor, "vocab"], tokens: Int[Tensor, "word"], count: int
) -> Int[Tensor, "word near"]:
    """The nearest words of each token, in the vocabulary's order; ties at the last place go to the lower id.

    ``squares`` are the squared norms of all words. The token's own is the same in each of its distances: left out.
    """
    distance = squares - 2 * einsum(table[tokens], table, "word d, vocab d -> word vocab")
    distance.scatter_(1, rearrange(tokens, "word -> word 1"), inf)  # a token is not its own neighbour
    furthest = distance.kthvalue(count, keepdim=True).values
    closer, level = distance < furthest, distance == furthest
    room = count - closer.sum(-1, keepdim=True)
    nearest = closer | (level & (level.cumsum(-1) <= room))
    return rearrange(nearest.nonzero()[:, 1], "(word near) -> word near", near=count)


def cost(
    anchors: Float[Tensor, "word near d"],
    here: Float[Tensor, "word 1 d"],
    baseline: Float[Tensor, "d"],
    steps: int,
    strategy: Strategy,
) -> Float[Tensor, "word near"]:
    """How badly each candidate fits the path: the lowest is taken."""
    if strategy == "maxcount":
        return -between(anchors, here, baseline).sum(-1).to(anchors)
    return (anchors - monotone(anchors, here, baseline, steps)).norm(dim=-1)


def between(
    anchor: Float[Tensor, "*#batch d"], here: Float[Tensor, "*#batch d"], baseline: Float[Tensor, "*#batch d"]
) -> Bool[Tensor, "*#batch d"]:
    """The dimensions in which an anchor lies between here and the baseline."""
    return (anchor >= torch.minimum(here, baseline)) & (anchor <= torch.maximum(here, baseline))


def monotone(
    anchor: Float[Tensor, "*#batch d"],
    here: Float[Tensor, "*#batch d"],
    baseline: Float[Tensor, "*#batch d"],
    steps: int,
) -> Float[Tensor, "*#batch d"]:
    """The anchor where it lies between, elsewhere a step straight towards the baseline."""
    return torch.where(between(anchor, here, baseline), anchor, torch.lerp(here, baseline, 1 / steps))


def word_path(
    embeddings: Float[Tensor, "pos d"], start: Float[Tensor, "pos d"], anchors: Float[Tensor, "step pos d"]
) -> Float[Tensor, "point pos d"]:
    """The path from the start to the embeddings, built backwards; monotone in every dimension."""
    points = [embeddings]
    for anchor in anchors:
        points.append(monotone(anchor, points[-1], start, len(anchors)))
    return torch.stack([start, *reversed(points)])


def halved(path: Float[Tensor, "point pos d"]) -> Float[Tensor, "finer pos d"]:
    """The path with a midpoint added between any two neighbouring points."""
    middle = torch.stack([path[:-1], (path[:-1] + path[1:]) / 2], 1)
    return torch.cat([rearrange(middle, "point two pos d -> (point two) pos d"), path[-1:]])
