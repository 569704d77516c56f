"""The literal loop and ours: seconds, FLOPs, memory, and how far their numbers differ."""

import gc
import time
from collections.abc import Iterator
from statistics import median
from typing import Any, NamedTuple

import numpy as np

import heta_lens
from benchmarks.peak_memory import peak
from benchmarks.report import number
from benchmarks.speed.cases import Case, Plan
from benchmarks.speed.flops import counted, floors, forward_flops
from benchmarks.speed.parts import ALONE, PARTS, ROW, Measured, Read, literal_s, one_by_one_s, row_s


class Cost(NamedTuple):
    """Of one part of the score, literal and ours: seconds of each repeat, FLOPs, MiB; and how far the parts differ."""

    seconds: list[tuple[float, float]]
    flops: tuple[float, float]
    memory: tuple[float, float]
    floor: float
    difference: float

    @property
    def literal(self) -> float:
        return median(seconds for seconds, _ in self.seconds)

    @property
    def ours(self) -> float:
        return median(seconds for _, seconds in self.seconds)


def costs(case: Case, repeats: int) -> dict[str, Cost]:
    """The first rounds warm up, count FLOPs and watch memory, and are not timed; then both are timed in turn."""
    floor = floors(case.model.cfg, case.ids.shape[1], case.plan.probes)
    ways = {**PARTS, ALONE: (literal_s, one_by_one_s), ROW: (literal_s, row_s)}
    return {part: cost(case, literal, ours, floor[part], repeats) for part, (literal, ours) in ways.items()}


def cost(case: Case, literal: Any, ours: Any, floor: float, repeats: int) -> Cost:
    def running(case: Case, read: Read) -> Measured:
        gc.collect()  # graphs that nobody asks for any more
        with case.prediction.running():
            return ours(case, read)

    both, little = (literal, running), case._replace(plan=Plan(case.plan.probes, 1, 1))
    seen = [counted(lambda read, one=one: one(case, read)) for one in both]
    memory = [peak(lambda one=one: one(little, time.perf_counter)) for one in both]
    seconds = []
    for _ in range(repeats):
        first, second = (one(case, time.perf_counter).total for one in both)
        seconds.append((first, second))
    expected, actual = (one.found for one in seen)
    shared = expected.keys() & actual.keys()
    gap = max((abs(actual[i] - expected[i]) for i in shared), default=np.nan)
    gap /= max((abs(expected[i]) for i in shared), default=1)
    return Cost(seconds, (seen[0].total, seen[1].total), (memory[0], memory[1]), floor, gap)


COSTS = [
    "N", "probes", "part", "literal, s", "ours, s", "literal / ours", "literal, forwards", "ours, forwards",
    "ours / floor", "literal, MiB", "ours, MiB", "difference",
]  # fmt: skip


def cost_rows(case: Case, part_costs: dict[str, Cost]) -> Iterator[list[str]]:
    forward, about = forward_flops(case), "" if case.plan.literal is None else "~"
    parts = [part_costs[part] for part in PARTS]
    taken = zip(*(part.seconds for part in parts), strict=True)
    together = Cost(
        [(sum(literal), sum(ours)) for literal, ours in (zip(*both, strict=True) for both in taken)],
        (sum(p.flops[0] for p in parts), sum(p.flops[1] for p in parts)),
        (max(p.memory[0] for p in parts), max(p.memory[1] for p in parts)),
        sum(p.floor for p in parts),
        max(p.difference for p in parts),
    )
    for part, one in {
        **{part: part_costs[part] for part in PARTS},
        "together": together,
        ALONE: part_costs[ALONE],
        ROW: part_costs[ROW],
    }.items():
        ratios = [literal / ours for literal, ours in one.seconds]
        yield [
            str(case.ids.shape[1]),
            str(case.plan.probes),
            part,
            *(f"{about}{number(seconds)}" for seconds in (one.literal, one.ours)),
            f"{about}{number(median(ratios))} ({number(min(ratios))}–{number(max(ratios))})",
            *(f"{about}{number(flops / forward)}" for flops in one.flops),
            f"{about}{one.flops[1] / one.floor:.2f}",
            *(f"{memory:.0f}" for memory in one.memory),
            "–" if np.isnan(one.difference) else f"{one.difference:.0e}",
        ]


WAIT_COLUMNS = ["tokens of context", "probes", "the formulas one by one", "`attribute(cache)`", '`support="row"`']


def wait_row(n: int, probes: int, part_costs: dict[str, Cost]) -> list[str]:
    literal, ours = (sum(getattr(part_costs[part], of) for part in PARTS) for of in ("literal", "ours"))
    row = part_costs[ROW].ours + part_costs["information"].ours
    said = (f"{number(literal / seconds)} times as fast ({number(seconds)} s)" for seconds in (ours, row))
    return [str(n), str(probes), f"{number(literal)} s", *said]


FLOP_COLUMNS = [
    "N",
    "products with H",
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
