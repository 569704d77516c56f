"""Whether methods find planted evidence in long prompts, and what a budget of masked runs changes.

Masked runs serve every method that needs them: all tokens alone, and a search within a budget. The longer the prompts,
the fewer of them have these runs.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from time import process_time
from typing import Any, NamedTuple

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
from heta_lens.data.instance import Instance
from heta_lens.diagnostics import rank_correlation
from heta_lens.evaluation.statistics import Estimate, estimate
from heta_lens.methods.registry import method_of
from heta_lens.metrics.scores import evidence_positions, ordinary
from heta_lens.prediction.prediction import Prediction
from heta_lens.prediction.search import effects_of_tokens

GEMMA = "gemma-3-270m"  # whose attention has sliding windows
METHODS = ("fast", "attn_lrp", "gradient_norm", "flash_trace", "random")
OF_SENTENCES = ("context_cite", "attribot")
TEN = 10
EVIDENCE = ("gold", "support")
OUTCOMES = Outcomes("long_study")
GRADIENTS = Outcomes("long_study-gradient")  # measured later, on the same prompts


class Arm(NamedTuple):
    """Prompts of a length, their kinds in turns: how many there are, and how many of the first have masked runs."""

    length: int
    prompts: int
    budget: float
    """runs by token of a search"""
    searched: int
    exact: int
    """prompts whose tokens are also masked one by one"""
    sentences: int
    """prompts of whose sentences methods are measured"""
    model: str = SMOLLM2.name


ARMS = {
    "256 tokens": Arm(256, 60, 0.3, searched=60, exact=60, sentences=24),
    "500 tokens": Arm(500, 42, 0.25, searched=42, exact=42, sentences=0),
    "1,000 tokens": Arm(1_000, 12, 0.11, searched=12, exact=2, sentences=12),
    "1,000 tokens, Gemma": Arm(1_000, 6, 0.11, searched=6, exact=0, sentences=0, model=GEMMA),
}


def keys() -> Iterator[tuple[str, str, int]]:
    for name, arm in ARMS.items():
        for place in range(arm.prompts):
            yield name, KINDS[place % len(KINDS)], place // len(KINDS)


@cache
def model(name: str) -> Any:
    return heta_lens.load_model(SMOLLM2.with_name(name))


@cache
def asked(name: str, kind: str) -> Iterator[tuple[int, tuple[Instance, Prediction]]]:
    """Return the prompts of a kind that are still to be taken, with their numbers."""
    arm = ARMS[name]
    return enumerate(answered(model(arm.model), "test", kind, arm.length))


def run(*arms: str) -> None:
    """Measure the prompts of some arms, or of all, from where the stored outcomes end, and store the outcomes."""
    torch.set_num_threads(1)
    chosen = [key for key in keys() if not arms or key[0] in arms]
    for outcomes, measure in ((OUTCOMES, measured), (GRADIENTS, gradient)):
        asked.cache_clear()
        outcomes.measure(chosen, measure)
        outcomes.pack()


def measured(name: str, kind: str, number: int) -> dict[str, Any]:
    """Return the rank of the evidence by each score, the seconds of each, and how a search agrees with all runs."""
    arm = ARMS[name]
    instance, prediction = next(prompt for at, prompt in asked(name, kind) if at == number)
    places = places_of(instance, prediction)
    place = number * len(KINDS) + KINDS.index(kind)
    scores, seconds = dict[str, Tensor](), dict[str, float]()
    for method in (*METHODS, *(OF_SENTENCES if place < arm.sentences else ())):
        begun = process_time()
        scores[method] = method_of(method, {"progress": False})(prediction).scores
        seconds[method] = process_time() - begun
    budget = int(arm.budget * len(prediction))
    runs = {" with a budget": budget} if place < arm.searched else {}
    exact = {"": None} if place < arm.exact else {}
    for run, forwards in (exact | runs).items():
        begun = process_time()
        information, drop = effects(prediction, forwards)
        seconds[f"leave_one_out{run}"] = process_time() - begun
        scores[f"leave_one_out{run}"], scores[f"information{run}"] = drop, information
    ranks = {name: ranks_of(own, places) for name, own in scores.items()}
    chance = [by_chance(len(places["eligible"]), len(places[part])) for part in EVIDENCE]
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


def gradient(name: str, kind: str, number: int) -> dict[str, Any]:
    """Return the squared gradient on the visible tokens of a prompt, and the places of the evidence among these."""
    instance, prediction = next(prompt for at, prompt in asked(name, kind) if at == number)
    squared = method_of("heta", {"variant": "gs", "gamma": 0, "progress": False})(prediction).parts["curvature"]
    visible = ordinary(prediction)
    places = {part: [visible.index(at) for at in own] for part, own in places_of(instance, prediction).items()}
    return {"id": instance.id, "squared gradient": short(squared[visible]), "places": places}


def places_of(instance: Instance, prediction: Prediction) -> dict[str, list[int]]:
    return {part: [*evidence_positions(instance, prediction, part)] for part in ("eligible", *EVIDENCE)}


def ranks_of(scores: Tensor, places: Mapping[str, Sequence[int]]) -> list[float]:
    return [reciprocal_rank(scores, places[part], places["eligible"]) for part in EVIDENCE]


def with_careful(outcome: dict[str, Any], added: dict[str, Any]) -> dict[str, Any]:
    """Add the ranks and the agreement of `careful`, the root of squared gradient times drop with the drop's sign.

    Stored outcomes have another `careful`, the root of squared gradient times information, which this replaces.
    """
    squared, careful = torch.tensor(added["squared gradient"]), dict[str, Tensor]()
    for run in ("", " with a budget"):
        if f"leave_one_out{run}" in outcome["scores"]:
            drop = torch.tensor(outcome["scores"][f"leave_one_out{run}"])
            careful[f"careful{run}"] = (squared * drop.abs()).sqrt() * drop.sign()
    ranks = outcome["ranks"] | {name: ranks_of(own, added["places"]) for name, own in careful.items()}
    both = {"careful": agree(*careful.values())} if len(careful) == 2 else {}
    return outcome | {"ranks": ranks, "agreement": outcome["agreement"] | both}


def effects(prediction: Prediction, forwards: int | None) -> tuple[Tensor, Tensor]:
    with prediction.running():
        (found,) = effects_of_tokens([prediction], "zero", kl, prediction.batches("auto"), forwards)
    return found.effects.divergence, found.effects.drop


def agree(exact: Tensor, searched: Tensor) -> tuple[bool, float, float]:
    """Return whether the first token is the same, the share of the first ten in common, and Spearman's ρ."""
    first, second = (own.argsort(descending=True, stable=True)[:TEN].tolist() for own in (exact, searched))
    return first[0] == second[0], len({*first} & {*second}) / TEN, rank_correlation(exact, searched)


# -------------------------------------------------------------------------------------------------------------- tables
def outcomes_by_arm() -> dict[str, list[dict[str, Any]]]:
    """Return the outcomes of the arms that have some."""
    (outcomes, _), (added, _) = OUTCOMES.of(keys()), GRADIENTS.of(keys())
    outcomes = {key: with_careful(own, added[key]) for key, own in outcomes.items()}
    found = {arm: [own for (of, *_), own in outcomes.items() if of == arm] for arm in ARMS}
    return {arm: own for arm, own in found.items() if own}


def tables() -> list[Table]:
    """Return the tables of the arms that have outcomes; a column says how many of how many prompts were measured."""
    by_arm = outcomes_by_arm()
    heads = [f"{arm}, {len(own)} of {ARMS[arm].prompts} prompts" for arm, own in by_arm.items()]
    return [
        Table("Evidence", ["method", *heads], [*found(by_arm)]),
        Table("A budget against every token", BUDGET, [*budgets(by_arm)]),
    ]


BUDGET = ["method", "prompts of", "runs a token", "prompts", "same first token", "first ten in common", "ρ",
          "evidence, every token", "evidence, budget", "time over every token's"]  # fmt: skip


def found(by_arm: dict[str, list[dict[str, Any]]]) -> Iterator[list[str]]:
    """Yield, by method, the share of prompts whose first token is evidence, and the reciprocal rank; best first.

    The number of prompts stands behind them where some lack the method.
    """
    rows = dict[str, list[np.ndarray]]()
    for name in dict.fromkeys(name for own in by_arm.values() for one in own for name in one["ranks"]):
        rows[name] = [ranks([one for one in own if name in one["ranks"]], name) for own in by_arm.values()]
    every = [*map(len, by_arm.values())]
    for name, cells in sorted(rows.items(), key=lambda row: -row[1][0].mean()):
        texts = [f"{(own == 1).mean():.2f}; {written(mean_of(own))}" if len(own) else "–" for own in cells]
        few = [f" ({len(own)})" * (0 < len(own) < n) for own, n in zip(cells, every, strict=True)]
        yield [f"`{name}`", *map("".join, zip(texts, few, strict=True))]


def budgets(by_arm: dict[str, list[dict[str, Any]]]) -> Iterator[list[str]]:
    for arm, every in by_arm.items():
        outcomes = [one for one in every if one["agreement"]]
        for name in dict.fromkeys(name for one in outcomes for name in one["agreement"]):
            first, ten, rho = np.array([one["agreement"][name] for one in outcomes], dtype=float).T
            every, budget = ranks(outcomes, name), ranks(outcomes, f"{name} with a budget")
            times = [
                [one["seconds"].get(f"leave_one_out{part}", np.nan) for one in outcomes]
                for part in ("", " with a budget")
            ]
            shares = [
                written(mean_of(own, least=-1.0 if own is rho else 0.0)) for own in (first, ten, rho, every, budget)
            ]
            ratio = np.sum(times[1]) / np.sum(times[0])
            runs = np.sum([one["budget"] for one in outcomes]) / np.sum([one["tokens"] for one in outcomes])
            yield [f"`{name}`", arm, f"{runs:.1%}", str(len(outcomes)), *shares, f"{ratio:.2f}"]


def ranks(outcomes: list[dict[str, Any]], name: str) -> np.ndarray:
    return np.array([one["ranks"][name][0] for one in outcomes])


def mean_of(values: np.ndarray, least: float = 0.0) -> Estimate:
    return estimate(values, range(len(values)), bounds=(least, 1))


if __name__ == "__main__":
    run(*sys.argv[1:])
