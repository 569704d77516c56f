"""What keeping early and late tokens in groups apart saves, and at what error."""

from collections.abc import Iterator, Sequence
from statistics import mean
from typing import Any

import torch
from torch import Tensor

import heta_lens
from benchmarks.groups.asked import SEEDS, Scores, found
from benchmarks.pareto import curvature

TITLE = "Early and late tokens apart"
NOTE = """\
The products of late tokens need not run what is before them, if their groups have no early ones. Fewer groups save as
much; their error of sharing (L1 to one-by-one probes with the same signs) is somewhat larger, and smaller than chance's
in either case (*Error at equal numbers of HVPs*)."""
COLUMNS = ["model", "way", "whole runs' worth of HVPs", "L1"]


def rows(name: str, prediction: Any) -> Iterator[list[str]]:
    """Early and late tokens in groups of their own, so that the late ones' products run the later half alone.

    The error is that of sharing alone: to one-by-one probes with the same signs.
    """
    n, probes = len(prediction), heta_lens.Heta().probes
    half = n // 2
    ways = {
        "16 groups": (16, [(0, n)], 16.0),
        "8 early, 8 late": (8, [(0, half), (half, n)], 8 * (1 + (n - half) / n)),
        "12 groups": (12, [(0, n)], 12.0),
    }
    score = Scores(found(prediction, probes=2))

    def of(groups: int | None, seed: int, parts: Sequence[tuple[int, int]]) -> Tensor:
        own = [curvature(prediction, range(*part), groups=groups, probes=probes, seed=seed).mean for part in parts]
        return score.of(torch.cat(own))

    alone = [of(None, seed, [(0, n)]) for seed in range(SEEDS)]
    for way, (groups, parts, products) in ways.items():
        errors = [float((of(groups, seed, parts) - alone[seed]).abs().sum()) for seed in range(SEEDS)]
        yield [name, way, f"{products * probes:.0f}", f"{mean(errors):.4f}"]
