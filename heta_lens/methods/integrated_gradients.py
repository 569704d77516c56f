"""Gradients along paths: integrated (sequential, discretized) gradients and GradientSHAP; and learned masks (fAML)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from einops import einsum, rearrange, repeat
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import softplus

from heta_lens._util.options import COUNT, AtLeast
from heta_lens._util.target_kinds import Kind, members, sides
from heta_lens._util.work import Work, count
from heta_lens.attribution import Attribution
from heta_lens.methods.base import Scores, WithBatch, WithBos, WithMask, WithScale, WithSeed
from heta_lens.model.batching import MASKED, Batches
from heta_lens.model.norms_and_neurons import ignores_size
from heta_lens.prediction.gradients import likelihood, values_and_gradients, values_and_gradients_of_each
from heta_lens.prediction.masking import Mask, Masking, check_mask, depends_on_context, mask_vector, masked_copies
from heta_lens.prediction.prediction import Prediction, prompt_generator

TARGETS = 16  # that share the points of a path
AT_ONCE = 2**22  # numbers in the largest tensor of the search for anchors
AT_FIRST = 2.0  # the initial logit of every token's mask, which keeps most of the token


@dataclass(frozen=True, eq=False, kw_only=True)
class PathIntegral(WithBos, WithScale, WithBatch):
    """
    - ``mask``: the embedding where a path begins: ``zero``, ``mean`` (of the context), ``vocab_mean``, ``pad``,
      ``space``, a token id or a vector; None takes ``zero``, or ``space`` (without one, ``mean``) where a norm is the
      first to read the embeddings (Llama, Gemma, GPT-J): near zero, the norm makes every integral useless
    - ``steps``: the number of points on the path, by the Gauss–Legendre rule
    """

    mask: Annotated[Mask | None, check_mask] = None
    steps: Annotated[int, COUNT] = 50

    family: ClassVar = "gradient"
    differentiates: ClassVar = True
    scaled_by: ClassVar = ("steps",)

    def explained(self, predictions: Sequence[Prediction], groups: int = 1) -> list[Attribution]:
        """Explain predictions; ``options`` of the results name the mask that was taken."""
        if self.mask is None:
            return replace(self, mask=self.mask_for(predictions[-1])).explained(predictions, groups)
        return super().explained(predictions, groups)

    def mask_for(self, prediction: Prediction) -> Mask:
        if self.mask is not None:
            return self.mask
        if not ignores_size(prediction.adapter):
            return "zero"
        return "mean" if prediction.tokenizer.blank is None else "space"

    def check(self, prediction: Prediction) -> None:
        super().check(prediction)
        mask_vector(prediction, self.mask_for(prediction))


@dataclass(frozen=True, eq=False, kw_only=True)
class IntegratedGradients(PathIntegral):
    """Integrated gradients (Sundararajan 2017): gradients along the straight line from a baseline to the embeddings.

    ``a_i = Σ_c (E - E')_ic ∫ ∂g/∂E_ic(E' + α(E - E')) dα``: above 0 speaks for the target.

    The path begins at E', where every token is masked. All tokens move together, so the scores add up to
    ``g(E) - g(E')``; ``diagnostics["completeness_gap"]`` is the error of that.
    """

    name: ClassVar = "integrated_gradients"
    paper: ClassVar = "Sundararajan, Taly & Yan, Axiomatic attribution for deep networks, ICML 2017, arXiv:1703.01365"
    cost: ClassVar = "steps · (F + B)"

    def work(self, prediction: Prediction) -> Work:  # noqa: ARG002
        return Work(forwards=self.steps + 1, backwards=self.steps)

    def sharing_runs(self, predictions: Sequence[Prediction]) -> list[list[Prediction]]:
        """Group predictions that share the points of a path, which only a mean over the context makes different."""
        mask = self.mask_for(predictions[-1])
        together = 1 if depends_on_context(mask) else TARGETS
        return [[*predictions[begin : begin + together]] for begin in range(0, len(predictions), together)]

    def explain_together(self, predictions: Sequence[Prediction]) -> list[Scores]:
        longest = predictions[-1]
        start = path_start(longest, self.mask_for(longest), self.keep_bos)
        nodes, weights = self.points(longest)
        slopes = self.slopes(predictions, start, nodes)
        every = einsum(weights.to(slopes), slopes, "step, step target pos -> target pos")
        begun = longest.rerun(read=[len(prediction) - 1 for prediction in predictions]).logits(start[None])[0]
        results = []
        for prediction, scores, logits in zip(predictions, every, begun, strict=True):
            first, last = (prediction.read(each, self.scale) for each in (logits, prediction.logits))
            scores = scores[: len(prediction)]
            facts = completeness(float(last - first), float(scores.sum()))
            results.append(Scores(scores, facts | self.uncertainty(slopes)))
        return results

    def points(self, prediction: Prediction) -> tuple[Float[Tensor, "step"], Float[Tensor, "step"]]:  # noqa: ARG002
        """Return points on the path, from 0 to 1, and their weights."""
        return quadrature(self.steps)

    def uncertainty(self, slopes: Float[Tensor, "step target pos"]) -> dict[str, Any]:  # noqa: ARG002
        return {}

    def slopes(
        self, predictions: Sequence[Prediction], start: Float[Tensor, "pos d"], nodes: Float[Tensor, "step"]
    ) -> Float[Tensor, "step target pos"]:
        """Return the slopes of every token's share of the path, for every target."""
        longest = predictions[-1]
        change = longest.embeddings - start

        def along(alphas: Float[Tensor, "step"]) -> Float[Tensor, "step target pos"]:
            path = start + einsum(alphas.to(change), change, "step, pos d -> step pos d")
            _, slopes = values_and_gradients_of_each(predictions, path, self.scale)
            return einsum(slopes, change, "step target pos d, pos d -> step target pos")

        longest.check_graph_fits()
        return longest.batches(self.batch, products=True).map(along, nodes, len(longest))


@dataclass(frozen=True, eq=False, kw_only=True)
class GradientShap(IntegratedGradients, WithSeed):
    """GradientSHAP (Lundberg & Lee 2017): gradients at random points of the line from a baseline to the embeddings.

    ``a_i = mean_k Σ_c (E - E')_ic ∂g/∂E_ic(E' + α_k(E - E'))``, α_k uniform on [0, 1]: above 0 speaks for the target.

    The expectation is integrated gradients, with which the scores agree within their standard errors.

    - ``steps``: the number of random points
    """

    name: ClassVar = "gradient_shap"
    paper: ClassVar = (
        "Lundberg & Lee, A unified approach to interpreting model predictions, NeurIPS 2017, arXiv:1705.07874"
    )
    cost: ClassVar = "steps · (F + B)"
    adapted: ClassVar = "one baseline, and no noise on the embeddings"

    def sharing_runs(self, predictions: Sequence[Prediction]) -> list[list[Prediction]]:
        return [[prediction] for prediction in predictions]  # each has its own points, alone as in a span

    def points(self, prediction: Prediction) -> tuple[Float[Tensor, "step"], Float[Tensor, "step"]]:
        drawn = torch.from_numpy(prompt_generator(self.seed, prediction.ids).random(self.steps))
        return drawn, torch.full_like(drawn, 1 / self.steps)

    def uncertainty(self, slopes: Float[Tensor, "step target pos"]) -> dict[str, Any]:
        if self.steps < 2:
            return {}
        return {"standard_errors": {"scores": slopes[:, 0].std(0) / self.steps**0.5}, "probes": self.steps}


def completeness(due: float, reached: float) -> dict[str, float]:
    return {"completeness_gap": abs(due - reached), "completeness_due": due}


def path_start(prediction: Prediction, mask: Masking, keep_bos: bool) -> Float[Tensor, "pos d"]:
    """Return the embeddings where the path begins: every token masked."""
    start = repeat(mask_vector(prediction, mask), "d -> pos d", pos=len(prediction)).clone()
    if keep_bos and prediction.begins:
        start[0] = prediction.embeddings[0]
    return start


def quadrature(steps: int) -> tuple[Float[Tensor, "step"], Float[Tensor, "step"]]:
    """Return points on [0, 1], with weights that sum to 1."""
    nodes, weights = np.polynomial.legendre.leggauss(steps)
    return torch.from_numpy((1 + nodes) / 2), torch.from_numpy(weights / 2)


@dataclass(frozen=True, eq=False, kw_only=True)
class SequentialIntegratedGradients(PathIntegral):
    """Sequential integrated gradients (Enguehard 2023): integrated gradients of a single token at a time.

    ``a_i = Σ_c (E - E')_ic ∫ ∂g/∂E_ic(E with E'_i + α(E - E')_i at i) dα``: above 0 speaks for the target.

    The path of a token begins at E', where it is masked. Each score is ``g(E) - g(E with E'_i at i)``, the effect of
    leaving the token out; ``diagnostics["completeness_gaps"]`` is the error per token, ``"completeness_gap"`` the
    largest.
    """

    name: ClassVar = "sequential_integrated_gradients"
    paper: ClassVar[str] = (
        "Enguehard, Sequential integrated gradients: a simple but effective method for explaining language "
        "models, Findings of ACL 2023, arXiv:2305.15853"
    )
    cost: ClassVar = "N · (steps · (F + B) + F), each from the moved token on"

    def work(self, prediction: Prediction) -> Work:
        points = len(prediction) * self.steps
        return Work(forwards=points + len(prediction) + 1, backwards=points)

    def explain(self, prediction: Prediction) -> Scores:
        nodes, weights = quadrature(self.steps)
        start, embeddings = path_start(prediction, self.mask_for(prediction), self.keep_bos), prediction.embeddings
        change = embeddings - start
        prediction.check_graph_fits()
        batches = prediction.batches(self.batch, products=True)
        moving = change.any(-1).nonzero().flatten().tolist()
        scores, drops = torch.zeros_like(embeddings[:, 0]), torch.zeros_like(embeddings[:, 0])
        whole = likelihood(prediction, embeddings[None], self.scale)

        def slopes_at(points: Int[Tensor, "point 2"], first: int) -> Float[Tensor, "point"]:
            """Return the slope of g along a token's path at single steps; runs begin at the first token."""
            places, steps = points.unbind(-1)
            moved = start[places] + einsum(nodes[steps].to(change), change[places], "point, point d -> point d")
            copies = masked_copies(embeddings[first:], places - first, moved)
            _, slopes = values_and_gradients(prediction, copies, self.scale, start=first)
            slopes = slopes[torch.arange(len(points)), places - first]
            return einsum(slopes, change[places], "point d, point d -> point")

        def masked(places: Int[Tensor, "copy"], first: int) -> Float[Tensor, "copy"]:
            copies = masked_copies(embeddings[first:], places - first, start[places])
            return likelihood(prediction, copies, self.scale, start=first)

        for group in prediction.by_start(moving, len(prediction), MASKED / self.steps):
            first, places = group[0], torch.tensor(group)
            points, length = torch.cartesian_prod(places, torch.arange(self.steps)), len(prediction) - first
            slopes = batches.map(partial(slopes_at, first=first), points, length)
            scores[group] = rearrange(slopes, "(pos step) -> pos step", pos=len(group)) @ weights.to(slopes)
            drops[group] = whole - batches.map(partial(masked, first=first), places, length)
        gaps = (drops - scores).abs()
        worst = int(gaps.argmax())
        facts = {"completeness_gaps": gaps, **completeness(float(drops[worst]), float(scores[worst]))}
        return Scores(scores, facts)


@dataclass(frozen=True, eq=False, kw_only=True)
class DiscretizedIntegratedGradients(WithMask, WithBos, WithScale, WithBatch):
    """Discretized integrated gradients (Sanyal & Ren 2021): gradients along a path close to words of the vocabulary.

    ``a_i = Σ_s Σ_c (p_{s+1} - p_s)_ic ∂g/∂E_ic(p_s)``, along a path p from E' to E: above 0 speaks for the target.

    The path begins at E', where every token is masked. From each token's embedding it leads back to E' through other
    words, its anchors: each is the word that needs the smallest correction. In dimensions where an anchor does not lie
    between the path and E', the path takes the step of a straight line. All tokens move together; the scores add up to
    ``g(E) - g(E')`` only approximately, and ``diagnostics["completeness_gap"]`` is the error.

    - ``steps``: number of anchors on each path
    - ``neighbours``: the number of nearest neighbours of the last anchor that are candidates for the next anchor
    """

    mask: Masking = "pad"
    steps: Annotated[int, COUNT] = 30
    neighbours: Annotated[int, AtLeast(1, whole=True)] = 500

    name: ClassVar = "discretized_integrated_gradients"
    paper: ClassVar[str] = (
        "Sanyal & Ren, Discretized integrated gradients for explaining language models, EMNLP 2021, arXiv:2108.13654"
    )
    family: ClassVar = "gradient"
    differentiates: ClassVar = True
    cost: ClassVar = "(steps + 1) · (F + B), and a search of the vocabulary for each step of each token"
    scaled_by: ClassVar = ("steps",)
    adapted: ClassVar = (
        "scores are not divided by their norm; of special tokens only one that begins the text stays as it is"
    )

    def work(self, prediction: Prediction) -> Work:  # noqa: ARG002
        return Work(forwards=self.steps + 3, backwards=self.steps + 1)

    def explain(self, prediction: Prediction) -> Scores:
        start = path_start(prediction, self.mask, self.keep_bos)
        anchors, points = self.anchors(prediction), [prediction.embeddings]
        for anchor in anchors:  # backwards; every dimension is monotone
            points.append(monotone(anchor, points[-1], start, len(anchors)))
        path = torch.stack([start, *reversed(points)])

        def rises(points: Int[Tensor, "some"]) -> Float[Tensor, "some pos"]:
            _, gradient = values_and_gradients(prediction, path[points], self.scale)
            return einsum(gradient, path[points + 1] - path[points], "step pos d, step pos d -> step pos")

        prediction.check_graph_fits()
        batches = prediction.batches(self.batch, products=True)
        scores = batches.map(rises, torch.arange(len(path) - 1), len(prediction)).sum(0)
        ends = likelihood(prediction, path[[0, -1]], self.scale)
        return Scores(scores, completeness(float(ends[1] - ends[0]), float(scores.sum())))

    @torch.no_grad()
    def anchors(self, prediction: Prediction) -> Float[Tensor, "step pos d"]:
        """Find the anchors of every token, a few tokens at a time."""
        table = prediction.adapter.embedding_table().to(prediction.embeddings)
        near = min(self.neighbours, len(table) - 1)
        baseline = mask_vector(prediction, self.mask)
        search = partial(anchor_words, table, baseline, self.steps, near)
        tokens, places = prediction.ids.unique(return_inverse=True)
        batches = Batches(max(1, AT_ONCE // max(near * table.shape[1], len(table))))
        return rearrange(batches.map(search, tokens, 1)[places], "pos step d -> step pos d")


def anchor_words(
    table: Float[Tensor, "vocab d"],
    baseline: Float[Tensor, "d"],
    steps: int,
    near: int,
    tokens: Int[Tensor, "word"],
) -> Float[Tensor, "word step d"]:
    """Return the anchors on each token's way back, no word twice; the baseline once no word is left."""
    nothing, squares = (table == baseline).all(-1), table.square().sum(-1)
    rows, current, here = torch.arange(len(tokens), device=table.device), tokens, table[tokens]
    arrived, used = nothing[tokens], nothing.expand(len(tokens), -1).clone()
    anchors: list[Tensor] = []
    for _ in range(steps):
        used[rows, current] = True
        around = neighbours(table, squares, current, near)
        candidates, start = table[around], rearrange(here, "word d -> word 1 d")
        costs = (candidates - monotone(candidates, start, baseline, steps)).norm(dim=-1)
        least = costs.masked_fill(used.gather(1, around), inf).min(-1)  # the first of equal costs
        arrived = arrived | least.values.isinf()
        current = around[rows, least.indices]
        here = torch.where(rearrange(arrived, "word -> word 1"), baseline, table[current])
        anchors.append(here)
    return torch.stack(anchors, 1)


def neighbours(
    table: Float[Tensor, "vocab d"], squares: Float[Tensor, "vocab"], tokens: Int[Tensor, "word"], count: int
) -> Int[Tensor, "word near"]:
    """Return the nearest words of each token, in the vocabulary's order; ties go to the lower id.

    ``squares`` are the squared norms of all words; the token's norm is the same in all its distances, and left out.
    """
    distance = squares - 2 * einsum(table[tokens], table, "word d, vocab d -> word vocab")
    distance.scatter_(1, rearrange(tokens, "word -> word 1"), inf)  # a token is not its own neighbour
    return distance.argsort(stable=True)[:, :count].sort().values


def monotone(
    anchor: Float[Tensor, "*#batch d"],
    here: Float[Tensor, "*#batch d"],
    baseline: Float[Tensor, "*#batch d"],
    steps: int,
) -> Float[Tensor, "*#batch d"]:
    """Return the anchor in dimensions in which the anchor lies between, elsewhere a step towards the baseline."""
    between = (anchor >= torch.minimum(here, baseline)) & (anchor <= torch.maximum(here, baseline))
    return torch.where(between, anchor, torch.lerp(here, baseline, 1 / steps))


@dataclass(frozen=True, eq=False, kw_only=True)
class Faml(WithMask, WithBos):
    """fAML (Barkan 2024): an attributive mask learned for a single prediction, the sparsest to preserve the prediction.

    ``a = m = sigmoid(θ)``, ≥ 0: how much of each token the prediction P needs.

    θ minimises the weighted sum of

    - ``CE(P, P of mE + (1-m)E')`` (``fidelity``): what is kept predicts the same
    - ``mean_i -log(1 - m_i)`` (``sparsity``): little is kept
    - ``-log(1 - p(target))`` of ``(1-m)E + mE'`` (``complement``): the rest does not predict the target

    E' are the masked embeddings. Options beside these three weights:

    - ``steps``, ``rate``: the steps and the learning rate of Adam, which starts at θ = 2; the last θ counts
    """

    fidelity: Annotated[float | int, AtLeast(0)] = 1.0
    sparsity: Annotated[float | int, AtLeast(0)] = 0.3
    complement: Annotated[float | int, AtLeast(0)] = 0.3
    steps: Annotated[int, COUNT] = 200
    rate: Annotated[float | int, AtLeast(1e-6)] = 0.05
    mask: Masking = "pad"

    name: ClassVar = "faml"
    paper: ClassVar[str] = "Barkan et al., LLM explainability via attributive masking learning, Findings of EMNLP 2024"
    family: ClassVar = "gradient"
    differentiates: ClassVar = True
    kinds: ClassVar[frozenset[Kind]] = frozenset(("token", "set"))
    cost: ClassVar = "2 steps · (F + B)"
    scaled_by: ClassVar = ("steps",)
    signed: ClassVar = False
    adapted: ClassVar = "the mask is learned for one prediction, where its authors first train a network on a task"

    @property
    def ignores_target(self) -> bool:
        return not self.complement

    def work(self, prediction: Prediction) -> Work:  # noqa: ARG002
        return Work(forwards=2 * self.steps, backwards=2 * self.steps)

    def explain(self, prediction: Prediction) -> Scores:
        reference = path_start(prediction, self.mask, self.keep_bos)
        theta = torch.full_like(reference[:, 0], AT_FIRST).requires_grad_()
        adam = torch.optim.Adam([theta], lr=float(self.rate))
        losses: list[float] = []
        for _ in range(self.steps):
            loss = self.loss(prediction, reference, theta)
            (theta.grad,) = torch.autograd.grad(loss, theta)
            adam.step()
            losses.append(float(loss.detach()))
            count("backwards", 2)  # of two copies in one call
        maskable = (prediction.embeddings != reference).any(-1)
        return Scores(theta.detach().sigmoid() * maskable, {"first_loss": losses[0], "last_loss": losses[-1]})

    def loss(
        self, prediction: Prediction, reference: Float[Tensor, "pos d"], theta: Float[Tensor, "pos"]
    ) -> Float[Tensor, ""]:
        (target,) = sides(prediction.target)
        kept = rearrange(theta.sigmoid(), "pos -> pos 1")
        change = prediction.embeddings - reference
        both = torch.stack([reference + kept * change, prediction.embeddings - kept * change])
        like, unlike = prediction.rerun().log_probs(both)
        entropy = -(prediction.log_probs.exp() * like).sum()
        others = torch.ones_like(unlike, dtype=torch.bool)
        others[members(target)] = False
        still_predicted = -unlike[others].logsumexp(0)  # log(1 - p), precise where p is nearly 1
        return self.fidelity * entropy + self.sparsity * softplus(theta).mean() + self.complement * still_predicted
