"""The cost of scores and of cheaper ways, beside a naive implementation of the paper's formulas (`reference`).

Long contexts would take hours, so a part of the work is measured and stands for the rest (see `speed_parts`).
"""

import gc
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.progress import track

import heta_lens
from benchmarks import pages
from benchmarks.models import MODELS, available, prompt
from benchmarks.pages import Table, number
from benchmarks.speed_parts import (
    ALONE,
    LENGTHS,
    PARTS,
    ROW,
    SMALL,
    Case,
    Measured,
    Read,
    at_once,
    counted,
    exact_i,
    floors,
    forward_flops,
    grouped_s,
    one_by_one_s,
    plan_of,
    row_s,
)
from heta_lens._util.python import versions
from heta_lens._util.work import Allocations
from heta_lens.diagnostics import agreement
from heta_lens.methods.heta.curvature import OVERSAMPLING
from heta_lens.methods.heta.hessian import hessian
from heta_lens.methods.heta.windows import spans_over, windows_of


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


def costs(case: Case, repeats: int, *, long: bool = False) -> dict[str, Cost]:
    """Return costs; a first round warms up, counts FLOPs and watches memory, then timed rounds take turns.

    A ``long`` context is measured with the default options only.
    """
    curvature, information = PARTS["curvature"], PARTS["information"]
    ours = {"curvature": curvature[1]} | ({} if long else {ALONE: one_by_one_s, ROW: row_s})
    return {
        **compared(case, curvature[0], ours, repeats),
        **compared(case, information[0], {"information": information[1]}, repeats),
    }


def compared(case: Case, naive: Any, ours: dict[str, Any], repeats: int) -> dict[str, Cost]:
    """Compare each of our ways to a part of the score with the naive implementation."""

    def running(way: str) -> Callable[[Case, Read], Measured]:
        def run(case: Case, read: Read) -> Measured:
            gc.collect()  # graphs that nobody asks for any more
            with case.prediction.running():
                return ours[way](case, read)

        return run

    probes = case.plan.probes
    every = {"naive": naive, **{way: running(way) for way in ours}}
    seen, memory = dict[str, Measured](), dict[str, float]()
    for way, run in every.items():
        with Allocations() as held:
            seen[way] = counted(lambda read, run=run: run(case, read))
        memory[way] = held.most / 2**20
    seconds = [{way: run(case, time.perf_counter).total for way, run in every.items()} for _ in range(repeats)]
    floor = floors(case.model.cfg, case.ids.shape[1], probes)
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
    forward, about = forward_flops(case), "" if case.plan.naive is None else "~"
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
            *(f"{about}{number(seconds)}" for seconds in (one.naive, one.ours)),
            f"{about}{number(median(ratios))} ({number(min(ratios))}–{number(max(ratios))})",
            *(f"{about}{number(flops / forward)}" for flops in one.flops),
            f"{about}{one.flops[1] / one.floor:.2f}",
            *(f"{memory:.0f}" for memory in one.memory),
            "–" if np.isnan(one.difference) else f"{one.difference:.0e}",
        ]


WAIT_COLUMNS = ["tokens of context", "probes", "naive implementation", "`attribute(cache)`", '`support="row"`']


def wait_row(n: int, probes: int, part_costs: dict[str, Cost]) -> list[str]:
    naive, ours = (sum(getattr(part_costs[part], of) for part in PARTS) for of in ("naive", "ours"))
    row = part_costs[ROW].ours + part_costs["information"].ours
    said = (f"{number(naive / seconds)} times as fast ({number(seconds)} s)" for seconds in (ours, row))
    return [str(n), str(probes), f"{number(naive)} s", *said]


FLOP_COLUMNS = [
    "N",
    "HVPs",
    "masked runs",
    "curvature, GFLOP",
    "information, GFLOP",
    "whole, GFLOP",
    "whole / N",
]


def flop_row(case: Case, parts: dict[str, Cost]) -> list[str]:
    """Return the cost of the whole score, also per token of context."""
    work = heta_lens.Heta(probes=case.plan.probes).work(case.prediction)
    flops = [parts[part].flops[1] / 1e9 for part in PARTS]
    n = case.ids.shape[1]
    figures = (*flops, sum(flops), sum(flops) / n)
    return [str(n), str(work.hvps), str(work.forwards), *map(number, figures)]


RANK = 64
BY_ITSELF = {"groups": None}
WAYS: dict[str, dict[str, Any]] = {  # 0 stands for half of the layers, and for a quarter of the context
    "default": {},
    "groups=8": {"groups": 8},
    "groups=32": {"groups": 32},
    'support="row"': {"support": "row"},
    "tolerance=0.05": {"tolerance": 0.05},
    "tolerance=0.05, prune=0.001": {"tolerance": 0.05, "prune": 1e-3},
    'variant="lr"': {"variant": "lr", "rank": RANK},
    'variant="ls", half the layers': {"variant": "ls", "layers": 0},
    'variant="gs"': {"variant": "gs"},
    'variant="gn"': {"variant": "gn"},
    'variant="win", window N/4': {"variant": "win", "window": 0},
}
WAY_COLUMNS = ["N", "way", "s", "naive / this", "each token alone / this", "HVPs", "ρ", "L1", "top ten in common"]


def way_rows(case: Case, naive: float) -> Iterator[list[str]]:
    """Yield whole scores, each found once; ``naive`` is the seconds of the naive implementation."""
    n, drawn = case.ids.shape[1], {"probes": case.plan.probes}
    exact, whole = explained(case, drawn | BY_ITSELF)
    for way, options in {"groups=None": BY_ITSELF, **WAYS}.items():
        sizes = {"layers": case.prediction.adapter.layers // 2, "window": n // 4}
        filled = {name: sizes[name] if name in sizes and not value else value for name, value in options.items()}
        probes = {} if filled.get("variant") == "gs" else drawn
        attribution, seconds = (exact, whole) if options is BY_ITSELF else explained(case, probes | filled)
        agreed = agreement(attribution.scores, exact.scores)
        top, expected = (set(one.scores.topk(min(10, n)).indices.tolist()) for one in (attribution, exact))
        yield [
            str(n),
            way,
            number(seconds),
            number(naive / seconds),
            number(whole / seconds),
            str(attribution.diagnostics["hvps"]),
            f"{agreed['rank_correlation']:.3f}",
            f"{agreed['l1']:.3f}",
            f"{len(top & expected)} of {len(expected)}",
        ]


def explained(case: Case, options: dict[str, Any]) -> tuple[heta_lens.Attribution, float]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        begun = time.perf_counter()
        attribution = heta_lens.Heta(progress=False, **options)(case.prediction)
        return attribution, time.perf_counter() - begun


LONG_COLUMNS = ["N", "way", "curvature, s", "information, s", "full / this"]


def long_rows(case: Case, part_costs: dict[str, Cost]) -> Iterator[list[str]]:
    """Yield long contexts: the middle window stands for all windows, and a few products for a low rank."""
    n = case.ids.shape[1]
    full = part_costs["curvature"].ours, part_costs["information"].ours
    ways = {"full": full}
    with case.prediction.running():
        for size in (512, 128):
            placed = windows_of(case.prediction, spans_over(n, size, 0.5))
            middle = placed[len(placed) // 2]
            times = n / len(middle.scored)
            part = [one(case, time.perf_counter, middle).total * times for one in (grouped_s, exact_i)]
            ways[f"win, frozen windows of {size}"] = part[0], part[1]
        ways[f"lr, rank {RANK}"] = low_rank_seconds(case), full[1]
    for way, seconds in ways.items():
        yield [str(n), way, *(f"~{number(part)}" for part in seconds), f"~{number(sum(full) / sum(seconds))}"]


def low_rank_seconds(case: Case) -> float:
    piece = case.whole
    batches, states = at_once(case, piece, products=True), piece.states
    begun = time.perf_counter()
    operator = hessian(piece.rerun(), batches)
    built = time.perf_counter()
    copies = batches.of(len(states))
    operator.matmat(torch.ones(copies, *states.shape))
    each = (time.perf_counter() - built) / copies
    return built - begun + each * (2 * (RANK + OVERSAMPLING) + case.plan.probes)


# -------------------------------------------------------------------------------------------------------------- tables
REPEATS = 2
LONG, LONG_OF = 2048, {"gpt2-like"}  # contexts that are timed once, and whose
WAITED, SHOWN = "gpt2-like", (32, 128, 512)
WAIT_TITLE = "What you wait for"
TITLES = {
    "costs": ("the naive implementation and ours", COSTS),
    "flops": ("FLOPs by context length", FLOP_COLUMNS),
    "ways": ("cheaper ways, whole scores", WAY_COLUMNS),
    "long": ("a long context", LONG_COLUMNS),
}


def run(*models: str) -> None:
    """Measure models and write their tables."""
    for name in models or available([*MODELS]):
        pages.write("speed", measured(name, LENGTHS))


def measured(name: str, lengths: Sequence[int]) -> Iterator[Table | tuple[str, str]]:
    """Yield the tables of a model."""
    model = MODELS[name]()
    parameters = sum(weights.numel() for weights in model.parameters())
    rows: dict[str, list[list[str]]] = {"costs": [], "flops": [], "ways": [], "long": [], "waits": []}
    for n in track([n for n in lengths if n <= model.cfg.n_ctx and (n < LONG or name in LONG_OF)], name):
        case = Case.of(model, prompt(name, model, n), plan_of(n, parameters))
        part_costs = costs(case, 1, long=True) if n >= LONG else costs(case, REPEATS)
        rows["costs"] += cost_rows(case, part_costs)
        rows["flops"].append(flop_row(case, part_costs))
        if name == WAITED and n in SHOWN:
            rows["waits"].append(wait_row(n, case.plan.probes, part_costs))
        if n <= (128 if parameters < SMALL else 32):
            rows["ways"] += way_rows(case, sum(part_costs[part].naive for part in PARTS))
        if n >= LONG:
            rows["long"] += long_rows(case, part_costs)
    used = ", ".join(map(" ".join, versions().items()))
    note = f"{torch.get_num_threads()} threads, float32 on the CPU; {used}."
    for key, (title, columns) in TITLES.items():
        if rows[key]:
            yield Table(f"{name}: {title}", columns, rows[key], note=note)
    if rows["waits"]:
        yield WAIT_TITLE, included(Table("", WAIT_COLUMNS, rows["waits"]))


def included(table: Table) -> str:
    """Return a table between marks, for the page of docs/ that includes it."""
    return f"<!-- --8<-- [start:wait] -->\n\n{table.text}\n\n<!-- --8<-- [end:wait] -->"
