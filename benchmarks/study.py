"""The study of docs/study.md: the setting of HETA that agrees best with interventions.

All candidates are measured on the dev split, and the winners and the literal formula on the test split. A candidate is
``M^power · (β S + γ I)`` of the parts of `study_parts`.
"""

import warnings
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product
from math import inf, isfinite
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from scipy.stats import rankdata
from torch import Tensor

from benchmarks import pages
from benchmarks.interventions import MEASURES, evaluated
from benchmarks.outcomes import Outcomes
from benchmarks.pages import Table, average, proportion
from benchmarks.prompts import DEV, FAMILIES, Case
from benchmarks.study_parts import CURVATURES, FLOWS, MASKS, NORMS, Measured, measured
from heta_lens._util.numerics import DIVERGENCES
from heta_lens.data.recall import Split
from heta_lens.evaluation.statistics import Difference, corrected, difference
from heta_lens.methods.heta.score import Balance, scaled

GATES = (*(f"{flow}{norm}" for flow in FLOWS for norm in NORMS), "uniform", "gradient")
POWERS = (0.25, 0.5, 2.0)
WEIGHTS = ((1.0, 0.0), (0.8, 0.2), (0.5, 0.5), (0.2, 0.8), (0.0, 1.0))


class Candidate(NamedTuple):
    gate: str = "suffix1"
    power: float = 1.0
    curvature: str = "block"
    information: str = "zero/orig_masked"
    beta: float = 0.5
    gamma: float = 0.5
    balance: Balance = "none"

    @property
    def name(self) -> str:
        gate = self.gate if self.power == 1 else f"{self.gate}^{self.power:g}"
        terms = [
            f"{weight:g} {part}"
            for weight, part in ((self.beta, self.curvature), (self.gamma, self.information))
            if weight
        ]
        inside = " + ".join(terms) or "nothing else"
        return f"{gate} · ({inside})" + (f", balanced by {self.balance}" if self.balance != "none" else "")

    @property
    def simple(self) -> "Candidate":
        """Return the candidate without options that leave the order of scores unchanged."""
        one = self
        if one.gate == "uniform":
            one = one._replace(power=1.0)
        if not one.beta or not one.gamma:
            one = one._replace(balance="none", beta=float(one.beta > 0), gamma=float(one.gamma > 0))
        if not one.beta:
            one = one._replace(curvature="")
        if not one.gamma:
            one = one._replace(information="")
        if not one.beta and not one.gamma:
            one = one._replace(power=1.0)
        return one

    def score(self, parts: Measured) -> Float[Tensor, "pos"]:
        gate = parts.gates[self.gate].values ** self.power
        terms = [
            weight * scaled(of[name].values, self.balance)
            for weight, of, name in (
                (self.beta, parts.curvatures, self.curvature),
                (self.gamma, parts.informations, self.information),
            )
            if weight
        ]
        return gate * torch.stack(terms).sum(0) if terms else gate

    def runs(self, parts: Measured) -> float:
        """Return the cost in plain forwards."""
        used = [parts.gates[self.gate]]
        used += [parts.curvatures[self.curvature]] if self.beta else []
        used += [parts.informations[self.information]] if self.gamma else []
        return sum(part.runs for part in used)


LITERAL = Candidate()
KL_ONLY = Candidate(beta=0.0, gamma=1.0)


def changed(base: Candidate) -> Iterator[Candidate]:
    """Yield candidates with one option changed."""
    yield from (base._replace(gate=gate) for gate in GATES)
    yield from (base._replace(power=power) for power in POWERS)
    yield from (base._replace(information=f"{mask}/{name}") for mask in MASKS for name in DIVERGENCES)
    yield from (base._replace(curvature=name) for name in CURVATURES)
    yield from (base._replace(balance=balance) for balance in ("sum", "max"))
    yield from (base._replace(beta=beta, gamma=gamma) for beta, gamma in WEIGHTS)


def together() -> Iterator[Candidate]:
    """Yield combinations of options."""
    gates, masks = ("suffix1", "rollout1", "uniform", "gradient"), ("zero", "mean", "space", "other")
    weightings: list[tuple[float, float, Balance]] = [(0.0, 1.0, "none"), (0.5, 0.5, "none"), (0.5, 0.5, "sum")]
    for gate, power, mask, name, (beta, gamma, balance) in product(
        gates, (0.5, 1.0), masks, ("orig_masked", "js"), weightings
    ):
        yield Candidate(gate, power, "block", f"{mask}/{name}", beta, gamma, balance)


def cheap() -> Iterator[Candidate]:
    """Yield candidates that need no run for every token: gates alone, and cheap curvatures."""
    yield from (Candidate(gate, beta=0.0, gamma=0.0) for gate in GATES)
    for gate, curvature in product(("suffix1", "rollout1", "uniform", "gradient"), CURVATURES):
        yield Candidate(gate, curvature=curvature, beta=1.0, gamma=0.0)


CANDIDATES: tuple[Candidate, ...] = tuple(
    dict.fromkeys(one.simple for one in (LITERAL, KL_ONLY, *changed(LITERAL), *changed(KL_ONLY), *together(), *cheap()))
)


BUDGETS = (inf, 100.0, 30.0, 3.0)
BY_NAME = {candidate.name: candidate for candidate in CANDIDATES}
assert len(BY_NAME) == len(CANDIDATES)


class Standing(NamedTuple):
    candidate: Candidate
    rank: float
    runs: float


class Measures(NamedTuple):
    templates: list[str]
    candidates: list[str]
    runs: Float[np.ndarray, "candidate"]
    values: Float[np.ndarray, "prompt candidate measure"]
    evidence: Float[np.ndarray, "prompt candidate 2"]
    p: Float[np.ndarray, "prompt"]


def size(family: str, split: Split) -> int:
    """Return the number of prompts of a family on a split."""
    return 48 if split == "dev" else 71 if family == "copied" else 96


def outcomes_name(family: str, split: Split) -> str:
    return f"study_{split}_{family.replace(' ', '_')}"


@cache
def measures_of(family: str, split: Split) -> Measures:
    outcomes = [*Outcomes(outcomes_name(family, split)).read().values()]
    if len(outcomes) != size(family, split):
        raise SystemExit(
            f"{family} has {len(outcomes)} of {size(family, split)} prompts on {split}: make table-study_results"
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
    """Return the cost of each candidate in forwards, on average over the families of dev."""
    return np.mean([measures_of(family, "dev").runs for family in DEV], axis=0)


def ranking(budget: float) -> list[Standing]:
    """Return the candidates within a budget, the best first."""
    runs = runs_of()
    within = np.flatnonzero(runs <= budget)
    ranks = np.mean([ranks_of(measures_of(family, "dev").values[:, within].mean(0)) for family in DEV], axis=0)
    standings = [Standing(CANDIDATES[at], float(rank), float(runs[at])) for at, rank in zip(within, ranks, strict=True)]
    return sorted(standings, key=lambda one: (one.rank, one.runs))


def ranks_of(means: Float[np.ndarray, "candidate measure"]) -> Float[np.ndarray, "candidate"]:
    """Return each candidate's rank, 1 for the best, averaged over the measures."""
    return rankdata(-means, axis=0).mean(1)


def winners() -> dict[float, Candidate]:
    return {budget: ranking(budget)[0].candidate for budget in BUDGETS}


def confirmed() -> Sequence[Candidate]:
    """Return the candidates that are measured on test."""
    return [*dict.fromkeys([LITERAL, *winners().values(), KL_ONLY.simple])]


def run(*families: str) -> None:
    """Measure all candidates on dev, and then the winners on test."""
    torch.set_num_threads(1)  # more only slow down models of this size
    warnings.simplefilter("ignore", UserWarning)
    splits: dict[Split, list[str]] = {"dev": DEV, "test": [*FAMILIES]}
    for split, known in splits.items():
        for family in [name for name in families or known if name in known]:
            measure(family, split, CANDIDATES if split == "dev" else confirmed())


def measure(family: str, split: Split, candidates: Sequence[Candidate]) -> None:
    outcomes = Outcomes(outcomes_name(family, split))
    cases = {case.id: case for case in FAMILIES[family].cases(family, split, size(family, split))}
    outcomes.measure([(id,) for id in cases], lambda key: outcome(cases[str(key[0])], candidates))


def outcome(case: Case, candidates: Sequence[Candidate]) -> dict[str, Any]:
    masks = {candidate.information.partition("/")[0] for candidate in candidates} - {""}
    parts = measured(case.prediction, masks, {candidate.curvature for candidate in candidates} - {""})
    scores = torch.stack([candidate.score(parts) for candidate in candidates])
    return evaluated(case, scores) | {
        "candidates": [candidate.name for candidate in candidates],
        "runs": [round(candidate.runs(parts), 1) for candidate in candidates],
    }


APART = "contest"  # the family and the model that had no part in the choice
LEVEL = 0.05
SHOWN = 10


class Compared(NamedTuple):
    """A winner and the literal formula, by one measure in one family; ``p`` is Holm's."""

    family: str
    measure: str
    difference: Difference
    p: float

    @property
    def verdict(self) -> int:
        return 0 if self.p > LEVEL else int(np.sign(self.difference.value))


class Confirmation(NamedTuple):
    candidate: Candidate
    compared: list[Compared]

    def counts(self, family: str | None = None) -> tuple[int, int]:
        """Return the numbers of significantly better and worse comparisons with the literal formula."""
        verdicts = [one.verdict for one in self.compared if family in (None, one.family)]
        return verdicts.count(1), verdicts.count(-1)

    @property
    def recommended(self) -> bool:
        (better, worse), (better_apart, worse_apart) = self.counts(), self.counts(APART)
        return better > worse and better_apart >= worse_apart


def confirmations() -> list[Confirmation]:
    """Return every winner against the literal formula, corrected for all comparisons together."""
    tested = [one for one in dict.fromkeys(winners().values()) if one != LITERAL]
    every = [
        (candidate, family, measure, compared(candidate, family, at))
        for candidate in tested
        for family in FAMILIES
        for at, measure in enumerate(MEASURES)
    ]
    p_values = corrected([found.p for *_, found in every])
    of = {candidate: list[Compared]() for candidate in tested}
    for (candidate, family, measure, found), p in zip(every, p_values, strict=True):
        of[candidate].append(Compared(family, measure, found, p))
    return [Confirmation(candidate, found) for candidate, found in of.items()]


def compared(candidate: Candidate, family: str, measure: int) -> Difference:
    test = measures_of(family, "test")
    ours, theirs = (test.values[:, test.candidates.index(one.name), measure].tolist() for one in (candidate, LITERAL))
    return difference(ours, theirs, test.templates)


def write() -> None:
    found = confirmations()
    pages.write("study_results", [winners_table(found), best_table()])
    pages.write("study_results", [*map(changes_table, (LITERAL, KL_ONLY.simple)), *map(test_table, found)], level=3)
    pages.write("study_results", [evidence_table()])


def budget_name(budget: float) -> str:
    return f"{budget:.0f}" if isfinite(budget) else "any"


def winners_table(found: Sequence[Confirmation]) -> Table:
    columns = [
        "forwards allowed",
        "winner",
        "forwards taken",
        "mean rank",
        "better / worse on test",
        APART,
        "recommended",
    ]
    of = {one.candidate: one for one in found}
    rows = []
    for budget in BUDGETS:
        best, *_ = ranking(budget)
        counts = confirmed_cells(of[best.candidate]) if best.candidate in of else ["the literal formula", "", ""]
        rows.append([budget_name(budget), f"`{best.candidate.name}`", f"{best.runs:.0f}", f"{best.rank:.1f}", *counts])
    note = "*mean rank*: among the candidates that are within a budget, so that the rows cannot be compared."
    return Table("The winners", columns, rows, note=note)


def confirmed_cells(one: Confirmation) -> list[str]:
    everywhere, apart = (" / ".join(map(str, one.counts(family))) for family in (None, APART))
    return [everywhere, apart, "yes" if one.recommended else "no"]


def best_table() -> Table:
    order = ranking(BUDGETS[0])
    shown = [*enumerate(order, 1)]
    wanted = [(place, one) for place, one in shown if place <= SHOWN or one.candidate in (LITERAL, KL_ONLY.simple)]
    by_family = {family: ranks_of(measures_of(family, "dev").values.mean(0)) for family in DEV}
    rows = [
        [str(place), f"`{one.candidate.name}`", f"{one.runs:.0f}", f"{one.rank:.1f}",
         *(f"{by_family[family][CANDIDATES.index(one.candidate)]:.0f}" for family in DEV)]
        for place, one in wanted
    ]  # fmt: skip
    note = "Ranks among all candidates, averaged over the ten measures; 1 would be best by all of them."
    columns = ["place", "candidate", "forwards", "mean rank", *DEV]
    return Table("On dev: the best, the literal formula and `kl_only`", columns, rows, note=note)


def changes_table(base: Candidate) -> Table:
    standing = {one.candidate: one for one in ranking(BUDGETS[0])}
    by_family = [ranks_of(measures_of(family, "dev").values.mean(0)) for family in DEV]

    def row(one: Standing) -> list[str]:
        place = CANDIDATES.index(one.candidate)
        nearer = sum(ranks[place] < ranks[CANDIDATES.index(base)] for ranks in by_family)
        return [
            f"`{one.candidate.name}`", f"{one.runs:.0f}", f"{one.rank:.1f}",
            f"{standing[base].rank - one.rank:+.1f}", f"{nearer} of {len(DEV)}",
        ]  # fmt: skip

    whole = KL_ONLY if base == KL_ONLY.simple else base
    others = dict.fromkeys(one.simple for one in changed(whole))
    rows = sorted((standing[one] for one in others), key=lambda one: one.rank)
    return Table(base.name, ["candidate", "forwards", "mean rank", "change", "families"], [row(one) for one in rows])


def test_table(found: Confirmation) -> Table:
    by = {(one.family, one.measure): one for one in found.compared}
    rows = [[measure, *(cell(by[family, measure]) for family in FAMILIES)] for measure in MEASURES]
    columns = ["measure", *(f"{family}, n = {len(measures_of(family, 'test').p)}" for family in FAMILIES)]
    return Table(found.candidate.name, columns, rows)


def cell(one: Compared) -> str:
    mark, found = {1: "▲ ", -1: "▼ ", 0: ""}[one.verdict], one.difference
    interval = f" [{found.low:+.3f}, {found.high:+.3f}]" if isfinite(found.low) and isfinite(found.high) else ""
    return f"{mark}{found.value:+.3f}{interval}"


def evidence_table() -> Table:
    rows = []
    for family in FAMILIES:
        test = measures_of(family, "test")
        for candidate in confirmed():
            first, mass = test.evidence[:, test.candidates.index(candidate.name)].T
            rows.append(
                [family, f"`{candidate.name}`", proportion(first.tolist(), test.templates),
                 average(mass.tolist(), test.templates, (0, 1))]
            )  # fmt: skip
    note = (
        "No part of the choice. *first*: how often the highest score is on the evidence; *mass*: the evidence's share "
        "of the scores."
    )
    return Table("On test: known evidence", ["family", "candidate", "first", "mass"], rows, note=note)
