"""Cheaper ways to whole scores: how fast they are, and how near the exact score."""

import time
import warnings
from collections.abc import Iterator
from typing import Any

import heta_lens
from benchmarks.report import number
from benchmarks.speed.cases import Case
from heta_lens.diagnostics import agreement

RANK = 64
ALONE = {"groups": None}
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
    """Whole scores, each found once; ``naive`` are the seconds of the naive implementation."""
    n, drawn = case.ids.shape[1], {"probes": case.plan.probes}
    exact, whole = explained(case, drawn | ALONE)
    for way, options in {"groups=None": ALONE, **WAYS}.items():
        sizes = {"layers": case.prediction.adapter.layers // 2, "window": n // 4}
        filled = {name: sizes[name] if name in sizes and not value else value for name, value in options.items()}
        probes = {} if filled.get("variant") == "gs" else drawn
        attribution, seconds = (exact, whole) if options is ALONE else explained(case, probes | filled)
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
