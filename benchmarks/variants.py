"""Approximations of HETA: their distance from the full method, their cost, and their diagnostics of the error.

The prompts are stories of copied_words, three in a row, cut to the same length.
"""

import warnings
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np
import torch

import heta_lens
from benchmarks import pages
from benchmarks.copied_words import prompts
from benchmarks.models import load_stories3m, predicted, shared_top
from benchmarks.outcomes import Outcomes
from benchmarks.pages import Table, average, intervals_over
from heta_lens.diagnostics import agreement

PROMPTS, LENGTH = 8, 96
PROBES, WINDOW = 10, 32

Foreseen = Callable[[dict[str, Any]], tuple[str, float]]


def low_rank_tail(diagnostics: dict[str, Any]) -> tuple[str, float]:
    return "‖H - H_k‖ / ‖H‖", diagnostics["tail_energy_share"]


def window_leakage(diagnostics: dict[str, Any]) -> tuple[str, float]:
    return "gate mass moved", diagnostics["window_leakage"]["total"]


def chance(diagnostics: dict[str, Any]) -> tuple[str, float]:
    """Return the expected difference of two runs with normal and independent errors, as a share of the score."""
    spread = 2 / np.pi**0.5 * float(diagnostics["standard_errors"]["scores"].sum())
    return "chance alone", spread / diagnostics["total"]


WINDOWS = {"window": WINDOW}
PER_WINDOW = {**WINDOWS, "window_gate": "per_window"}
VARIANTS: dict[str, tuple[dict[str, Any], Foreseen | None]] = {
    "full, other probes": ({"seed": 1}, chance),
    "full, each token alone": ({"groups": None}, None),
    "full, each token alone, other probes": ({"groups": None, "seed": 1}, chance),
    "full, support=row": ({"support": "row"}, None),
    "full, tolerance .05": ({"tolerance": 0.05}, None),
    "full, tolerance .05, prune .001": ({"tolerance": 0.05, "prune": 1e-3}, None),
    "lr, rank 8": ({"variant": "lr", "rank": 8}, low_rank_tail),
    "lr, rank 64": ({"variant": "lr", "rank": 64}, low_rank_tail),
    "lr, rank 256": ({"variant": "lr", "rank": 256}, low_rank_tail),
    "ls, last 1": ({"variant": "ls", "layers": 1}, None),
    "ls, last half": ({"variant": "ls", "layers": 0}, None),  # of however many layers there are
    "gs": ({"variant": "gs"}, None),
    "gn": ({"variant": "gn"}, None),
    "win, frozen": ({"variant": "win", **WINDOWS}, window_leakage),
    "win, frozen, a quarter": ({"variant": "win", "window": 0}, window_leakage),  # of the context
    "win, frozen, overlap 0": ({"variant": "win", "overlap": 0.0, **WINDOWS}, window_leakage),
    "win, frozen, per_window": ({"variant": "win", **PER_WINDOW}, window_leakage),
    "win, restrict, per_window": ({"variant": "win", "window_mode": "restrict", **PER_WINDOW}, window_leakage),
    "win, chunk": ({"variant": "win", "window_mode": "chunk", **WINDOWS}, window_leakage),
    "win, chunk, per_window": ({"variant": "win", "window_mode": "chunk", **PER_WINDOW}, window_leakage),
    "lr+win, rank 64": ({"variant": "lr+win", "rank": 64, **WINDOWS}, low_rank_tail),
    "ls+win, last half": ({"variant": "ls+win", "layers": 0, **WINDOWS}, window_leakage),
}


def run() -> None:
    model, contexts = load_stories3m(), texts()
    Outcomes("variants").measure(product(range(PROMPTS)), lambda at: compared(model, contexts[at]))


def write() -> None:
    outcomes, missing = Outcomes("variants").of(product(range(PROMPTS)))
    prompts = [at for (at,) in outcomes]
    rows = [
        row(name, [one[name] for one in outcomes.values()], prompts)
        for name in (["full", *VARIANTS] if prompts else [])
    ]
    pages.write("variants", [Table("Every variant", COLUMNS, rows, missing, intervals_over([prompts], "prompts"))])


def compared(model: Any, ids: torch.Tensor) -> dict[str, Sequence[Any]]:
    """Return every variant on one prompt, in the order of the columns, beside the full method."""
    prediction = predicted(model, ids)
    full = explain(prediction, {})
    found = {"full": seen_as(full, full, None)}
    for variant, (options, foreseen) in VARIANTS.items():
        sizes = {"layers": prediction.adapter.layers // 2, "window": len(prediction) // 4}
        own = {name: size for name, size in sizes.items() if options.get(name) == 0}
        found[variant] = seen_as(explain(prediction, options | own), full, foreseen)
    return found


def explain(prediction: heta_lens.Prediction, options: dict[str, Any]) -> heta_lens.Attribution:
    drawn: dict[str, Any] = {} if options.get("variant") == "gs" else {"probes": PROBES}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*were too few", UserWarning)
        return heta_lens.Heta(progress=False, **drawn | options)(prediction)


def seen_as(
    attribution: heta_lens.Attribution, full: heta_lens.Attribution, foreseen: Foreseen | None
) -> Sequence[Any]:
    scores = agreement(attribution.scores, full.scores)
    curvature = agreement(attribution.parts["curvature"], full.parts["curvature"])
    facts = {**attribution.diagnostics, "total": float(attribution.scores.sum())}
    ranks, top = scores["rank_correlation"], shared_top(attribution.scores, full.scores)
    predicted = foreseen(facts) if foreseen else None
    return ranks, curvature["rank_correlation"], scores["l1"], top, facts["hvps"], facts["forwards"], predicted


COLUMNS = ["variant", "ρ", "ρ of S", "L1", "top ten", "HVPs", "forwards", "predicted"]


def row(variant: str, outcomes: Sequence[Sequence[Any]], prompts: list[int]) -> list[str]:
    ranks, curvature, l1, top, hvps, forwards, predictions = zip(*outcomes, strict=True)
    said = [one for one in predictions if one is not None]
    predicted = f"{said[0][0]} {average([value for _, value in said], prompts, None, 3)}" if said else ""
    # The full method is itself by definition, which is no measurement.
    ends = [None] * 4 if variant == "full" else [(-1, 1), (-1, 1), (0, 2), (0, 10)]
    means = (average(column, prompts, limits, 3) for column, limits in zip((ranks, curvature, l1), ends, strict=False))
    costs = (f"{np.mean(column):.0f}" for column in (hvps, forwards))
    return [variant, *means, average(top, prompts, ends[3], 1), *costs, predicted]


def texts() -> list[torch.Tensor]:
    story_ids = [one["ids"] for one in prompts()]
    spread = torch.linspace(0, len(story_ids) - 3, PROMPTS).long().tolist()  # over all kinds of story
    joined = [[story_ids[at][0], *(token for story in story_ids[at : at + 3] for token in story[1:])] for at in spread]
    return [torch.tensor([ids[:LENGTH]]) for ids in joined]
