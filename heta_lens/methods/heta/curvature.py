"""The curvature S of Eq. 2: ``S_i = mean_k ‖Π_i H Π_i r_k‖₁``, with H the Hessian of g, or what stands for it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from itertools import chain
from math import nan
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import torch
from einops import einsum, rearrange
from jaxtyping import Float, Int
from scipy.stats import t as student
from torch import Tensor

from heta_lens._util.numerics import Divergence, Samples, student_t
from heta_lens._util.target_kinds import kind_of, members, sides
from heta_lens._util.work import Done
from heta_lens.methods.heta.hessian import (
    EVERYWHERE,
    BlockwiseHessian,
    HessianFrom,
    HessianOperator,
    Places,
    check_twice_differentiable,
    differentiate,
    gauss_newton,
    hessian,
    uncounted,
)
from heta_lens.methods.heta.probes import (
    Pairs,
    Signs,
    Sizes,
    check_separable,
    entrywise_sizes,
    frobenius_sizes,
    gaussian,
    grouped_products,
    is_capped,
    mirrored,
    pairs_of_groups,
    probed_sizes,
    rademacher,
    without_cross_talk,
)
from heta_lens.methods.heta.score import Balance, Information, Logits, Parts, Reference, information
from heta_lens.methods.heta.windows import Window, most_central
from heta_lens.model.batching import MASKED, SHORT, Batches, per_product
from heta_lens.model.closed_form_hooks import closed_form_hooks
from heta_lens.prediction.masking import Mask
from heta_lens.prediction.prediction import Prediction

# ------------------------------------------------------------------------------------------------------------ segments
# Segments: what is explained at once — a whole context, or one of the windows that stand for it.


WindowMode: TypeAlias = Literal["frozen", "restrict", "chunk"]


@dataclass(frozen=True, eq=False)
class Segment:
    """A window of a prediction's context, and the positions in it (``scored``) whose scores are taken from here.

    ``alone`` makes it a prompt of its own, with nothing around it. ``layer`` is where the curvature reads states; None
    for the embeddings.
    """

    whole: Prediction
    window: Window
    scored: Window
    alone: bool
    layer: int | None

    @cached_property
    def prediction(self) -> Prediction:
        """What runs: the same prediction, or of the window alone, which costs runs to set up."""
        return self.whole.alone(*self.window) if self.alone else self.whole

    @cached_property
    def start(self) -> int:
        """Where the window begins in what runs."""
        return 0 if self.alone else self.window.start

    @cached_property
    def stop(self) -> int | None:
        """Where it ends; None, if that is the end."""
        return None if self.alone or self.window == (0, len(self.whole)) else self.window.stop

    @property
    def window_range(self) -> range:
        return range(*self.window)

    @property
    def scored_range(self) -> range:
        return range(*self.scored)

    @property
    def own(self) -> slice:
        """The scored positions, as places in the window."""
        return slice(self.scored.start - self.window.start, self.scored.stop - self.window.start)

    @cached_property
    def width(self) -> int:
        return self.whole.embeddings.shape[1]

    @cached_property
    def states(self) -> Float[Tensor, "pos d"]:
        return self.prediction.states(self.layer)[self.start : self.stop]

    def by_start(self, positions: Sequence[int], start_cost: float | int) -> list[list[int]]:
        """These positions of the context, as places in the window, by the runs they share."""
        places = [position - self.window.start for position in positions]
        return self.prediction.prompt.by_start(places, len(self.states), start_cost)

    def expected_by_start(self, start_cost: float | int) -> list[list[int]]:
        """All scored positions, as far as they can be known without setting anything up."""
        places = [*range(self.own.start, self.own.stop)]
        return self.whole.prompt.by_start(places, len(self.window_range), start_cost)

    @property
    def restarts(self) -> bool:
        """Whether runs that begin later save what is before them."""
        return self.prediction.prompt.kept is not None

    @property
    def may_restart(self) -> bool:
        """The same, as far as it can be known without setting anything up."""
        return self.whole.prompt.kept is not None and len(self.window_range) > SHORT

    def hessian_from(self, batches: Batches, done: Done, place: int, *, checkpoint: bool = False) -> HessianOperator:
        """The Hessian of g from a place in the window on; with ``checkpoint``, of one block's graph at a time."""
        if checkpoint and self._first_block < self.prediction.adapter.layers - 1:
            return self._blockwise_from(batches, done, place)
        objective = self.prediction.objective_from(self.start + place, self.stop, self.layer)
        with self._in_closed_form():
            return hessian(objective, self.states[place:], batches, done)

    @property
    def _first_block(self) -> int:
        return self.layer or 0

    def _blockwise_from(self, batches: Batches, done: Done, place: int) -> BlockwiseHessian:
        prediction, start, last = self.prediction, self.start + place, self.prediction.adapter.layers - 1
        own = [self.layer, *range(self._first_block + 1, last + 1)]  # where each block is entered, and the top
        entering = [prediction.states(layer)[start:] for layer in own]
        top = prediction.objective_from(start, layer=last)

        def block(layer: int | None, states: Float[Tensor, "pos d"]) -> Float[Tensor, "pos d"]:
            with self._in_closed_form():
                return prediction.prompt.through_block(layer, start, len(prediction), states)

        def top_hessian() -> HessianOperator:
            with self._in_closed_form():
                return hessian(top, entering[-1], batches, uncounted)

        def top_gradient() -> Float[Tensor, "pos d"]:
            return differentiate(top, entering[-1], again=False)[1]

        blocks = [partial(block, layer) for layer in own[:-1]]
        return BlockwiseHessian(blocks, entering, top_hessian, top_gradient, batches, done)

    def gauss_newton_from(self, batches: Batches, done: Done, place: int) -> HessianOperator:
        """The same of its Gauss–Newton form."""
        log_probs = self.prediction.log_probs_from(self.start + place, self.stop, self.layer)
        with self._in_closed_form():
            return gauss_newton(lambda leaf: log_probs(leaf[None])[0], self.states[place:], batches, done)

    def _in_closed_form(self) -> AbstractContextManager[None]:
        """Known parts have derivatives in closed form, unless the user's hooks may have changed them."""
        prediction = self.prediction
        hooks = [] if prediction.prompt.user_hooks else closed_form_hooks(prediction.adapter)
        return prediction.adapter.hooked(hooks, every=False)

    def check(self, seed: int, batch: int | Literal["auto"]) -> None:
        """Try one probe, on the last token, where a run is shortest."""
        prediction, place = self.prediction, len(self.prediction) - 1
        last = prediction.states(self.layer)[-1:]
        probe = rademacher(seed, place, 1, last.shape[1]).to(last)
        # Half precision and rounded activations cannot tell the steps apart; and hooks may change gradients.
        adapter = prediction.adapter
        compare = adapter.dtype.itemsize >= 4 and not adapter.quantised and not prediction.prompt.user_hooks
        log_probs = prediction.log_probs_from(place, layer=self.layer)
        # Against another token: where log p(target) is nearly 0, its gradient is too small to be compared.
        first, second = opposed(prediction)

        def objective(copies: Float[Tensor, "copy 1 d"]) -> Float[Tensor, "copy"]:
            values = log_probs(copies)
            return values[:, first] - values[:, second]

        check_twice_differentiable(objective, last, probe, compare, prediction.prompt.batches(batch, 1))

    def gradient(self) -> Float[Tensor, "pos d"]:
        objective = self.prediction.objective_from(self.start, self.stop, self.layer)
        return differentiate(objective, self.states, again=False)[1]


def segments_of(
    prediction: Prediction, spans: Sequence[Window], mode: WindowMode = "frozen", layer: int | None = None
) -> list[Segment]:
    """One segment for a single window, and for windows that restrict nothing but the gate; else one for each.

    A frozen window scores the tokens that lie most central in it; one that is a prompt of its own scores all of them.
    """
    if len(spans) == 1 or mode == "restrict":
        return [whole_segment(prediction, layer)]
    scored = most_central(spans) if mode == "frozen" else spans
    return [
        Segment(prediction, window, own, alone=mode == "chunk", layer=layer)
        for window, own in zip(spans, scored, strict=True)
    ]


def whole_segment(prediction: Prediction, layer: int | None = None) -> Segment:
    """The whole context as one."""
    whole = Window(0, len(prediction))
    return Segment(prediction, whole, whole, alone=False, layer=layer)


def opposed(prediction: Prediction) -> tuple[int, int]:
    """The likeliest token of the target, and of what it is contrasted with; of a function, the likeliest two."""
    if callable(prediction.target):
        first, second = prediction.log_probs.topk(2).indices.tolist()
        return first, second
    first, *second = [
        max(members(tokens), key=lambda token: float(prediction.log_probs[token]))
        for tokens in sides(prediction.target)
    ]
    return first, second[0] if second else rival(prediction)


def rival(prediction: Prediction) -> int:
    """The most likely token that is not the target, or not in it."""
    own = [token for tokens in sides(prediction.target) for token in members(tokens)]
    likeliest = prediction.log_probs.topk(len(own) + 1).indices.tolist()
    return next(token for token in likeliest if token not in own)


@torch.no_grad()
def masked_information(
    segment: Segment,
    targets: Sequence[Prediction],
    *,
    mask: Mask,
    divergence: Divergence,
    batches: Batches,
    done: Done,
    floor: bool = False,
) -> Information:
    """Each token that a segment scores, masked in turn for all targets at once; a window is one target's own.

    Several targets are of one prompt, the longest context is the segment's and the last.
    """
    prediction = segment.prediction
    targets = targets if len(targets) > 1 else [prediction]
    lengths = [len(target) for target in targets]
    moved = information(
        partial(_logits_from, segment, lengths),
        prediction.embeddings[segment.start : segment.stop],
        prediction.mask_vector(mask),
        [Reference(target.log_probs, target.value, target.objective) for target in targets],
        divergence,
        lengths=[length - segment.start for length in lengths],
        by_start=segment.by_start(segment.scored_range, MASKED),
        batches=batches,
        done=done,
        floor=floor,
    )
    return Information(*(part[:, segment.own] for part in moved))


def _logits_from(segment: Segment, lengths: Sequence[int], place: int) -> Logits:
    """What is predicted after contexts of these lengths, if they reach a place, by the states from there on."""
    start = segment.start + place
    read = [length - 1 for length in lengths if length > start]
    return segment.prediction.prompt.logits_from(start, read=read, stop=segment.stop)


# ------------------------------------------------------------------------------------------------------------ low rank
# The part of H in a random subspace near its eigenvectors of largest eigenvalue, and how much that misses.


OVERSAMPLING = 8


class Energy(NamedTuple):
    """Squares of Frobenius norms: of what a low rank leaves out of H, and of what it keeps."""

    missed: float
    kept: float


@dataclass(frozen=True, eq=False)
class LowRank(HessianOperator):
    """``H_k = V diag(λ) Vᵀ``, with the eigenvalues of largest size, and an estimate of ``‖H - H_k‖_F``."""

    vectors: Float[Tensor, "pos d k"]
    values: Float[Tensor, "k"]
    missed_squared: float

    @property
    def like(self) -> Float[Tensor, "pos d"]:
        return self.vectors[..., 0]

    @property
    def energy(self) -> Energy:
        return Energy(self.missed_squared, float(self.values.square().sum()))

    def part(self, start: int, length: int | None = None) -> "LowRank":
        """The same matrix over the positions from ``start`` on; over ``length`` of them, where others do not matter."""
        return replace(self, vectors=self.vectors[start : None if length is None else start + length])

    def matmat(self, directions: Float[Tensor, "k *part d"], places: Places = EVERYWHERE) -> Float[Tensor, "k pos d"]:
        along = rearrange(self.vectors[places], "... rank -> (...) rank")
        weights = rearrange(directions.to(along), "k ... -> k (...)") @ along * self.values
        return einsum(weights, self.vectors, "k rank, pos d rank -> k pos d")


def low_rank(
    operator: HessianOperator,
    rank: int,
    tests: Callable[[int, int, int], Float[Tensor, "k pos d"]],
    probes: Float[Tensor, "probe pos d"],
) -> LowRank:
    """A randomised range finder on the symmetric, indefinite H: ``2 (rank + 8)`` products with it.

    ``tests(count, pos, d)`` are random directions; their images span nearly the range. What is left out is measured on
    ``probes`` that had no part in it: ``E‖(H - H_k) r‖² = ‖H - H_k‖_F²``, which is ``‖H‖_F² - Σ λ²``.
    """
    n, d = probes.shape[1:]
    images = operator.matmat(tests(min(rank + OVERSAMPLING, n * d), n, d))
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


def tail_energy(energies: Sequence[Energy]) -> dict[str, Any]:
    """What low ranks leave out of H, over all windows: ``‖H - H_k‖_F``, and its share of ``‖H‖_F``."""
    if not energies:
        return {}
    missed = sum(energy.missed for energy in energies)
    whole = missed + sum(energy.kept for energy in energies)
    return {"tail_energy": missed**0.5, "tail_energy_share": (missed / whole) ** 0.5 if whole else 0.0}


Support: TypeAlias = Literal["block", "row"]
Norm: TypeAlias = Literal["hutchinson", "exact", "entrywise"]
Probes: TypeAlias = Callable[[Sequence[int]], Sequence[Float[Tensor, "probe d"]]]  # of each of these tokens

AT_ONCE = 32  # directions whose products are held at every position, before a token's own are kept
ENUMERABLE = 20  # `exact` visits every sign vector, so its length is limited: 2^20 of them


@dataclass(frozen=True)
class Curvature(Samples):
    """S as samples to be averaged: one per probe for ``hutchinson``, a single one for the exact norms.

    ``pairs`` are the tokens' interactions, where they were asked for; ``energy`` is how much of H a low rank has.
    ``cross_talk`` is what was taken out of S, where tokens shared HVPs, and ``readings`` are what they showed.
    """

    pairs: Pairs | None = None
    energy: Energy | None = None
    cross_talk: Float[Tensor, "pos"] | None = None
    readings: Sequence[Float[Tensor, "3 _"]] | None = None

    @classmethod
    def of(cls, drawn: Sequence[Float[Tensor, "_"]], pairs: Pairs | None = None) -> "Curvature":
        """Of each token's samples."""
        samples = Samples.uneven(drawn)
        return cls(samples.values, samples.counts, pairs)

    @classmethod
    def of_readings(cls, readings: Sequence[Float[Tensor, "3 _"]], pairs: Pairs | None = None) -> "Curvature":
        """Of what shared HVPs show at each token."""
        made = replace(cls.of(without_cross_talk(readings), pairs), readings=readings)
        if not any(own[2].any() for own in readings):
            return made
        sizes = Samples.uneven([own[0] for own in readings])
        return replace(made, cross_talk=sizes.mean - made.mean)

    @property
    def drawn(self) -> Sequence[Float[Tensor, "3 _"]]:
        """What products show at each token; without cross-talk, where none were shared."""
        if self.readings is not None:
            return self.readings
        both = zip(self.values.T, self.counts.tolist(), strict=True)
        alone = [values[:count] for values, count in both]
        return [torch.stack([sizes, sizes.square(), torch.zeros_like(sizes)]) for sizes in alone]


def curvature(
    hessian_from: HessianFrom,
    embeddings: Float[Tensor, "pos d"],
    probes: Probes,
    *,
    support: Support = "block",
    norm: Norm = "hutchinson",
    by_start: Sequence[Sequence[int]],
    at_once: int = AT_ONCE,
    pairs: bool = False,
) -> Curvature:
    """Of the tokens in ``by_start``, in that order; those of a list share the start of their runs.

    ``hessian_from(start)`` is H from a position on; ``probes(tokens)`` are the signs of each of these tokens.
    ``support="block"`` probes each token alone and looks at its own block of H; ``"row"`` probes all tokens at once.
    ``at_once`` products are held at every position before a token's own are kept. ``pairs`` asks for the tokens'
    interactions as well, which takes all of them.
    """
    n, d = embeddings.shape
    tokens = list(chain(*by_start))
    if support == "row" and norm == "hutchinson":
        signs = torch.stack(list(probes(range(n))), dim=1)
        return Curvature.of(list(hessian_from(0).matmat(signs)[:, tokens].abs().sum(-1).T))
    units = torch.eye(d).to(embeddings)
    directions = probes if norm == "hutchinson" else lambda group: [units] * len(group)
    if support == "block" and not pairs:
        own = _own_products(hessian_from, by_start, directions, at_once)
        return Curvature.of([_SAMPLES[norm](products) for products in own])
    samples, sizes = [], []
    starts = [(0, tokens)] if support == "row" else [(group[0], group) for group in by_start]
    for before, products in _all_products(hessian_from, starts, directions):
        later = products[:, before:]
        samples.append(_SAMPLES[norm](products if support == "row" else later[:, 0]))
        if pairs:
            sizes.append(_PAIR_SIZES[norm](later))
    return Curvature.of(samples, mirrored(sizes) if pairs else None)


def squared_gradient(gradient: Float[Tensor, "pos d"]) -> Float[Tensor, "1 pos"]:
    """``Σ_c (∂g/∂e_ic)²``, in place of S: the trace of the empirical Fisher's block."""
    return rearrange(gradient.square().sum(-1), "pos -> 1 pos")


def check_enumerable(n: int, d: int, support: Support) -> None:
    """Refuse the exact norm where the sign vectors of n tokens cannot all be visited."""
    length = d if support == "block" else n * d
    if length > ENUMERABLE:
        raise ValueError(
            f"norm='exact' visits all 2^{length} sign vectors here, and 2^{ENUMERABLE} is the most it will; "
            "use norm='hutchinson', whose standard error is reported"
        )


def expected_l1(rows: Float[Tensor, "row n"]) -> Float[Tensor, ""]:
    """``E‖rows · s‖₁`` over all sign vectors s (half of them: s and -s agree)."""
    n = rows.shape[1]
    total = rows.new_zeros(())
    for codes in torch.arange(2 ** (n - 1), device=rows.device).split(2**14):
        bits = rearrange(codes, "code -> code 1") >> torch.arange(n, device=rows.device) & 1
        total += ((1 - 2 * bits).to(rows) @ rows.T).abs().sum()
    return total / 2 ** (n - 1)


def _own_products(
    hessian_from: HessianFrom, by_start: Sequence[Sequence[int]], directions: Probes, at_once: int
) -> Iterator[Float[Tensor, "k d"]]:
    """For each token i and its directions u, ``H Π_i u`` at i alone; tokens of a list are done together."""
    for group in by_start:
        operator, own = hessian_from(group[0]), directions(group)
        for places in _few(range(len(group)), at_once // len(own[0])):
            positions = [group[place] - group[0] for place in places]  # in the operator, which begins with the group
            yield from _block_products(operator, positions, [own[place] for place in places], at_once)
        del operator  # and its graph, before the next is built


def _block_products(
    operator: HessianOperator, positions: Sequence[int], directions: Sequence[Float[Tensor, "_ d"]], at_once: int
) -> Sequence[Float[Tensor, "_ d"]]:
    """``H_ii u`` at each of these positions i, for the directions u of its own."""
    counts = [len(own) for own in directions]
    row_positions = torch.repeat_interleave(torch.tensor(positions), torch.tensor(counts)).split(at_once)
    rows = torch.cat(list(directions)).split(at_once)
    span = slice(positions[0], positions[-1] + 1)  # outside which every direction is 0
    products = [_at_own_positions(operator, span, *both) for both in zip(row_positions, rows, strict=True)]
    return torch.cat(products).split(counts)


def _at_own_positions(
    operator: HessianOperator, span: slice, positions: Int[Tensor, "row"], directions: Float[Tensor, "row d"]
) -> Float[Tensor, "row d"]:
    """Each direction's product, read at the one position where the direction stands."""
    rows = torch.arange(len(positions))
    placed = directions.new_zeros(len(rows), span.stop - span.start, directions.shape[1])
    placed[rows, positions - span.start] = directions
    return operator.matmat(placed, span)[rows, positions]


def _all_products(
    hessian_from: HessianFrom, starts: Sequence[tuple[int, Sequence[int]]], directions: Probes
) -> Iterator[tuple[int, Float[Tensor, "k part d"]]]:
    """For each token i and its directions u, ``H Π_i u`` from where its run starts; and how much is before i's own."""
    for start, group in starts:
        operator = hessian_from(start)
        for i, own in zip(group, directions(group), strict=True):
            yield i - start, torch.cat([operator.matmat(few, i - start) for few in own.split(AT_ONCE)])
        del operator


def _few(group: Sequence[int], size: int) -> list[Sequence[int]]:
    return [group[at : at + max(1, size)] for at in range(0, len(group), max(1, size))]


_SAMPLES: dict[Norm, Callable[[Float[Tensor, "k *part d"]], Float[Tensor, "sample"]]] = {
    "hutchinson": lambda products: products.abs().flatten(1).sum(1),
    "exact": lambda products: expected_l1(products.flatten(1))[None],
    "entrywise": lambda products: products.abs().sum()[None],
}
_PAIR_SIZES: dict[Norm, Callable[[Float[Tensor, "k later d"]], Sizes]] = {
    "hutchinson": probed_sizes,
    "exact": frobenius_sizes,
    "entrywise": entrywise_sizes,
}


# ---------------------------------------------------------------------------------------------------------- estimators
# How the curvature S is obtained: one class per kind, which samples it and says what that takes.
#
# To add one, write a class with `estimate` and `cost` whose fields are the options of HETA that it reads, and name it
# in
# a row of `variants.VARIANTS`.


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


# ------------------------------------------------------------------------------------------------------------ stopping
# When to stop probing: which tokens' curvature needs more probes, by what is known of their scores so far.


LEAST = 3  # probes from which a standard error is estimated
FIRST = 0.1  # of the highest bound: tokens that are probed before it is known what is small


def estimate_until_sure(
    estimator: ProbedHessian, problems: Sequence[Problem], parts: Parts, balance: Balance
) -> tuple[Curvature, dict[str, Any]]:
    """S from as many probes of each token as its score needs; the segments score every token once."""
    drawn = [parts.gate.new_empty(3, 0)] * len(parts.gate)
    bound = torch.cat([upper(estimator.rows(problem)) for problem in problems]) if estimator.prune else None
    parts = replace(parts, curvature=Curvature.of_readings(drawn))
    missing = probes_missing(estimator, parts, balance, bound)
    while missing:
        for problem in problems:
            wanted = {position: missing[position] for position in problem.segment.scored_range if position in missing}
            samples = estimator.estimate(problem, wanted).drawn if wanted else []
            for position, more in zip(wanted, samples, strict=True):
                drawn[position] = torch.cat([drawn[position], more], 1)
        parts = replace(parts, curvature=Curvature.of_readings(drawn))
        missing = probes_missing(estimator, parts, balance, bound)
    samples = Curvature.of_readings(drawn)
    return samples, _how_sure(estimator, parts, balance, samples.counts)


def probes_missing(
    estimator: ProbedHessian, parts: Parts, balance: Balance, bound: Float[Tensor, "pos"] | None
) -> Wanted:
    """The probes that tokens should have next, of those that should have more."""
    assert parts.curvature is not None
    have = parts.curvature.counts.tolist()
    wanted = probes_wanted(parts, balance, bound, estimator.tolerance, estimator.prune, estimator.probes).tolist()
    if estimator.support == "row":  # whose probes are of all tokens at once
        wanted = [max(wanted)] * len(wanted)
    both = enumerate(zip(have, wanted, strict=True))
    return {position: range(had, needed) for position, (had, needed) in both if needed > had}


def _how_sure(estimator: ProbedHessian, parts: Parts, balance: Balance, counts: Int[Tensor, "pos"]) -> dict[str, Any]:
    facts: dict[str, Any] = {"probes": counts, "pruned": counts.tolist().count(0)}
    if facts["pruned"]:
        facts["balanced"] = None  # which would need every token's S
    if estimator.tolerance is not None:
        width = estimator.tolerance * parts.score(balance).abs().max()
        facts["unsure"] = int((parts.half_widths(balance) > width).sum())
    return facts


def probes_wanted(
    parts: Parts,
    balance: Balance,
    bound: Float[Tensor, "pos"] | None,
    tolerance: float | int | None,
    prune: float | int,
    most: int,
) -> Int[Tensor, "pos"]:
    """How many probes each token should have next: as many as it has, where more would not matter.

    A token is probed only if its curvature, which is below ``bound``, may add more than ``prune`` times the largest
    score; and then until the 95 % half-width of its score is within ``tolerance`` times it, or to the ``most``.
    """
    assert parts.curvature is not None
    have = parts.curvature.counts
    largest = parts.score(balance).abs().max()
    new = have == 0
    if bound is not None:
        term = parts.gate * parts.beta * bound
        small = prune * largest if have.any() else torch.maximum(prune * largest, FIRST * term.max())
        new &= ~(term <= small)  # what is not a number is not small
    wanted = torch.where(new, most if tolerance is None else LEAST, have)
    if tolerance is None or not have.any():
        return wanted
    product = parts.combine == "geometric"  # of which S has the spread that is known, and the score a part of that
    errors = parts.standard_errors(balance)["curvature" if product else "scores"]
    assert errors is not None
    term = parts.means["curvature"] if product else parts.terms(balance)["curvature"]
    spread = errors * have.sqrt()
    # Three probes may agree by accident: no token's spread counts for less than the usual one.
    usual = (spread / term)[term > 0].median() if (term > 0).any() else 0
    spread = torch.maximum(spread, usual * term)
    half_widths = parts.product_half_widths if product else torch.clone
    needed = probes_needed(spread, float(tolerance * largest), most, half_widths).to(have)
    # And three may differ by accident: go no further than to twice as many.
    return torch.where((have > 0) & (needed > have), torch.minimum(needed, 2 * have), wanted)


def probes_needed(
    spread: Float[Tensor, "pos"],
    width: float,
    most: int,
    half_widths: Callable[[Float[Tensor, "count pos"]], Float[Tensor, "count pos"]] = torch.clone,
) -> Int[Tensor, "pos"]:
    """The fewest probes, at least three, whose mean has a 95 % half-width within ``width``; at most ``most``.

    ``half_widths`` are the scores' of those of what is probed.
    """
    counts = torch.arange(LEAST, most)
    reach = torch.from_numpy(student.ppf(0.975, counts - 1) / counts.sqrt().numpy()).to(spread)
    return LEAST + (half_widths(spread * reach[:, None]) > width).sum(0)


def upper(row: Samples) -> Float[Tensor, "pos"]:
    """An upper end for the row form's curvature, which is never below the block form's."""
    return row.mean + student_t(row.counts).to(row.mean) * row.deviations.square().sum(0).sqrt()
