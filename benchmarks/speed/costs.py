"""The naive implementation and ours: seconds, FLOPs, memory, and how far their numbers differ."""

import gc
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any, NamedTuple

import numpy as np

import heta_lens
from benchmarks.report import number
from benchmarks.speed.cases import Case
from benchmarks.speed.flops import counted, floors, forward_flops
from benchmarks.speed.parts import ALONE, PARTS, ROW, Measured, Read, one_by_one_s, row_s
from heta_lens._util.work import Allocations


class Cost(NamedTuple):
    """Of one part of the score, naive and ours: seconds of each repeat, FLOPs, MiB; and how far the parts differ."""

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
    """The first rounds warm up, count FLOPs and watch memory, and are not timed; then all are timed in turn.

    Of a ``long`` context, only what `Heta` does unless told otherwise.
    """
    curvature, information = PARTS["curvature"], PARTS["information"]
    ours = {"curvature": curvature[1]} | ({} if long else {ALONE: one_by_one_s, ROW: row_s})
    return {
        **compared(case, curvature[0], ours, repeats),
        **compared(case, information[0], {"information": information[1]}, repeats),
    }


def compared(case: Case, naive: Any, ours: dict[str, Any], repeats: int) -> dict[str, Cost]:
    """Each of our ways to a part of the score, beside the naive implementation."""

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
    """The largest difference of what both found, relative to the largest that was expected; NaN for nothing."""
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
    """What our whole score takes, by itself and a token of context."""
    work = heta_lens.Heta(probes=case.plan.probes).work(case.prediction)
    flops = [parts[part].flops[1] / 1e9 for part in PARTS]
    n = case.ids.shape[1]
    figures = (*flops, sum(flops), sum(flops) / n)
    return [str(n), str(work["hvps"]), str(work["forwards"]), *map(number, figures)]
