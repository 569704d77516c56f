"""What is left for a long context: frozen windows, and a low rank, each measured in part."""

import time
from collections.abc import Iterator

import torch

from benchmarks.report import number
from benchmarks.speed.cases import Case
from benchmarks.speed.cheaper_ways import RANK
from benchmarks.speed.costs import Cost
from benchmarks.speed.parts import at_once, exact_i, grouped_s
from heta_lens.methods.heta.curvature import OVERSAMPLING, segments_of
from heta_lens.methods.heta.windows import windows

LONG_COLUMNS = ["N", "way", "curvature, s", "information, s", "full / this"]


def long_rows(case: Case, part_costs: dict[str, Cost]) -> Iterator[list[str]]:
    """Of windows, the middle one is measured and stands for all; of a low rank, a few of its HVPs."""
    n = case.ids.shape[1]
    full = part_costs["curvature"].ours, part_costs["information"].ours
    ways = {"full": full}
    with case.prediction.running():
        for size in (512, 128):
            placed = segments_of(case.prediction, windows(n, size, 0.5))
            middle = placed[len(placed) // 2]
            times = n / len(range(*middle.scored))
            part = [one(case, time.perf_counter, middle).total * times for one in (grouped_s, exact_i)]
            ways[f"win, frozen windows of {size}"] = part[0], part[1]
        ways[f"lr, rank {RANK}"] = low_rank_seconds(case), full[1]
    for way, seconds in ways.items():
        yield [str(n), way, *(f"~{number(part)}" for part in seconds), f"~{number(sum(full) / sum(seconds))}"]


def low_rank_seconds(case: Case) -> float:
    piece = case.whole
    batches, states = at_once(case, piece, products=True), piece.states
    begun = time.perf_counter()
    operator = piece.hessian_from(batches, lambda _: None, 0)
    built = time.perf_counter()
    copies = batches.of(len(states))
    operator.matmat(torch.ones(copies, *states.shape))
    each = (time.perf_counter() - built) / copies
    return built - begun + each * (2 * (RANK + OVERSAMPLING) + case.plan.probes)
