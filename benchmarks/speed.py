"""The cost of scores, beside a naive implementation of the paper's formulas (`reference`).

Long contexts would take hours, so a part of the work is measured and stands for the rest. The naive implementation
costs the same for every token. The exact path costs a start for each group of neighbours and then as much for each
token of the group; both costs are interpolated over the number of positions that a run passes.
"""

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.progress import track
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import heta_lens
from benchmarks import pages
from benchmarks.models import SEED, SIZES, predicted, random_model, random_tokens
from benchmarks.pages import Table, number
from benchmarks.reference import block_curvature, gradient_graph, naive_information
from heta_lens._util.numerics import DIVERGENCES
from heta_lens._util.python import versions
from heta_lens._util.work import Allocations
from heta_lens.methods.heta.curvature import AT_ONCE, Curvature, Probed, Task
from heta_lens.methods.heta.hessian import HessianOperator, hessian
from heta_lens.methods.heta.probes import grouped_products
from heta_lens.methods.heta.windows import Window, windows_of
from heta_lens.model.batching import MASKED, Batches, per_product
from heta_lens.prediction.masking import masked_effects

LENGTHS = [32, 128, 512]


class Plan(NamedTuple):
    """Probes per token, and the measured part: tokens of the naive implementation, groups of ours; None for everything.

    In a group, as many tokens are measured as run at once.
    """

    probes: int
    naive: int | None
    groups: int | None


def plan_of(n: int) -> Plan:
    return Plan(10, 2, 4) if n > LENGTHS[0] else Plan(10, 4, 6)


class Case(NamedTuple):
    model: Any
    ids: Tensor
    prediction: heta_lens.Prediction
    plan: Plan

    @classmethod
    def of(cls, model: Any, ids: Tensor, plan: Plan) -> "Case":
        return cls(model, ids, predicted(model, ids), plan)

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
    return case.prediction.batches("auto", len(piece.states), products=products)


def reach(piece: Window, group: Sequence[int]) -> int:
    return len(piece.states) - group[0]


def extrapolated(measured: dict[int, tuple[float, float]], piece: Window, groups: Sequence[Sequence[int]]) -> float:
    """Return the cost of groups, interpolated over positions: a start, and then each token."""
    at, passed = sorted(measured), [reach(piece, group) for group in groups]
    starts, tokens = (np.interp(passed, at, [measured[reached][k] for reached in at]) for k in range(2))
    return float((starts + tokens * np.array([*map(len, groups)])).sum())


def naive_tokens(case: Case, start_cost: float) -> list[int]:
    """Return the measured tokens: the first of some groups, or all tokens."""
    if case.plan.naive is None:
        return [*range(case.ids.shape[1])]
    return spread([group[0] for group in grouped(case.whole, start_cost, case.plan)[1]], case.plan.naive)


def naive_s(case: Case, read: Read) -> Measured:
    tokens, begun = naive_tokens(case, per_product(case.plan.probes)), read()
    graph = gradient_graph(case.model, case.ids, case.target)
    built = read()
    curvatures = {i: float(block_curvature(graph, i, case.plan.probes, SEED)) for i in tokens}
    return Measured(built - begun + (read() - built) / len(tokens) * case.ids.shape[1], curvatures)


def naive_i(case: Case, read: Read) -> Measured:
    tokens, begun = naive_tokens(case, MASKED), read()
    divergences = naive_information(case.model, case.ids, tokens).tolist()
    each = (read() - begun) / (1 + len(tokens))
    return Measured(each * (1 + case.ids.shape[1]), dict(zip(tokens, divergences, strict=True)))


def grouped_s(case: Case, read: Read) -> Measured:
    """Measure S with the default options; a single probe stands for the others of a long context."""
    piece, shared = case.whole, heta_lens.Heta().groups
    assert shared is not None
    if len(piece.scored) <= shared:
        return one_by_one_s(case, read)
    batches, whole = at_once(case, piece, products=True), case.plan.groups is None
    probes = case.plan.probes if whole else 1
    begun = read()
    operator = hessian(piece.rerun(), batches)
    built = read()
    products = grouped_products(operator, SEED, piece.scored, probes, shared, AT_ONCE)
    each = (read() - built) / (shared * probes + 1)
    found = Curvature.of(products.readings()).samples.mean(0)
    curvatures = dict(zip(piece.scored, found.tolist(), strict=True)) if probes > 1 else {}
    return Measured(built - begun + each * (shared * case.plan.probes + 1), curvatures)


def probing(probes: int, **options: Any) -> Probed:
    """Return the estimator that probes every token alone."""
    estimator = heta_lens.Heta(probes=probes, seed=SEED, groups=None, **options).estimator
    assert isinstance(estimator, Probed)
    return estimator


def one_by_one_s(case: Case, read: Read) -> Measured:
    """Measure S of a few tokens of some groups, with ``groups=None``."""
    piece = case.whole
    batches = at_once(case, piece, products=True)
    measured: dict[int, tuple[float, float]] = {}
    curvatures: dict[int, float] = {}
    starts: list[float] = []

    def watched(at: int) -> HessianOperator:
        begun = read()
        operator = hessian(piece.rerun(at), batches)
        starts.append(read() - begun)
        return operator

    task, estimator = Task(piece, batches), probing(case.plan.probes)
    groups, chosen = grouped(piece, per_product(case.plan.probes), case.plan)
    for group in chosen:
        copies = batches.of(reach(piece, group))
        some = spread(group, case.plan.groups and max(1, copies // case.plan.probes))
        begun = read()
        bent = estimator.probe_each(task, watched, [some])
        each = (read() - begun - starts[-1]) / len(some)
        measured[reach(piece, group)] = starts[-1], each
        curvatures |= zip(some, bent.samples.mean(0).tolist(), strict=True)
    return Measured(extrapolated(measured, piece, groups), curvatures)


def row_s(case: Case, read: Read) -> Measured:
    piece, probes = case.whole, case.plan.probes
    batches, places = at_once(case, piece, products=True), range(len(piece.span))
    begun = read()
    task = Task(piece, batches)
    probing(probes, support="row").probe_each(task, lambda at: hessian(piece.rerun(at), batches), [[*places]])
    return Measured(read() - begun, {})


@torch.no_grad()
def exact_i(case: Case, read: Read) -> Measured:
    """Measure I of some groups, for as many tokens of each as run at once."""
    piece = case.whole
    prediction, batches = piece.prediction, at_once(case, piece)
    measured: dict[int, tuple[float, float]] = {}
    divergences: dict[int, float] = {}
    groups, chosen = grouped(piece, MASKED, case.plan)
    for group in chosen:
        some = spread(group, case.plan.groups and batches.of(reach(piece, group)))
        begun = read()
        moved = masked_effects(
            [prediction], "zero", DIVERGENCES["orig_masked"], batches=batches, parts=[range(at, at + 1) for at in some]
        )
        measured[reach(piece, group)] = 0.0, (read() - begun) / len(some)
        divergences |= zip(some, moved.divergence[0].tolist(), strict=True)
    return Measured(extrapolated(measured, piece, groups), divergences)


ROW, ALONE = 'curvature, support="row"', "curvature, groups=None"
PARTS = ("curvature", "information")


def counted(run: Callable[[Read], Any]) -> Any:
    with FlopCounterMode(display=False) as counter:
        return run(lambda: float(counter.get_total_flops()))


@torch.no_grad()
def forward_flops(case: Case) -> float:
    """Return the FLOPs of one clean run of the whole prompt, every position unembedded."""
    with FlopCounterMode(display=False) as counter:
        case.model(case.ids)
    return float(counter.get_total_flops())


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


# --------------------------------------------------------------------------------------------------- costs of the parts
class Cost(NamedTuple):
    """The cost of one part of the score, naive and ours: seconds by repeat, FLOPs, MiB; and the difference of the
    parts.
    """

    seconds: list[tuple[float, float]]
    flops: tuple[float, float]
    memory: tuple[float, float]
    floor: float
    difference: float

    @property
    def naive(self) -> float:
        return median(seconds for seconds, _ in self.seconds)

    @property
    def ours(self) -> float:
        return median(seconds for _, seconds in self.seconds)


def costs(case: Case, repeats: int) -> dict[str, Cost]:
    """Return costs; a first round warms up, counts FLOPs and watches memory, then timed rounds take turns."""
    curvatures = {"curvature": grouped_s, ALONE: one_by_one_s, ROW: row_s}
    return compared(case, naive_s, curvatures, repeats) | compared(case, naive_i, {"information": exact_i}, repeats)


def compared(case: Case, naive: Any, ours: dict[str, Any], repeats: int) -> dict[str, Cost]:

    def running(way: str) -> Callable[[Case, Read], Measured]:
        def run(case: Case, read: Read) -> Measured:
            gc.collect()  # graphs that nobody asks for any more
            with case.prediction.running():
                return ours[way](case, read)

        return run

    every = {"naive": naive, **{way: running(way) for way in ours}}
    seen, memory = dict[str, Measured](), dict[str, float]()
    for way, run in every.items():
        with Allocations() as held:
            seen[way] = counted(lambda read, run=run: run(case, read))
        memory[way] = held.most / 2**20
    seconds = [{way: run(case, time.perf_counter).total for way, run in every.items()} for _ in range(repeats)]
    floor = floors(case.model.cfg, case.ids.shape[1], case.plan.probes)
    return {
        way: Cost(
            [(one["naive"], one[way]) for one in seconds],
            (seen["naive"].total, seen[way].total),
            (memory["naive"], memory[way]),
            floor[way],
            gap(seen["naive"].found, seen[way].found),
        )
        for way in ours
    }


def gap(expected: dict[int, float], actual: dict[int, float]) -> float:
    """Return the largest difference, relative to the largest expected value; NaN without shared tokens."""
    shared = expected.keys() & actual.keys()
    most = max((abs(actual[i] - expected[i]) for i in shared), default=np.nan)
    return most / max((abs(expected[i]) for i in shared), default=1)


COSTS = [
    "N", "probes", "part", "naive, s", "ours, s", "naive / ours", "naive, forwards", "ours, forwards",
    "ours / floor", "naive, MiB", "ours, MiB", "difference",
]  # fmt: skip


def cost_rows(case: Case, part_costs: dict[str, Cost]) -> Iterator[list[str]]:
    forward = forward_flops(case)
    parts = [part_costs[part] for part in PARTS]
    taken = zip(*(part.seconds for part in parts), strict=True)
    together = Cost(
        [(sum(naive), sum(ours)) for naive, ours in (zip(*both, strict=True) for both in taken)],
        (sum(p.flops[0] for p in parts), sum(p.flops[1] for p in parts)),
        (max(p.memory[0] for p in parts), max(p.memory[1] for p in parts)),
        sum(p.floor for p in parts),
        max(p.difference for p in parts),
    )
    shown = {**{part: part_costs[part] for part in PARTS}, "together": together}
    for part, one in (shown | part_costs).items():
        ratios = [naive / ours for naive, ours in one.seconds]
        yield [
            str(case.ids.shape[1]),
            str(case.plan.probes),
            part,
            *(f"~{number(seconds)}" for seconds in (one.naive, one.ours)),
            f"~{number(median(ratios))} ({number(min(ratios))}–{number(max(ratios))})",
            *(f"~{number(flops / forward)}" for flops in one.flops),
            f"~{one.flops[1] / one.floor:.2f}",
            *(f"{memory:.0f}" for memory in one.memory),
            "–" if np.isnan(one.difference) else f"{one.difference:.0e}",
        ]


WAIT_COLUMNS = ["tokens of context", "probes", "naive implementation", "`attribute(cache)`", '`support="row"`']


def wait_row(case: Case, part_costs: dict[str, Cost]) -> list[str]:
    naive, ours = (sum(getattr(part_costs[part], of) for part in PARTS) for of in ("naive", "ours"))
    row = part_costs[ROW].ours + part_costs["information"].ours
    faster = (f"~{number(naive / seconds)} times as fast (~{number(seconds)} s)" for seconds in (ours, row))
    return [str(case.ids.shape[1]), str(case.plan.probes), f"~{number(naive)} s", *faster]


# -------------------------------------------------------------------------------------------------------------- tables
REPEATS = 2
WAITED = "gpt2-like"
WAIT_TITLE = "What you wait for"
WAIT_NOTE = f"The model is {WAITED}: 8 layers of width 512, random weights. ~ is extrapolated."


def run(*models: str) -> None:
    for name in models or SIZES:
        pages.write("speed", measured(name, random_model(SIZES[name]), LENGTHS))


def measured(name: str, model: Any, lengths: Sequence[int]) -> Iterator[Table]:
    rows, waits = list[list[str]](), list[list[str]]()
    for n in track([n for n in lengths if n <= model.cfg.n_ctx], name):
        case = Case.of(model, random_tokens(model, n), plan_of(n))
        part_costs = costs(case, REPEATS)
        rows += cost_rows(case, part_costs)
        waits.append(wait_row(case, part_costs))
    used = ", ".join(map(" ".join, versions().items()))
    note = f"{torch.get_num_threads()} threads, float32 on the CPU; {used}."
    yield Table(f"{name}: the naive implementation and ours", COSTS, rows, note=note)
    if name == WAITED:
        yield Table(WAIT_TITLE, WAIT_COLUMNS, waits, note=WAIT_NOTE)
