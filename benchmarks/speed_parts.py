"""The parts of the score, by the naive implementation and as `Heta` finds them, measured on a part of the work.

The naive implementation costs the same for every token. The exact path costs a start for each group of neighbours and
then as much for each token of the group; both costs are interpolated over the number of positions that a run passes.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import heta_lens
from benchmarks.models import SEED
from benchmarks.reference import block_curvature, gradient_graph, naive_information
from heta_lens._util.numerics import DIVERGENCES
from heta_lens.methods.heta.curvature import AT_ONCE, Curvature, Probed, Task
from heta_lens.methods.heta.hessian import HessianOperator, hessian
from heta_lens.methods.heta.probes import grouped_products
from heta_lens.methods.heta.windows import Window, windows_of
from heta_lens.model.batching import MASKED, Batches, per_product
from heta_lens.prediction.masking import masked_effects

LENGTHS = [32, 128, 512, 2048]
SMALL = 10**7  # parameters; of a larger model, whole scores are asked of the shortest context alone


class Plan(NamedTuple):
    """Probes per token, and the measured part: tokens of the naive implementation, groups of ours; None for everything.

    In a group, as many tokens are measured as run at once.
    """

    probes: int
    naive: int | None
    groups: int | None
    batch: int | Literal["auto"] = "auto"


PLANS = {32: Plan(10, 4, 6), 128: Plan(10, 2, 4), 512: Plan(10, 2, 4), 2048: Plan(10, 1, 3)}


def plan_of(n: int, parameters: int) -> Plan:
    if parameters < SMALL and n <= LENGTHS[0]:
        return Plan(10, None, None)
    return PLANS[max(length for length in PLANS if length <= n)]


class Case(NamedTuple):
    model: Any
    ids: Tensor
    prediction: heta_lens.Prediction
    plan: Plan

    @classmethod
    def of(cls, model: Any, ids: Tensor, plan: Plan) -> "Case":
        _, cache = model.run_with_cache(ids, names_filter=heta_lens.names_filter)
        return cls(model, ids, heta_lens.Prediction.from_cache(cache, tokens=ids), plan)

    @property
    def whole(self) -> Window:
        return windows_of(self.prediction, [range(len(self.prediction))])[0]

    @property
    def target(self) -> int:
        assert isinstance(self.prediction.target, int)
        return self.prediction.target


Read = Callable[[], float]
"""A meter: seconds passed so far, or FLOPs counted."""


class Measured(NamedTuple):
    """The cost of all tokens, and the parts of the score found on the way, by position."""

    total: float
    found: dict[int, float]


def spread(items: Sequence[Any], count: int | None) -> list[Any]:
    """Return a number of items, spread evenly, the first and the last among them."""
    if count is None or count >= len(items):
        return [*items]
    return [items[round(at)] for at in np.linspace(0, len(items) - 1, count)] if count > 1 else [items[0]]


def grouped(piece: Window, start_cost: float, plan: Plan) -> tuple[list[list[int]], list[list[int]]]:
    """Return all groups of tokens that a piece scores, and the measured groups."""
    groups = piece.by_start(piece.scored, start_cost)
    return groups, spread(groups, plan.groups)


def at_once(case: Case, piece: Window, products: bool = False) -> Batches:
    return case.prediction.prompt.batches(case.plan.batch, len(piece.states), products=products)


def extrapolated(measured: dict[int, tuple[float, float]], passed: Sequence[int], counts: Sequence[int]) -> float:
    """Return the cost of groups, interpolated over positions: a start, and then each token."""
    at = sorted(measured)
    starts, tokens = (np.interp(passed, at, [measured[reach][k] for reach in at]) for k in range(2))
    return float((starts + tokens * np.array(counts)).sum())


def reach(piece: Window, group: Sequence[int]) -> int:
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


def grouped_s(case: Case, read: Read, piece: Window | None = None) -> Measured:
    """Measure S with the default options; a single probe stands for the others of a long context."""
    piece, shared = piece or case.whole, heta_lens.Heta().groups
    assert shared is not None
    if len(piece.scored) <= shared:
        return one_by_one_s(case, read, piece)
    batches, whole = at_once(case, piece, products=True), case.plan.groups is None
    probes = case.plan.probes if whole else 1
    wanted, begun = dict.fromkeys(piece.scored, range(probes)), read()
    operator = hessian(piece.rerun(piece.scored.start - piece.span.start), batches)
    built = read()
    products = grouped_products(operator, SEED, wanted, shared, AT_ONCE)
    each = (read() - built) / (shared * probes + 1)
    found = Curvature.of(products.readings()).mean
    curvatures = dict(zip(wanted, found.tolist(), strict=True)) if probes > 1 else {}
    return Measured(built - begun + each * (shared * case.plan.probes + 1), curvatures)


def probing(probes: int, **options: Any) -> Probed:
    """Return the estimator that probes every token alone."""
    estimator = heta_lens.Heta(probes=probes, seed=SEED, groups=None, **options).estimator
    assert isinstance(estimator, Probed)
    return estimator


def one_by_one_s(case: Case, read: Read, piece: Window | None = None) -> Measured:
    """Measure S of a few tokens of some groups, with ``groups=None``."""
    piece = piece or case.whole
    batches = at_once(case, piece, products=True)
    measured: dict[int, tuple[float, float]] = {}
    curvatures: dict[int, float] = {}
    starts: list[float] = []

    def watched(at: int) -> HessianOperator:
        begun = read()
        operator = hessian(piece.rerun(at), batches)
        starts.append(read() - begun)
        return operator

    probes, task = dict.fromkeys(piece.span, range(case.plan.probes)), Task(piece, batches)
    estimator = probing(case.plan.probes)
    groups, chosen = grouped(piece, per_product(case.plan.probes), case.plan)
    for group in chosen:
        copies = batches.of(reach(piece, group))
        some = spread(group, case.plan.groups and max(1, copies // case.plan.probes))
        begun = read()
        bent = estimator.probe_each(task, probes, watched, [some])
        each = (read() - begun - starts[-1]) / len(some)
        measured[reach(piece, group)] = starts[-1], each
        curvatures |= zip(some, bent.mean.tolist(), strict=True)
    return Measured(extrapolated(measured, [reach(piece, group) for group in groups], [*map(len, groups)]), curvatures)


def row_s(case: Case, read: Read) -> Measured:
    piece, probes = case.whole, case.plan.probes
    batches, places = at_once(case, piece, products=True), range(len(piece.span))
    begun = read()
    task, wanted = Task(piece, batches), dict.fromkeys(piece.span, range(probes))
    probing(probes, support="row").probe_each(task, wanted, lambda at: hessian(piece.rerun(at), batches), [[*places]])
    return Measured(read() - begun, {})


@torch.no_grad()
def exact_i(case: Case, read: Read, piece: Window | None = None) -> Measured:
    """Measure I of some groups, for as many tokens of each as run at once."""
    piece = piece or case.whole
    prediction, batches = piece.prediction, at_once(case, piece)
    measured: dict[int, tuple[float, float]] = {}
    divergences: dict[int, float] = {}
    groups, chosen = grouped(piece, MASKED, case.plan)
    for group in chosen:
        some = spread(group, case.plan.groups and batches.of(reach(piece, group)))
        begun = read()
        moved = masked_effects(
            [prediction],
            "zero",
            DIVERGENCES["orig_masked"],
            batches=batches,
            start=piece.start,
            stop=piece.stop,
            positions=[piece.start + place for place in some],
        )
        measured[reach(piece, group)] = 0.0, (read() - begun) / len(some)
        divergences |= zip(some, moved.divergence[0].tolist(), strict=True)
    return Measured(extrapolated(measured, [reach(piece, group) for group in groups], [*map(len, groups)]), divergences)


ROW, ALONE = 'curvature, support="row"', "curvature, groups=None"
PARTS: dict[str, tuple[Any, Any]] = {"curvature": (naive_s, grouped_s), "information": (naive_i, exact_i)}


def counted(run: Callable[[Read], Any]) -> Any:
    with FlopCounterMode(display=False) as counter:
        return run(lambda: float(counter.get_total_flops()))


@torch.no_grad()
def forward_flops(case: Case) -> float:
    """Return the FLOPs of one clean run of the whole prompt, every position unembedded."""

    def forward(read: Read) -> float:
        case.model(case.ids)
        return read()

    return counted(forward)


def suffix_flops(cfg: Any, q: int, n: int, read: int = 1) -> float:
    """Return the FLOPs of a run of the last q of n positions, worked out by hand: matrix products, and attention over
    all keys. Only read positions run behind the last attention.
    """
    heads, values = (count * cfg.d_head for count in (cfg.n_heads, getattr(cfg, "n_key_value_heads", 0) or cfg.n_heads))
    attention, mlp = 2 * (heads + values), (3 if cfg.gated_mlp else 2) * cfg.d_mlp
    columns = cfg.n_layers * q * attention + ((cfg.n_layers - 1) * q + read) * mlp + read * cfg.d_vocab
    return 2 * cfg.d_model * columns + cfg.n_layers * 4 * q * n * heads


def floors(cfg: Any, n: int, probes: int) -> dict[str, float]:
    """Return the least cost of products and runs: the token's own suffix alone, without the start.

    A shared product runs the suffix of the first token, nearly everything.
    """
    runs, whole = sum(suffix_flops(cfg, n - i, n) for i in range(n)), suffix_flops(cfg, n, n)
    shared = heta_lens.Heta().groups
    alone = 2 * probes * runs
    grouped = alone if shared is None or n <= shared else 2 * (shared * probes + 1) * whole
    return {"curvature": grouped, "information": runs, ALONE: alone, ROW: 2 * probes * whole}
