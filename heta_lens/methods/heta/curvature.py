"""The curvature S of Eq. 2, ``S_i = mean_k ‖Π_i H Π_i r_k‖₁``, with H the Hessian of g, or a matrix in its place.

1. `estimated_curvature` asks an `Estimator` about every window.
2. The estimator chooses a matrix: a `HessianOperator` over the window's states, which gives products with H.
3. The estimator chooses directions: a token's own (`Probed.probe_each`), or the directions of a group (`probes`).
4. Products, read at a token, become the token's `Readings`, whose samples make the `Curvature`.

To add a kind of curvature, write an `Estimator` with ``estimate`` and ``cost``, whose fields are the options of HETA
that it reads, and name it in a row of `heta_lens.methods.heta.options.VARIANTS`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain
from math import nan
from typing import ClassVar, Literal, NamedTuple, TypeAlias

import torch
from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor

from heta_lens._util.target_kinds import kind_of
from heta_lens.methods.heta.hessian import EVERYWHERE, HessianOperator, Places, differentiate, gauss_newton, hessian
from heta_lens.methods.heta.probes import (
    Pairs,
    Readings,
    Sizes,
    check_separable,
    gaussian,
    grouped_products,
    pairs_of_groups,
    pairs_of_rows,
    probed_sizes,
    rademacher,
)
from heta_lens.methods.heta.windows import Window, averaged
from heta_lens.model.batching import Batches, per_product
from heta_lens.prediction.gradients import clean_gradients
from heta_lens.prediction.prediction import Prediction
from heta_lens.prediction.rerun import Rerun

Support: TypeAlias = Literal["block", "row"]
BlockNorm: TypeAlias = Literal["hutchinson", "entrywise"]
MatrixFrom: TypeAlias = Callable[[int], HessianOperator]
"""The matrix over the states from a place on, with all states before it held fixed."""

AT_ONCE = 32  # directions of a token whose products are held at every position


class Energy(NamedTuple):
    """Squares of Frobenius norms: of the part of H that a low rank misses, and of the part that it keeps."""

    missed: float
    kept: float

    @property
    def facts(self) -> dict[str, float]:
        """The part of H that the low rank misses, ``‖H - H_k‖_F``, and its share of ``‖H‖_F``."""
        whole = self.missed + self.kept
        return {"tail_energy": self.missed**0.5, "tail_energy_share": (self.missed / whole) ** 0.5 if whole else 0.0}


@dataclass(frozen=True)
class Curvature:
    """S as samples to be averaged: one per probe for ``hutchinson``, a single one for ``entrywise``."""

    samples: Float[Tensor, "sample pos"]
    cross_talk: Float[Tensor, "pos"]  # taken out of S, where tokens shared HVPs
    readings: Sequence[Readings] = ()  # of every token, where products were read
    pairs: Pairs | None = None  # the interactions of tokens, if they were asked for
    energy: Energy | None = None  # of a low rank

    @classmethod
    def of(cls, readings: Sequence[Readings], pairs: Pairs | None = None) -> "Curvature":
        """Make samples of the readings of every token."""
        samples = torch.stack([own.samples for own in readings], 1)
        taken = torch.stack([own.size.mean() for own in readings]) - samples.mean(0)
        return cls(samples, taken, readings, pairs)


class Products(NamedTuple):
    """The HVPs that an estimate takes, and the gradient graphs for them."""

    hvps: int
    per_token: bool = False  # a graph per shared start; else one graph


@dataclass(frozen=True, eq=False)
class Task:
    """A window to estimate the curvature of, and the batches of its products."""

    window: Window
    batches: Batches
    precise: frozenset[int] = frozenset()  # positions to be probed alone, where cross-talk hides a small curvature


def estimated_curvature(estimator: "Estimator", tasks: Sequence[Task], length: int) -> Curvature:
    """Estimate S of a context, averaged over the windows that score a token."""
    found = [estimator.estimate(task, task.window.scored) for task in tasks]
    spans = [task.window.scored for task in tasks]
    energies = [own.energy for own in found if own.energy is not None]
    return Curvature(
        averaged([own.samples for own in found], spans, length),
        averaged([own.cross_talk for own in found], spans, length),
        pairs=found[-1].pairs,  # which do not go with several windows
        energy=Energy(*map(sum, zip(*energies, strict=True))) if energies else None,
    )


# ----------------------------------------------------------------------------------------------------------- estimators
@dataclass(frozen=True)
class Estimator(ABC):
    """A kind of curvature; the fields are the options that the estimator reads."""

    second_order: ClassVar[bool] = True  # takes HVPs, and so needs second derivatives
    target_agnostic: ClassVar[bool] = False  # is the same for every token that may come next
    why_unused: ClassVar[str] = ""  # why options that it does not read have no effect

    @classmethod
    def reads(cls) -> set[str]:
        """Return the names of the options that the estimator reads."""
        return {field.name for field in fields(cls)}

    @abstractmethod
    def estimate(self, task: Task, positions: Sequence[int]) -> Curvature:
        """Sample the curvature of the tokens at positions of the context, in order."""

    @abstractmethod
    def cost(self, window: Window) -> Products:
        """Return the cost of all tokens that the window scores.

        Whether HVPs may begin at a later token is measured, by two runs, when it is first asked.
        """

    def check(self, prediction: Prediction, length: int) -> None:  # noqa: B027
        """Refuse, before any work, a prediction without this curvature, given the length of windows."""

    def layer(self, prediction: Prediction) -> int | None:  # noqa: ARG002
        """Return the layer whose input stands for the tokens; None for the embeddings."""
        return None


@dataclass(frozen=True)
class Probed(Estimator):
    """A matrix whose blocks are probed with random signs (``hutchinson``), or with every unit vector."""

    probes: int
    seed: int
    support: Support
    norm: BlockNorm
    interactions: bool
    checkpoint: bool

    def signs(self, task: Task, places: Sequence[int]) -> list[Float[Tensor, "probe d"]]:
        """Draw signs for places in a window."""
        first, like = task.window.span.start, task.window.states
        return [rademacher(self.seed, first + place, self.probes, like.shape[1]).to(like) for place in places]

    def sizes(self, products: Float[Tensor, "k *part d"]) -> Float[Tensor, "sample"]:
        """Return the norms of products with random signs, or the norm of the block that products with units make."""
        sizes = products.abs().flatten(1).sum(1)
        return sizes if self.norm == "hutchinson" else sizes.sum()[None]

    def probe_each(self, task: Task, matrix_from: MatrixFrom, by_start: Sequence[Sequence[int]]) -> Curvature:
        """Probe each token by directions of its own, in the order of ``by_start``: places that share a matrix.

        ``support="block"`` reads a token's products at the token itself; ``"row"`` reads them everywhere, and probes
        all tokens at once where directions are random. Interactions take the products at all later tokens.
        """
        tokens, row = list(chain(*by_start)), self.support == "row"
        if row and self.norm == "hutchinson":
            every = torch.stack(self.signs(task, range(len(task.window.span))), dim=1)
            products = matrix_from(0).matmat(every)[:, tokens]
            return Curvature.of([Readings.of_own(size) for size in products.abs().sum(-1).T])
        samples, blocks = list[Tensor](), list[Sizes]()
        for group in [tokens] if row else by_start:
            start = 0 if row else group[0]
            matrix, places = matrix_from(start), [token - start for token in group]
            units = torch.eye(matrix.like.shape[1]).to(matrix.like)
            directions = self.signs(task, group) if self.norm == "hutchinson" else [units] * len(group)
            if row or self.interactions:
                for place, own in zip(places, directions, strict=True):
                    products = torch.cat([matrix.matmat(few, place) for few in own.split(AT_ONCE)])
                    samples.append(self.sizes(products if row else products[:, place]))
                    if self.interactions:
                        later = products[:, place:]
                        entrywise = later.abs().sum((0, 2)), None
                        blocks.append(probed_sizes(later) if self.norm == "hutchinson" else entrywise)
            else:
                samples += map(self.sizes, own_products(matrix, places, directions, task.batches.size))
            del matrix  # and its graph, before the next is built
        pairs = pairs_of_rows(blocks) if self.interactions else None
        return Curvature.of([Readings.of_own(size) for size in samples], pairs)


@dataclass(frozen=True)
class ProbedHessian(Probed):
    """Eq. 2 itself: products of H with the probes of every token."""

    groups: int | None

    @property
    def random(self) -> bool:
        return self.norm == "hutchinson"

    def check(self, prediction: Prediction, length: int) -> None:
        super().check(prediction, length)
        if self.interactions and (groups := self.groups_of(length)) is not None:
            check_separable(length, groups, self.probes)

    def groups_of(self, tokens: int) -> int | None:
        """Return how many groups share the products of so many tokens; None if every token is probed alone."""
        shared = self.random and self.support == "block"
        return self.groups if shared and self.groups is not None and tokens > self.groups else None

    def matrix(self, task: Task, rerun: Rerun) -> HessianOperator:
        """Return the matrix over the states of a rerun."""
        return hessian(rerun, task.batches, checkpoint=self.checkpoint)

    def estimate(self, task: Task, positions: Sequence[int]) -> Curvature:
        window, groups = task.window, self.groups_of(len(positions))
        if groups is None:
            each = self.probes if self.random else window.states.shape[1]
            by_start = window.by_start(positions, per_product(each))
            return self.probe_each(task, lambda place: self.matrix(task, window.rerun(place)), by_start)
        rerun = window.rerun(min(positions) - window.span.start)
        # The matrix has no name here, so that its graph is gone before tokens are probed alone.
        products = grouped_products(
            self.matrix(task, rerun), self.seed, positions, self.probes, groups, task.batches.size
        )
        readings = dict(zip(positions, products.readings(), strict=True))
        if hidden := sorted(token for token in task.precise if token in readings and readings[token].capped):
            single = replace(self, groups=None, interactions=False)
            alone = single.estimate(task, hidden).readings
            readings |= zip(hidden, alone, strict=True)
        return Curvature.of([*readings.values()], pairs_of_groups(products) if self.interactions else None)

    def cost(self, window: Window) -> Products:
        scored = len(window.scored)
        if not self.random:
            return Products(window.whole.embeddings.shape[1] * scored, per_token=self.support == "block")
        if self.support == "row":
            return Products(self.probes)
        if (groups := self.groups_of(scored)) is None:
            return Products(self.probes * scored, per_token=True)
        return Products(self.probes * groups + 1)


@dataclass(frozen=True)
class LastLayersHessian(ProbedHessian):
    """The Hessian of a part of the model: by the states that enter the last ``layers`` of it."""

    layers: int

    def check(self, prediction: Prediction, length: int) -> None:
        if self.layers > prediction.layers:
            raise ValueError(f"layers={self.layers} is more than the {prediction.layers} layers this model has")
        super().check(prediction, length)

    def layer(self, prediction: Prediction) -> int:
        return prediction.layers - self.layers


@dataclass(frozen=True)
class ProbedGaussNewton(ProbedHessian):
    """The Gauss–Newton matrix in the place of H, which is the same for every token that may come next."""

    target_agnostic: ClassVar[bool] = True

    def check(self, prediction: Prediction, length: int) -> None:
        if (kind := kind_of(prediction.target)) != "token":
            raise ValueError(f"variant='gn' is the curvature of log p of one token, not of a {kind}; use 'full'")
        super().check(prediction, length)

    def matrix(self, task: Task, rerun: Rerun) -> HessianOperator:
        return gauss_newton(rerun, task.batches)


@dataclass(frozen=True)
class LowRankHessian(Probed):
    """A low rank of H in the place of H: found with a few products, and probed without any."""

    rank: int

    def estimate(self, task: Task, positions: Sequence[int]) -> Curvature:
        window = task.window
        operator = hessian(window.rerun(), task.batches, checkpoint=self.checkpoint)
        every = torch.stack(self.signs(task, range(len(window.span))), dim=1)
        n, d = window.states.shape
        tests = gaussian(self.seed, window.span.start, min(self.rank + OVERSAMPLING, n * d), n, d)
        low = low_rank(operator, self.rank, tests, every)
        tokens = [position - window.span.start for position in positions]
        probed = self.probe_each(task, lambda start: replace(low, vectors=low.vectors[start:]), [tokens])
        return replace(probed, energy=low.energy)

    def cost(self, window: Window) -> Products:
        size = len(window.span) * window.whole.embeddings.shape[1]
        return Products(2 * min(self.rank + OVERSAMPLING, size) + self.probes)


@dataclass(frozen=True)
class SquaredGradient(Estimator):
    """``Σ_c (∂g/∂e_ic)²`` in the place of S, the trace of the empirical Fisher's block: one backward pass."""

    second_order: ClassVar[bool] = False
    why_unused: ClassVar[str] = "which uses one gradient"

    def estimate(self, task: Task, positions: Sequence[int]) -> Curvature:
        rerun = task.window.rerun()
        if (rerun.start, rerun.stop, rerun.layer) == (0, rerun.end, None):
            gradient = clean_gradients([task.window.prediction], Prediction.objective).gradients[0]
        else:
            _, gradient = differentiate(rerun, again=False)
        places = [position - task.window.span.start for position in positions]
        return Curvature.of([Readings.of_own(size) for size in gradient.square().sum(-1)[places, None]])

    def cost(self, window: Window) -> Products:  # noqa: ARG002
        return Products(0)


# -------------------------------------------------------------------------------------------- probing a matrix's blocks
def own_products(
    matrix: HessianOperator, places: Sequence[int], directions: Sequence[Float[Tensor, "_ d"]], at_once: int
) -> Iterator[Float[Tensor, "_ d"]]:
    """Yield ``Π_i H Π_i u``, at i alone, for the token i at every place and each of its directions u.

    The products of several tokens run together; each has its direction at another place.
    """
    few = max(1, at_once // len(directions[0]))  # tokens whose directions are put together
    for begin in range(0, len(places), few):
        counts = [len(own) for own in directions[begin : begin + few]]
        repeated = torch.repeat_interleave(torch.tensor(places[begin : begin + few]), torch.tensor(counts))
        together, products = torch.cat([*directions[begin : begin + few]]), []
        for at, vectors in zip(repeated.split(at_once), together.split(at_once), strict=True):
            rows, first, stop = torch.arange(len(at)), int(at[0]), int(at[-1]) + 1
            placed = vectors.new_zeros(len(at), stop - first, vectors.shape[1])
            placed[rows, at - first] = vectors
            products.append(matrix.matmat(placed, slice(first, stop))[rows, at])
        yield from torch.cat(products).split(counts)


# ------------------------------------------------------------------------------------------------------------ low rank
OVERSAMPLING = 8


@dataclass(frozen=True, eq=False)
class LowRank(HessianOperator):
    """``H_k = V diag(λ) Vᵀ``, with the eigenvalues of largest size, and an estimate of ``‖H - H_k‖_F²``."""

    vectors: Float[Tensor, "pos d k"]
    values: Float[Tensor, "k"]
    missed_squared: float

    @property
    def like(self) -> Float[Tensor, "pos d"]:  # type: ignore[override]
        return self.vectors[..., 0]

    @property
    def energy(self) -> Energy:
        return Energy(self.missed_squared, float(self.values.square().sum()))

    def matmat(self, directions: Float[Tensor, "k *part d"], places: Places = EVERYWHERE) -> Float[Tensor, "k pos d"]:
        along = rearrange(self.vectors[places], "... rank -> (...) rank")
        weights = rearrange(directions.to(along), "k ... -> k (...)") @ along * self.values
        return einsum(weights, self.vectors, "k rank, pos d rank -> k pos d")


def low_rank(
    operator: HessianOperator, rank: int, tests: Float[Tensor, "k pos d"], probes: Float[Tensor, "probe pos d"]
) -> LowRank:
    """Find a low rank of the symmetric, indefinite H by a randomised range finder: ``2 (rank + 8)`` products.

    The images of ``tests``, random directions, span nearly the range. The rest is measured on
    ``probes`` that had no part in it: ``E‖(H - H_k) r‖² = ‖H - H_k‖_F²``, which is ``‖H‖_F² - Σ λ²``.
    """
    n, images = probes.shape[1], operator.matmat(tests)
    if not images.isfinite().all():  # so that the curvature is not finite at the same positions, and named there
        return LowRank(rearrange(images.sum(0), "pos d -> pos d 1"), images.new_ones(1), nan)
    basis = torch.linalg.qr(rearrange(images, "k pos d -> (pos d) k")).Q
    products = operator.matmat(rearrange(basis, "(pos d) k -> k pos d", pos=n))
    # On the CPU in float64, which not every device has: it is a small matrix.
    small = (rearrange(products, "k pos d -> k (pos d)") @ basis).cpu().double()
    values, inner = (tensor.to(basis) for tensor in torch.linalg.eigh((small + small.T) / 2))
    largest = values.abs().argsort(descending=True)[:rank]
    vectors = rearrange(basis @ inner[:, largest], "(pos d) k -> pos d k", pos=n)
    kept = LowRank(vectors, values[largest], 0.0)
    missed = operator.matmat(probes) - kept.matmat(probes)
    return replace(kept, missed_squared=float(missed.square().sum((1, 2)).mean()))
