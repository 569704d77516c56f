"""Whether methods find planted evidence in long prompts of SmolLM2, and what a budget of masked runs changes.

Masked runs serve every method that needs them: all tokens alone, and a search within a budget. The longer the prompts,
the fewer of them have these runs.
"""

from collections.abc import Iterator
from functools import cache
from itertools import islice
from time import process_time
from typing import Any

import numpy as np
import torch
from torch import Tensor

import heta_lens
from benchmarks.long_prompts import KINDS, answered
from benchmarks.models import SMOLLM2
from benchmarks.outcomes import Outcomes
from benchmarks.pages import Table, written
from benchmarks.ranks import by_chance, reciprocal_rank
from benchmarks.study import short
from heta_lens._util.numerics import kl
from heta_lens.diagnostics import rank_correlation
from heta_lens.evaluation.statistics import Estimate, estimate
from heta_lens.methods.registry import method_of
from heta_lens.metrics.scores import evidence_positions, ordinary
from heta_lens.prediction.prediction import Prediction
from heta_lens.prediction.search import effects_of_tokens

PROMPTS = {256: 60, 500: 42, 1_000: 12, 4_000: 6}  # of all kinds together, by the number of tokens
BUDGETS = {256: 0.3, 500: 0.25, 1_000: 0.11, 4_000: 0.016}  # runs by token
EXACT = {256: 60, 500: 42, 1_000: 2, 4_000: 0}  # the first prompts, whose tokens are also masked one by one
SEARCHED = {**PROMPTS, 4_000: 3}  # the first prompts, which are searched within the budget
METHODS = ("fast", "attn_lrp", "gradient_norm", "flash_trace", "random")
OF_SENTENCES = ("context_cite", "attribot")
WITH_SENTENCES = {256: 24, 500: 0, 1_000: 12, 4_000: 0}  # the first prompts, of whose sentences methods are measured
TEN = 10
OUTCOMES = Outcomes("long_study")


def keys() -> Iterator[tuple[int, str, int]]:
    for length, count in PROMPTS.items():
        yield from ((length, kind, number) for number in range(count // len(KINDS)) for kind in KINDS)


@cache
def model() -> Any:
    return heta_lens.load_model(SMOLLM2)


def run() -> None:
    torch.set_num_threads(1)
    OUTCOMES.measure(keys(), measured)


def measured(length: int, kind: str, number: int) -> dict[str, Any]:
    """Return the rank of the evidence by each score, the seconds of each, and how a search agrees with all runs."""
    instance, prediction = next(islice(answered(model(), "test", kind, length), number, None))
    places = {part: evidence_positions(instance, prediction, part) for part in ("eligible", "gold", "support")}
    place = number * len(KINDS) + KINDS.index(kind)
    scores, seconds = dict[str, Tensor](), dict[str, float]()
    for method in (*METHODS, *(OF_SENTENCES if place < WITH_SENTENCES[length] else ())):
        begun = process_time()
        scores[method] = method_of(method, {"progress": False})(prediction).scores
        seconds[method] = process_time() - begun
    squared = method_of("heta", {"variant": "gs", "gamma": 0, "progress": False})(prediction).parts["curvature"]
    budget = int(BUDGETS[length] * len(prediction))
    runs = {" with a budget": budget} if place < SEARCHED[length] else {}
    exact = {"": None} if place < EXACT[length] else {}
    for name, forwards in (exact | runs).items():
        begun = process_time()
        information, drop = effects(prediction, forwards)
        seconds[f"leave_one_out{name}"] = process_time() - begun
        scores[f"leave_one_out{name}"], scores[f"information{name}"] = drop, information
        scores[f"careful{name}"] = (squared * information).sqrt()
    evidence = ("gold", "support")
    ranks = {name: [reciprocal_rank(own, places[part], places["eligible"]) for part in evidence]
             for name, own in scores.items()}  # fmt: skip
    chance = [by_chance(len(places["eligible"]), len(places[part])) for part in evidence]
    visible = ordinary(prediction)
    agreement = {
        name: agree(own[visible], scores[f"{name} with a budget"][visible])
        for name, own in scores.items()
        if f"{name} with a budget" in scores
    }
    return {
        "id": instance.id,
        "tokens": len(prediction),
        "budget": budget,
        "p": float(prediction.log_probs[int(prediction.target)].exp()),  # type: ignore[arg-type]
        "eligible": len(places["eligible"]),
        "ranks": ranks,
        "chance": chance,
        "seconds": seconds,
        "agreement": agreement,
        "scores": {
            name: short(own[visible]) for name, own in scores.items() if name.startswith(("information", "leave"))
        },
    }


def effects(prediction: Prediction, forwards: int | None) -> tuple[Tensor, Tensor]:
    with prediction.running():
        (found,) = effects_of_tokens([prediction], "zero", kl, prediction.batches("auto"), forwards)
    return found.effects.divergence, found.effects.drop


def agree(exact: Tensor, searched: Tensor) -> tuple[bool, float, float]:
    """Return whether the first token is the same, the share of the first ten in common, and Spearman's ρ."""
    first, second = (own.argsort(descending=True, stable=True)[:TEN].tolist() for own in (exact, searched))
    return first[0] == second[0], len({*first} & {*second}) / TEN, rank_correlation(exact, searched)


# -------------------------------------------------------------------------------------------------------------- tables
def tables() -> list[Table]:
    outcomes, missing = OUTCOMES.of(keys())
    by_length = {length: [own for (of, *_), own in outcomes.items() if of == length] for length in PROMPTS}
    rows = ([], []) if missing else (list(found(by_length)), list(budgets(by_length)))
    return [
        Table("Evidence", ["method", *map(heading, by_length.items())], rows[0], missing),
        Table("A budget against every token", BUDGET, rows[1], missing),
    ]


BUDGET = ["method", "tokens", "runs a token", "n", "same first token", "first ten in common", "ρ",
          "evidence, every token", "evidence, budget", "time over every token's"]  # fmt: skip


def heading(of_length: tuple[int, list[Any]]) -> str:
    length, outcomes = of_length
    return f"{length:,} tokens (n = {len(outcomes)})"


def found(by_length: dict[int, list[dict[str, Any]]]) -> Iterator[list[str]]:
    """Yield, by method, the share of prompts whose first token is evidence, and the reciprocal rank; best first."""
    names = dict.fromkeys(name for own in by_length.values() for one in own for name in one["ranks"])
    for name in sorted(names, key=lambda name: -ranks(by_length[min(by_length)], name).mean()):
        cells = [ranks([one for one in own if name in one["ranks"]], name) for own in by_length.values()]
        yield [
            f"`{name}`",
            *(f"{(own == 1).mean():.2f}; {written(mean_of(own))}" if len(own) else "–" for own in cells),
        ]


def budgets(by_length: dict[int, list[dict[str, Any]]]) -> Iterator[list[str]]:
    for length, every in by_length.items():
        outcomes = [one for one in every if one["agreement"]]
        for name in dict.fromkeys(name for one in outcomes for name in one["agreement"]):
            first, ten, rho = np.array([one["agreement"][name] for one in outcomes], dtype=float).T
            every, budget = ranks(outcomes, name), ranks(outcomes, f"{name} with a budget")
            times = [
                [one["seconds"].get(f"leave_one_out{part}", np.nan) for one in outcomes]
                for part in ("", " with a budget")
            ]
            evidence = [written(mean_of(own)) for own in (first, ten, rho, every, budget)]
            ratio = np.sum(times[1]) / np.sum(times[0])
            runs = np.sum([one["budget"] for one in outcomes]) / np.sum([one["tokens"] for one in outcomes])
            yield [f"`{name}`", f"{length:,}", f"{runs:.1%}", str(len(outcomes)), *evidence, f"{ratio:.2f}"]


def ranks(outcomes: list[dict[str, Any]], name: str) -> np.ndarray:
    return np.array([one["ranks"][name][0] for one in outcomes])


def mean_of(values: np.ndarray) -> Estimate:
    return estimate(values, range(len(values)), bounds=(-1, 1))
