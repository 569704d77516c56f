"""The choice on dev: mean ranks of the candidates that a budget allows."""

from collections.abc import Sequence
from functools import cache
from math import inf
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.stats import rankdata

from benchmarks.outcomes import Outcomes
from benchmarks.study.candidates import CANDIDATES, KL_ONLY, LITERAL, Candidate
from benchmarks.study.families import DEV
from heta_lens.data.recall import Split

BUDGETS = (inf, 100.0, 30.0, 3.0)
BY_NAME = {candidate.name: candidate for candidate in CANDIDATES}
assert len(BY_NAME) == len(CANDIDATES)


class Standing(NamedTuple):
    candidate: Candidate
    rank: float
    """Its mean rank over families and measures."""
    runs: float


class Measures(NamedTuple):
    """Of one family on one split."""

    templates: list[str]
    candidates: list[str]
    runs: Float[np.ndarray, "candidate"]
    values: Float[np.ndarray, "prompt candidate measure"]
    evidence: Float[np.ndarray, "prompt candidate 2"]
    p: Float[np.ndarray, "prompt"]


def size(family: str, split: Split) -> int:
    """How many prompts there are."""
    return 48 if split == "dev" else 71 if family == "copied" else 96


def outcomes_name(family: str, split: Split) -> str:
    return f"study_{split}_{family.replace(' ', '_')}"


@cache
def measures_of(family: str, split: Split) -> Measures:
    outcomes = [*Outcomes(outcomes_name(family, split)).read().values()]
    if len(outcomes) != size(family, split):
        raise SystemExit(
            f"{family} has {len(outcomes)} of {size(family, split)} prompts on {split}: "
            f"python -m benchmarks.study run {split} '{family}'"
        )
    (names,) = {tuple(one["candidates"]) for one in outcomes}
    if split == "dev" and names != tuple(candidate.name for candidate in CANDIDATES):
        raise SystemExit(
            f"{family} was measured on dev with other candidates: remove its outcomes, and measure it again"
        )
    stacked = {name: np.array([one[name] for one in outcomes]) for name in ("runs", "measures", "evidence", "p")}
    runs, *rest = stacked.values()
    return Measures([one["template"] for one in outcomes], [*names], runs.mean(0), *rest)


def runs_of() -> Float[np.ndarray, "candidate"]:
    """How many forwards each candidate is worth, on average over the families of dev."""
    return np.mean([measures_of(family, "dev").runs for family in DEV], axis=0)


def ranking(budget: float) -> list[Standing]:
    """The candidates that the budget allows, the best first."""
    runs = runs_of()
    within = np.flatnonzero(runs <= budget)
    ranks = np.mean([ranks_of(measures_of(family, "dev").values[:, within].mean(0)) for family in DEV], axis=0)
    standings = [Standing(CANDIDATES[at], float(rank), float(runs[at])) for at, rank in zip(within, ranks, strict=True)]
    return sorted(standings, key=lambda one: (one.rank, one.runs))


def ranks_of(means: Float[np.ndarray, "candidate measure"]) -> Float[np.ndarray, "candidate"]:
    """Each candidate's rank, 1 for the best, averaged over the measures; of all, more is better."""
    return rankdata(-means, axis=0).mean(1)


def winners() -> dict[float, Candidate]:
    return {budget: ranking(budget)[0].candidate for budget in BUDGETS}


def confirmed() -> Sequence[Candidate]:
    """What is measured on test."""
    return [*dict.fromkeys([LITERAL, *winners().values(), KL_ONLY.simple])]
