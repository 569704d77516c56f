"""How the curvature S is obtained: one class per kind, which samples it and says what that takes.

To add one, write a class with `estimate` and `cost` whose fields are the options of HETA that it reads, and name it in
a row of `variants.VARIANTS`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple, TypeAlias

import torch

from heta_lens._util.sample_statistics import Samples
from heta_lens._util.target_kinds import kind_of
from heta_lens._util.work_counting import Done
from heta_lens.methods.heta.curvature import (
    Curvature,
    Norm,
    Support,
    check_enumerable,
    curvature,
    squared_gradient,
)
from heta_lens.methods.heta.grouped_probes import grouped_products, is_capped
from heta_lens.methods.heta.hessian import HessianFrom, uncounted
from heta_lens.methods.heta.low_rank import OVERSAMPLING, low_rank
from heta_lens.methods.heta.pairs import check_separable, pairs_of_groups
from heta_lens.methods.heta.random_probes import Signs, gaussian
from heta_lens.methods.heta.segments import Segment
from heta_lens.model.batching import Batches, per_product
from heta_lens.prediction.prediction import Prediction

Wanted: TypeAlias = Mapping[int, range]
"""By position in the context, which of a token's probes are to be used: ``range(3, 6)`` are three after three."""


@dataclass(frozen=True, eq=False)
class Problem:
    """A segment whose tokens' curvature is wanted; how many products run at once, and what counts them.

    ``precise`` are positions whose small curvature matters: they are probed alone where cross-talk hides it.
    """

    segment: Segment
    batches: Batches = field(default_factory=partial(Batches, 1))
    done: Done = uncounted
    precise: frozenset[int] = frozenset()


class Products(NamedTuple):
    """What an estimate takes, at most: HVPs, all through one gradient graph or each token through the graph
    of those that share its start; in how many rounds these are built anew, and how many more, for a bound and, in every
    round, for late tokens."""

    hvps: int
    per_token: bool = False
    rounds: int = 1
    bounds: int = 0
    late: int = 0


@dataclass(frozen=True)
class Estimator(ABC):
    """A kind of curvature. Its fields are the options that it reads."""

    second_order: ClassVar[bool] = True  # takes HVPs, and so needs second derivatives
    approximate: ClassVar[bool] = True  # stands for the full method's curvature
    target_agnostic: ClassVar[bool] = False  # gives every token that may come next the same curvature
    why_unused: ClassVar[str] = ""  # why options that it does not read have no effect

    @classmethod
    def from_options(cls, options: Any) -> "Estimator":
        return cls(**{name: getattr(options, name) for name in cls.reads()})

    @classmethod
    def reads(cls) -> set[str]:
        """The names of the options that it reads."""
        return {field.name for field in fields(cls)}

    @abstractmethod
    def estimate(self, problem: Problem, wanted: Wanted) -> Curvature:
        """Samples of the curvature of these tokens, in their order."""

    @abstractmethod
    def cost(self, problem: Problem) -> Products:
        """What it takes to estimate all tokens that the segment scores. Runs nothing."""

    def check(self, prediction: Prediction, length: int) -> None:  # noqa: B027
        """Refuse, before any work, a prediction that this cannot be done for; its segments have this length."""

    @property
    def draws(self) -> int:
        """How many probes a token has, at most."""
        return 1

    def layer(self, prediction: Prediction) -> int | None:  # noqa: ARG002
        """The layer whose input stands for the tokens; None for the embeddings."""
        return None

    @property
    def random(self) -> bool:
        """Whether another seed gives other samples."""
        return False

    @property
    def stops(self) -> bool:
        """Whether some tokens may get fewer probes than others."""
        return False


@dataclass(frozen=True)
class Probed(Estimator):
    """A matrix whose blocks are probed with random signs (``hutchinson``), or with every unit vector."""

    probes: int
    seed: int
    support: Support
    norm: Norm
    interactions: bool
    checkpoint: bool

    @property
    def draws(self) -> int:
        return self.probes

    def check(self, prediction: Prediction, length: int) -> None:
        if self.norm == "exact":
            check_enumerable(length, prediction.embeddings.shape[1], self.support)


@dataclass(frozen=True)
class ProbedHessian(Probed):
    """Eq. 2 itself: products of H with the probes of every token."""

    groups: int | None
    tolerance: float | int | None
    prune: float | int

    approximate: ClassVar[bool] = False

    @property
    def random(self) -> bool:
        return self.norm == "hutchinson"

    @property
    def stops(self) -> bool:
        return self.random and bool(self.prune or self.tolerance is not None)

    def check(self, prediction: Prediction, length: int) -> None:
        super().check(prediction, length)
        if self.interactions and (groups := self.groups_of(length)) is not None:
            check_separable(length, groups, self.probes)

    def groups_of(self, tokens: int) -> int | None:
        """How many groups share the products of so many tokens; None: each is probed alone."""
        shared = self.random and self.support == "block"
        return self.groups if shared and self.groups is not None and tokens > self.groups else None

    def estimate(self, problem: Problem, wanted: Wanted) -> Curvature:
        segment = problem.segment
        if (groups := self.groups_of(len(wanted))) is not None:
            return self._grouped(problem, wanted, groups)
        d, numbers = segment.states.shape[1], sum(map(len, wanted.values())) / len(wanted)
        by_start = segment.by_start(list(wanted), per_product(numbers if self.random else d))
        return curvature(
            self.hessian_from(problem),
            segment.states,
            signs(segment, self.seed, wanted),
            support=self.support,
            norm=self.norm,
            by_start=by_start,
            at_once=problem.batches.size,
            pairs=self.interactions,
        )

    def _grouped(self, problem: Problem, wanted: Wanted, groups: int) -> Curvature:
        hessian_from, first = self.hessian_from(problem), min(wanted) - problem.segment.window.start
        products = grouped_products(
            lambda place: hessian_from(first + place),
            self.seed,
            wanted,
            groups,
            problem.batches.size,
            late=problem.segment.restarts and not self.interactions,  # which are read at every token
        )
        readings = dict(zip(wanted, products.readings(), strict=True))
        hidden = [token for token in wanted if token in problem.precise and is_capped(readings[token])]
        if hidden:
            alone = replace(self, groups=None, interactions=False)
            own = alone.estimate(problem, {token: wanted[token] for token in hidden}).drawn
            readings |= dict(zip(hidden, own, strict=True))
        pairs = pairs_of_groups(products) if self.interactions else None
        return Curvature.of_readings([*readings.values()], pairs)

    def rows(self, problem: Problem) -> Curvature:
        """The row form of the tokens that the segment scores, which is never below the block form's expectation."""
        return replace(self, support="row", interactions=False).estimate(problem, every_probe(problem, self.probes))

    def hessian_from(self, problem: Problem) -> HessianFrom:
        return partial(problem.segment.hessian_from, problem.batches, problem.done, checkpoint=self.checkpoint)

    def cost(self, problem: Problem) -> Products:
        scored, bound = len(problem.segment.scored_range), self.stops and bool(self.prune)
        if not self.random:
            return Products(problem.segment.width * scored, per_token=self.support == "block")
        if self.support == "row":
            return Products(self.probes)
        groups, rounds = self.groups_of(scored), self.probes.bit_length() if self.stops else 1
        if groups is None:
            return Products(self.probes * (scored + bound), per_token=True, rounds=rounds, bounds=int(bound))
        products, late = self.probes * (groups + bound) + rounds, problem.segment.may_restart and not self.interactions
        return Products(products, rounds=rounds, bounds=int(bound), late=int(late))


@dataclass(frozen=True)
class LastLayersHessian(ProbedHessian):
    """The Hessian of a part of the model: with respect to what enters the last ``layers`` of it."""

    layers: int

    approximate: ClassVar[bool] = True

    def check(self, prediction: Prediction, length: int) -> None:
        if self.layers > prediction.adapter.layers:
            raise ValueError(f"layers={self.layers} is more than the {prediction.adapter.layers} layers this model has")
        super().check(prediction, length)

    def layer(self, prediction: Prediction) -> int:
        return prediction.adapter.layers - self.layers


@dataclass(frozen=True)
class ProbedGaussNewton(ProbedHessian):
    """The Gauss–Newton matrix in the place of H, probed in the same way: that of every token is the same."""

    approximate: ClassVar[bool] = True
    target_agnostic: ClassVar[bool] = True

    def check(self, prediction: Prediction, length: int) -> None:
        if (kind := kind_of(prediction.target)) != "token":
            raise ValueError(f"variant='gn' is the curvature of log p of one token, not of a {kind}; use 'full'")
        super().check(prediction, length)

    def hessian_from(self, problem: Problem) -> HessianFrom:
        return partial(problem.segment.gauss_newton_from, problem.batches, problem.done)


@dataclass(frozen=True)
class LowRankHessian(Probed):
    """A low rank of H in the place of H: found with a few products, and free of them when it is probed."""

    rank: int

    @property
    def random(self) -> bool:
        return True

    def estimate(self, problem: Problem, wanted: Wanted) -> Curvature:
        segment = problem.segment
        probes, tokens = signs(segment, self.seed, wanted), [position - segment.window.start for position in wanted]
        every = torch.stack(probes(range(len(segment.states))), 1)
        tests = partial(gaussian, self.seed, segment.window.start)
        operator = segment.hessian_from(problem.batches, problem.done, 0, checkpoint=self.checkpoint)
        low = low_rank(operator, self.rank, tests, every)
        own = self.support == "block" and not self.interactions  # a token's own block is all that is looked at
        samples = curvature(
            partial(low.part, length=1 if own else None),
            segment.states,
            probes,
            support=self.support,
            norm=self.norm,
            by_start=[[token] for token in tokens] if own else [tokens],
            at_once=problem.batches.size,
            pairs=self.interactions,
        )
        return replace(samples, energy=low.energy)

    def cost(self, problem: Problem) -> Products:
        size = len(problem.segment.window_range) * problem.segment.width
        return Products(2 * min(self.rank + OVERSAMPLING, size) + self.probes)


@dataclass(frozen=True)
class SquaredGradient(Estimator):
    """The squared gradient in the place of S: one backward pass, and no product."""

    second_order: ClassVar[bool] = False
    why_unused: ClassVar[str] = "which uses one gradient"

    def estimate(self, problem: Problem, wanted: Wanted) -> Curvature:
        places = [position - problem.segment.window.start for position in wanted]
        samples = Samples.even(squared_gradient(problem.segment.gradient())[:, places])
        return Curvature(samples.values, samples.counts)

    def cost(self, problem: Problem) -> Products:  # noqa: ARG002
        return Products(0)


def every_probe(problem: Problem, probes: int) -> Wanted:
    """As many probes for each token that the segment scores."""
    return dict.fromkeys(problem.segment.scored_range, range(probes))


def signs(segment: Segment, seed: int, wanted: Wanted) -> Signs:
    return Signs(seed, segment.window.start, wanted, segment.states)
