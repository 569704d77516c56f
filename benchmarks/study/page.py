"""Writes what the study found: docs/study_results.md, and the values of all candidates, dev.csv."""

import csv
from collections.abc import Iterator, Sequence
from math import isfinite
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.report import TOY_MODELS, average, markdown, proportion
from benchmarks.study.candidates import CANDIDATES, KL_ONLY, LITERAL, Candidate, changed
from benchmarks.study.choice import BUDGETS, Standing, confirmed, measures_of, ranking, ranks_of, winners
from benchmarks.study.families import DEV, FAMILIES
from benchmarks.study.interventions import MEASURES
from heta_lens.evaluation.statistics import Difference, corrected, difference

PAGE = Path(__file__).parents[2] / "docs" / "study_results.md"
VALUES = Path(__file__).with_name("dev.csv")
APART = "contest"  # the family and the model that had no part in the choice
LEVEL = 0.05
SHOWN = 10


NAMES = """How candidates are named: the gate (its flow, and the order of the values' norm) and its power; in brackets,
the weights of the curvature (`block` is the default; `row`, `gs` and so on are options of `Heta`) and of the
information, whose name is its mask and its divergence. So `suffix1 · (0.5 block + 0.5 zero/orig_masked)` is the literal
formula, and `suffix1 · (1 zero/orig_masked)` is `kl_only`."""


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
        """How often it is significantly better than the literal formula, and how often worse."""
        verdicts = [one.verdict for one in self.compared if family in (None, one.family)]
        return verdicts.count(1), verdicts.count(-1)

    @property
    def recommended(self) -> bool:
        (better, worse), (better_apart, worse_apart) = self.counts(), self.counts(APART)
        return better > worse and better_apart >= worse_apart


def confirmations() -> list[Confirmation]:
    """Every winner against the literal formula, corrected for all comparisons together."""
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
    sections = [
        "# Which setting of HETA: results",
        TOY_MODELS,
        "Written by `python -m benchmarks.study write`, by the [protocol](study.md). All candidates' values on dev are "
        "in `benchmarks/study/dev.csv`.",
        NAMES,
        reading(found),
        "## The winners",
        "*mean rank*: among the candidates that are within a budget, so that the rows cannot be compared.",
        markdown(*winners_table(found)),
        "## On dev: the best, the literal formula and `kl_only`",
        "Ranks among all candidates, averaged over the ten measures; 1 would be best by all of them.",
        markdown(*best_table()),
        "## On dev: one option at a time",
        "Mean ranks among all candidates. *change*: how much better than the formula it changes; *families*: in how "
        "many of five it is.",
        *(part for base in (LITERAL, KL_ONLY.simple) for part in (f"### {base.name}", markdown(*changes_table(base)))),
        "## On test",
        *test_sections(found),
        "## On test: known evidence",
        "No part of the choice. *first*: how often the highest score is on the evidence; *mass*: the evidence's share "
        "of the scores.",
        markdown(*evidence_table()),
    ]
    PAGE.write_text("\n\n".join(sections) + "\n", encoding="utf-8")
    write_values()


def reading(found: Sequence[Confirmation]) -> str:
    best, literal = ranking(BUDGETS[0]), LITERAL.name
    place = [one.candidate for one in best].index(LITERAL) + 1
    sentences = [
        f"Of {len(CANDIDATES)} candidates, `{best[0].candidate.name}` agrees best with interventions on dev (mean rank "
        f"{best[0].rank:.1f}); the literal formula, `{literal}`, is number {place} (mean rank "
        f"{best[place - 1].rank:.1f})."
    ]
    for one in found:
        (better, worse), (apart, against) = one.counts(), one.counts(APART)
        sentences.append(
            f"On test, `{one.candidate.name}` is significantly better than it by {better} of {len(one.compared)} "
            f"comparisons and worse by {worse}; in the {APART}, which had no part in the choice, better by {apart} and "
            f"worse by {against}. It is {'' if one.recommended else 'not '}recommended."
        )
    return " ".join(sentences)


def budget_name(budget: float) -> str:
    return f"{budget:.0f}" if isfinite(budget) else "any"


def winners_table(found: Sequence[Confirmation]) -> tuple[Sequence[str], list[list[str]]]:
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
    return columns, rows


def confirmed_cells(one: Confirmation) -> list[str]:
    everywhere, apart = (" / ".join(map(str, one.counts(family))) for family in (None, APART))
    return [everywhere, apart, "yes" if one.recommended else "no"]


def best_table() -> tuple[Sequence[str], list[list[str]]]:
    order = ranking(BUDGETS[0])
    shown = [*enumerate(order, 1)]
    wanted = [(place, one) for place, one in shown if place <= SHOWN or one.candidate in (LITERAL, KL_ONLY.simple)]
    by_family = {family: ranks_of(measures_of(family, "dev").values.mean(0)) for family in DEV}
    rows = [
        [str(place), f"`{one.candidate.name}`", f"{one.runs:.0f}", f"{one.rank:.1f}",
         *(f"{by_family[family][CANDIDATES.index(one.candidate)]:.0f}" for family in DEV)]
        for place, one in wanted
    ]  # fmt: skip
    return ["place", "candidate", "forwards", "mean rank", *DEV], rows


def changes_table(base: Candidate) -> tuple[Sequence[str], list[list[str]]]:
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
    return ["candidate", "forwards", "mean rank", "change", "families"], [row(one) for one in rows]


def test_sections(found: Sequence[Confirmation]) -> Iterator[str]:
    yield (
        f"Differences to the literal formula, more is better, with 95 % intervals over templates. ▲ better, ▼ worse: "
        f"p ≤ {LEVEL:g} after Holm's correction for all {sum(len(one.compared) for one in found)} comparisons."
    )
    for one in found:
        yield f"### {one.candidate.name}"
        by = {(each.family, each.measure): each for each in one.compared}
        rows = [[measure, *(cell(by[family, measure]) for family in FAMILIES)] for measure in MEASURES]
        yield markdown(
            ["measure", *(f"{family}, n = {len(measures_of(family, 'test').p)}" for family in FAMILIES)], rows
        )


def cell(one: Compared) -> str:
    mark, found = {1: "▲ ", -1: "▼ ", 0: ""}[one.verdict], one.difference
    interval = f" [{found.low:+.3f}, {found.high:+.3f}]" if isfinite(found.low) and isfinite(found.high) else ""
    return f"{mark}{found.value:+.3f}{interval}"


def evidence_table() -> tuple[Sequence[str], list[list[str]]]:
    rows = []
    for family in FAMILIES:
        test = measures_of(family, "test")
        for candidate in confirmed():
            first, mass = test.evidence[:, test.candidates.index(candidate.name)].T
            rows.append(
                [family, f"`{candidate.name}`", proportion(first.tolist(), test.templates),
                 average(mass.tolist(), test.templates, (0, 1))]
            )  # fmt: skip
    return ["family", "candidate", "first", "mass"], rows


def write_values() -> None:
    standing = {one.candidate: one for one in ranking(BUDGETS[0])}
    with VALUES.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(
            ["candidate", "forwards", "mean rank", *(f"{family}: {name}" for family in DEV for name in MEASURES)]
        )
        for at, candidate in enumerate(CANDIDATES):
            means = [measures_of(family, "dev").values[:, at].mean(0) for family in DEV]
            cells = [f"{value:.4g}" for value in np.concatenate(means)]
            one = standing[candidate]
            writer.writerow([candidate.name, f"{one.runs:.1f}", f"{one.rank:.2f}", *cells])
