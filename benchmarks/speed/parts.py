"""What the parts of the score cost: by the naive implementation, and as `Heta` finds them.

A part of the work is measured and stands for the rest: the naive implementation costs the same for every token; the
exact path costs a start for each group of neighbours and then as much for each of its tokens, and both are
interpolated over how many positions a run passes through.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import heta_lens
from benchmarks.reference import block_curvature, gradient_graph, naive_information
from benchmarks.speed.cases import Case, Plan
from benchmarks.speed.models import SEED
from heta_lens._util.numerics import DIVERGENCES
from heta_lens.methods.heta.curvature import AT_ONCE, Curvature, Segment, curvature
from heta_lens.methods.heta.hessian import HessianOperator
from heta_lens.methods.heta.probes import grouped_products, rademacher
from heta_lens.methods.heta.score import Reference, information
from heta_lens.model.batching import MASKED, Batches, per_product

Read = Callable[[], float]
"""A meter: seconds passed so far, or FLOPs counted."""


class Measured(NamedTuple):
    """What all tokens cost, and the parts of the score that were found on the way, by position."""

    total: float
    found: dict[int, float]


def spread(items: Sequence[Any], count: int | None) -> list[Any]:
    """So many of them, evenly, the first and the last among them."""
    if count is None or count >= len(items):
        return [*items]
    return [items[round(at)] for at in np.linspace(0, len(items) - 1, count)] if count > 1 else [items[0]]


def grouped(piece: Segment, start_cost: float, plan: Plan) -> tuple[list[list[int]], list[list[int]]]:
    """All groups of tokens that a piece scores, and those that are measured."""
    groups = piece.by_start(range(*piece.scored), start_cost)
    return groups, spread(groups, plan.groups)


def at_once(case: Case, piece: Segment, products: bool = False) -> Batches:
    return case.prediction.prompt.batches(case.plan.batch, len(piece.states), products=products)


def extrapolated(measured: dict[int, tuple[float, float]], passed: Sequence[int], counts: Sequence[int]) -> float:
    """What groups of so many tokens cost, by the positions their runs pass through: a start, and then each token."""
    at = sorted(measured)
    starts, tokens = (np.interp(passed, at, [measured[reach][k] for reach in at]) for k in range(2))
    return float((starts + tokens * np.array(counts)).sum())


def reach(piece: Segment, group: Sequence[int]) -> int:
    return len(piece.states) - group[0]


def naive_s(case: Case, read: Read) -> Measured:
    groups = grouped(case.whole, per_product(case.plan.probes), case.plan)[1]
    tokens = spread([group[0] for group in groups] if case.plan.naive else range(len(case.ids[0])), case.plan.naive)
    begun = read()
    graph = gradient_graph(case.model, case.ids, case.target)
    built = read()
    curvatures = {i: float(block_curvature(graph, i, case.plan.probes, SEED)) for i in tokens}
    return Measured(built - begun + (read() - built) / len(tokens) * case.ids.shape[1], curvatures)


def naive_i(case: Case, read: Read) -> Measured:
    groups = grouped(case.whole, MASKED, case.plan)[1]
    tokens = spread([group[0] for group in groups] if case.plan.naive else range(len(case.ids[0])), case.plan.naive)
    begun = read()
    divergences = naive_information(case.model, case.ids, tokens).tolist()
    each = (read() - begun) / (1 + len(tokens))
    return Measured(each * (1 + case.ids.shape[1]), dict(zip(tokens, divergences, strict=True)))


def grouped_s(case: Case, read: Read, piece: Segment | None = None) -> Measured:
    """S as `Heta` finds it unless told otherwise; or one probe, which stands for the others (and no graph that begins
    later, so that it costs no less)."""
    piece, shared = piece or case.whole, heta_lens.Heta().groups
    assert shared is not None
    if len(piece.scored_range) <= shared:
        return one_by_one_s(case, read, piece)
    batches, whole = at_once(case, piece, products=True), case.plan.groups is None
    probes = case.plan.probes if whole else 1
    wanted, building = dict.fromkeys(piece.scored_range, range(probes)), list[float]()

    def hessian_from(place: int) -> HessianOperator:
        begun = read()
        operator = piece.hessian_from(batches, lambda _: None, piece.own.start + place)
        building.append(read() - begun)
        return operator

    begun = read()
    products = grouped_products(hessian_from, SEED, wanted, shared, AT_ONCE, late=whole and piece.restarts)
    each = (read() - begun - sum(building)) / (shared * probes + 1)
    found = Curvature.of_readings(products.readings()).mean
    curvatures = dict(zip(wanted, found.tolist(), strict=True)) if probes > 1 else {}
    return Measured(sum(building) + each * (shared * case.plan.probes + 1), curvatures)


def one_by_one_s(case: Case, read: Read, piece: Segment | None = None) -> Measured:
    """S of a few tokens of some groups, with ``groups=None``."""
    piece = piece or case.whole
    batches, states = at_once(case, piece, products=True), piece.states
    hessian_from = partial(piece.hessian_from, batches, lambda _: None)
    measured: dict[int, tuple[float, float]] = {}
    curvatures: dict[int, float] = {}
    starts: list[float] = []

    def watched(at: int) -> HessianOperator:
        begun = read()
        operator = hessian_from(at)
        starts.append(read() - begun)
        return operator

    def signs(tokens: Sequence[int]) -> list[Tensor]:
        first, d = piece.window.start, states.shape[1]
        return [rademacher(SEED, first + token, case.plan.probes, d).to(states) for token in tokens]

    groups, chosen = grouped(piece, per_product(case.plan.probes), case.plan)
    for group in chosen:
        copies = batches.of(reach(piece, group))
        some = spread(group, case.plan.groups and max(1, copies // case.plan.probes))
        begun = read()
        bent = curvature(watched, states, signs, by_start=[some])
        each = (read() - begun - starts[-1]) / len(some)
        measured[reach(piece, group)] = starts[-1], each
        curvatures |= zip(some, bent.mean.tolist(), strict=True)
    return Measured(extrapolated(measured, [reach(piece, group) for group in groups], [*map(len, groups)]), curvatures)


def row_s(case: Case, read: Read) -> Measured:
    """S of all tokens at once."""
    piece, probes = case.whole, case.plan.probes
    states = piece.states
    hessian_from = partial(piece.hessian_from, at_once(case, piece, products=True), lambda _: None)
    begun = read()
    curvature(
        hessian_from,
        states,
        lambda tokens: [rademacher(SEED, token, probes, states.shape[1]).to(states) for token in tokens],
        support="row",
        by_start=[[*range(len(states))]],
    )
    return Measured(read() - begun, {})


@torch.no_grad()
def exact_i(case: Case, read: Read, piece: Segment | None = None) -> Measured:
    """I of some groups, as `Heta` finds it; of each as many tokens as are run at once."""
    piece = piece or case.whole
    prediction, batches = piece.prediction, at_once(case, piece)
    measured: dict[int, tuple[float, float]] = {}
    divergences: dict[int, float] = {}
    groups, chosen = grouped(piece, MASKED, case.plan)
    for group in chosen:
        some = spread(group, case.plan.groups and batches.of(reach(piece, group)))
        begun = read()
        moved = information(
            lambda at: prediction.prompt.logits_from(piece.start + at, read=[len(prediction) - 1], stop=piece.stop),
            prediction.embeddings[piece.start : piece.stop],
            torch.zeros_like(prediction.embeddings[0]),
            [Reference(prediction.log_probs, prediction.value, prediction.objective)],
            DIVERGENCES["orig_masked"],
            by_start=[some],
            batches=batches,
            done=lambda _: None,
        )
        measured[reach(piece, group)] = 0.0, (read() - begun) / len(some)
        divergences |= zip(some, moved.divergence[0, some].tolist(), strict=True)
    return Measured(extrapolated(measured, [reach(piece, group) for group in groups], [*map(len, groups)]), divergences)


PARTS: dict[str, tuple[Any, Any]] = {"curvature": (naive_s, grouped_s), "information": (naive_i, exact_i)}
ROW, ALONE = 'curvature, support="row"', "curvature, groups=None"
