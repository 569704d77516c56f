"""Discretized integrated gradients (Sanyal & Ren 2021): gradients along a path that stays near other words."""

from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Annotated, ClassVar, Literal, NamedTuple, TypeAlias

import torch
from einops import einsum, rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from heta_lens.baselines.baseline import Baseline, Found
from heta_lens.baselines.integrated_gradients import completeness, path_start
from heta_lens.batches import Batches
from heta_lens.likelihood import gradients, likelihood
from heta_lens.masking import Masking
from heta_lens.options import COUNT, AtLeast, Batch
from heta_lens.prediction import Prediction
from heta_lens.progress import Work
from heta_lens.scales import Scale

Strategy: TypeAlias = Literal["greedy", "maxcount"]

AT_ONCE = 2**22  # numbers in the largest tensor of the search for anchors


@dataclass(frozen=True, eq=False, kw_only=True)
class DiscretizedIntegratedGradients(Baseline):
    """``a_i = Σ_s Σ_c (p_{s+1} - p_s)_ic ∂g/∂E_ic(p_s)``, along a path p from E' to E: above 0 speaks for the target.

    From each token's embedding its path goes back to E' by way of other words, its anchors. In dimensions where an
    anchor does not lie between the path and E', the path takes the step of a straight line. All tokens move together;
    the scores add up to ``g(E) - g(E')`` only roughly, and ``diagnostics["completeness_gap"]`` is what is missing.

    - ``mask``: E': ``pad`` (which without one is the tokenizer's end of text), ``zero``, ``vocab_mean``, ``mean`` (of
      the context), a token id or a vector
    - ``keep_bos``: a token that only says that the text begins stays as it is, and gets 0
    - ``steps``: anchors of each path
    - ``strategy``: the next anchor is the one that is moved least by this (``greedy``), or that lies between in most
      dimensions (``maxcount``); of equal ones the first of the vocabulary
    - ``neighbours``: it is looked for among so many words that are closest to the last
    - ``factor``: how often points are added in the middle between the path's points
    - ``scale``: what g is, the target's ``log_prob``, ``prob``, ``logit`` or ``log_odds``
    - ``batch``: points of the path that are run at once
    """

    mask: Masking = "pad"
    keep_bos: bool = True
    steps: Annotated[int, COUNT] = 30
    strategy: Strategy = "greedy"
    neighbours: Annotated[int, AtLeast(1, whole=True)] = 500
    factor: Annotated[int, AtLeast(0, whole=True, most=20)] = 0
    scale: Scale = "log_prob"
    batch: Batch = "auto"

    name: ClassVar = "discretized_integrated_gradients"
    cost: ClassVar = "2^factor · (steps + 1) · (F + B), and a search of the vocabulary for each step of each token"
    adapted: ClassVar = (
        "scores are not divided by their norm; of special tokens only one that begins the text stays as it is"
    )

    def work(self, prediction: Prediction) -> dict[str, int]:  # noqa: ARG002
        points = 2**self.factor * (self.steps + 1)
        return {"forwards": points + 2, "backwards": points}

    def explain(self, asked: Prediction, work: Work) -> Found:
        start = path_start(asked, self.mask, self.keep_bos)
        path = word_path(asked.embeddings, start, self.anchors(asked))
        for _ in range(self.factor):
            path = halved(path)
        batches = asked.prompt.batches(self.batch, len(asked), products=True)
        slopes = partial(rises_at, asked, path, self.scale, work)
        scores = batches.map(slopes, torch.arange(len(path) - 1), len(asked)).sum(0)
        ends = likelihood(asked, path[[0, -1]], self.scale, partial(work.add, "forwards"))
        return scores, completeness(float(ends[1] - ends[0]), float(scores.sum()))

    @torch.no_grad()
    def anchors(self, asked: Prediction) -> Float[Tensor, "step pos d"]:
        """The words on the way to the baseline, of the tokens a few at a time."""
        table = asked.lens.embedding_table().to(asked.embeddings)
        near = min(self.neighbours, len(table) - 1)
        search = partial(anchor_words, Words.of(table, asked.mask_vector(self.mask)), self.steps, self.strategy, near)
        tokens, places = asked.ids.unique(return_inverse=True)
        some = Batches(max(1, AT_ONCE // max(near * table.shape[1], len(table))))
        return rearrange(some.map(search, tokens, 1)[places], "pos step d -> step pos d")


class Words(NamedTuple):
    """The vocabulary; which words are the ``baseline``, and the squared norms of all."""

    table: Float[Tensor, "vocab d"]
    baseline: Float[Tensor, "d"]
    nothing: Bool[Tensor, "vocab"]
    squares: Float[Tensor, "vocab"]

    @classmethod
    def of(cls, table: Float[Tensor, "vocab d"], baseline: Float[Tensor, "d"]) -> "Words":
        return cls(table, baseline, (table == baseline).all(-1), table.square().sum(-1))


def rises_at(
    asked: Prediction, path: Float[Tensor, "point pos d"], scale: Scale, work: Work, points: Int[Tensor, "some"]
) -> Float[Tensor, "some pos"]:
    """How much g rises to each next point, by the gradient at this one."""
    gradient = gradients(asked, path[points], scale, work)
    return einsum(gradient, path[points + 1] - path[points], "some pos d, some pos d -> some pos")


def anchor_words(
    words: Words, steps: int, strategy: Strategy, near: int, tokens: Int[Tensor, "word"]
) -> Float[Tensor, "word step d"]:
    """The embeddings of the words each token goes back by, no word twice; the baseline, where none is left."""
    table, baseline, nothing, squares = words
    rows, current, here = torch.arange(len(tokens), device=table.device), tokens, table[tokens]
    arrived, used = nothing[tokens], nothing.expand(len(tokens), -1).clone()
    found: list[Tensor] = []
    for _ in range(steps):
        used[rows, current] = True
        around = neighbours(table, squares, current, near)
        costs = cost(table[around], rearrange(here, "word d -> word 1 d"), baseline, steps, strategy)
        least = costs.masked_fill(used.gather(1, around), inf).min(-1)  # the first of equal ones
        arrived = arrived | least.values.isinf()
        current = around[rows, least.indices]
        here = torch.where(rearrange(arrived, "word -> word 1"), baseline, table[current])
        found.append(here)
    return torch.stack(found, 1)


def neighbours(
    table: Float[Tensor, "vocab d"], squares: Float[Tensor, "vocab"], tokens: Int[Tensor, "word"], count: int
) -> Int[Tensor, "word near"]:
    """The words that are closest to each token, in the vocabulary's order; of those as far as the last, the first.

    ``squares`` are the squared norms of all words; a token's own, which every distance from it has, is left out.
    """
    distance = squares - 2 * einsum(table[tokens], table, "word d, vocab d -> word vocab")
    distance.scatter_(1, rearrange(tokens, "word -> word 1"), inf)  # it is no neighbour of its own
    furthest = distance.kthvalue(count, keepdim=True).values
    closer, level = distance < furthest, distance == furthest
    room = count - closer.sum(-1, keepdim=True)
    found = closer | (level & (level.cumsum(-1) <= room))
    return rearrange(found.nonzero()[:, 1], "(word near) -> word near", near=count)


def cost(
    anchors: Float[Tensor, "word near d"],
    here: Float[Tensor, "word 1 d"],
    baseline: Float[Tensor, "d"],
    steps: int,
    strategy: Strategy,
) -> Float[Tensor, "word near"]:
    """How badly each anchor lies on the way."""
    if strategy == "maxcount":
        return -between(anchors, here, baseline).sum(-1).to(anchors)
    return (anchors - monotone(anchors, here, baseline, steps)).norm(dim=-1)


def between(
    anchor: Float[Tensor, "*#batch d"], here: Float[Tensor, "*#batch d"], baseline: Float[Tensor, "*#batch d"]
) -> Bool[Tensor, "*#batch d"]:
    """In which dimensions an anchor lies between here and the baseline."""
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
    """From the start to the embeddings, which is found backwards: monotone in every dimension."""
    points = [embeddings]
    for anchor in anchors:
        points.append(monotone(anchor, points[-1], start, len(anchors)))
    return torch.stack([start, *reversed(points)])


def halved(path: Float[Tensor, "point pos d"]) -> Float[Tensor, "finer pos d"]:
    """With another point in the middle between any two."""
    middle = torch.stack([path[:-1], (path[:-1] + path[1:]) / 2], 1)
    return torch.cat([rearrange(middle, "point two pos d -> (point two) pos d"), path[-1:]])
