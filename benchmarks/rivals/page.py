"""Writes docs/rivals.md and its figure from what `rivals` measured."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from matplotlib import pyplot as plt
from scipy.stats import rankdata

from benchmarks.outcomes import Key
from benchmarks.report import TOY_MODELS, average, markdown
from benchmarks.rivals.groups import BUDGETS, GROUPS, outcomes_of
from benchmarks.study.families import FAMILIES
from benchmarks.study.interventions import MEASURES, REFERENCES
from heta_lens.evaluation.statistics import chance, corrected

PAGE = Path(__file__).parents[2] / "docs" / "rivals.md"
FIGURE = PAGE.with_name("rivals.svg")
REFERENCE, LEVEL = "heta", 0.05
BETTER, WORSE = "▲ ", "▼ "
AS_PROPOSED = ("quick", "settings", "slow")
CAUSAL, AREAS = range(2 * len(REFERENCES)), range(2 * len(REFERENCES), len(MEASURES))
NAMES = (*MEASURES, "first is evidence", "evidence mass")


class Row(NamedTuple):
    """One method on the prompts of a family, with the values of all measures."""

    keys: list[Key]
    templates: list[str]
    values: Float[np.ndarray, "prompt measure"]
    runs: float
    seconds: float

    def of(self, keys: Iterable[Key]) -> "Row":
        """On those of its prompts that are among these, in their order."""
        place_of = {key: place for place, key in enumerate(self.keys)}
        own = [key for key in keys if key in place_of]
        places = [place_of[key] for key in own]
        return self._replace(keys=own, templates=[self.templates[at] for at in places], values=self.values[places])


class Entry(NamedTuple):
    """A method with a budget (None: as it is): its quality, from 0 to 1, and what it takes."""

    method: str
    budget: int | None
    quality: float
    first: float
    """How often its highest score is on known evidence."""
    runs: float
    families: int


@cache
def kept(family: str, group: str) -> Mapping[Key, Any]:
    return outcomes_of(family, group).read()


@cache
def rows(family: str, group: str, shared: bool = False) -> Mapping[str, Row]:
    """Methods that explain every prompt of a family, by name; on the prompts that all groups ``shared``."""
    others = [kept(family, name) for name in GROUPS if shared and kept(family, name)]
    keys = set(kept(family, group)).intersection(*others)
    outcomes = {key: outcome for key, outcome in kept(family, group).items() if key in keys}
    if not outcomes:
        return {}
    first, *_ = outcomes.values()
    everywhere = set.intersection(*({*outcome["methods"]} for outcome in outcomes.values()))
    return {name: _row(outcomes, name) for name in first["methods"] if name in everywhere}


def _row(outcomes: Mapping[Key, Mapping[str, list[object]]], name: str) -> Row:
    pairs = [(outcome, outcome["methods"].index(name)) for outcome in outcomes.values()]
    values = np.array([[*one["measures"][at], *one["evidence"][at]] for one, at in pairs])  # type: ignore[misc]
    runs, seconds = (float(np.mean([one[what][at] for one, at in pairs])) for what in ("runs", "seconds"))  # type: ignore[arg-type]
    return Row([*outcomes], [str(outcome["template"]) for outcome, _ in pairs], values, runs, seconds)


def as_proposed(family: str) -> dict[str, Row]:
    """Methods without a budget, on the prompts that the quick ones and HETA's settings share; slow ones on fewer."""
    every = {name: row for group in AS_PROPOSED for name, row in rows(family, group).items()}
    settings = kept(family, "settings")
    shared = [key for key in kept(family, "quick") if not settings or key in settings]
    return {name: row.of(shared) for name, row in every.items() if {*shared} & {*row.keys}}


def measured() -> list[str]:
    """The families that all quick methods were measured on."""
    return [family for family in FAMILIES if rows(family, "quick")]


def compared() -> list[str]:
    """The families that were also measured with every budget."""
    return [family for family in measured() if all(rows(family, f"budget {budget}") for budget in BUDGETS)]


# --------------------------------------------------------------------------------------------------- at equal compute
def entries() -> list[Entry]:
    """Every method with every budget. Its quality is its mean rank, among all of these, over measures and families.

    Only of families and prompts that were measured with all budgets.

    The evidence has no part in it.
    """
    groups = [(name, budget) for name, (_, budget) in GROUPS.items()]
    found: dict[tuple[str, int | None], list[tuple[float, float, float]]] = {}
    for family in compared():
        every = {(method, budget): row for name, budget in groups for method, row in rows(family, name, True).items()}
        means = np.array([row.values[:, : len(MEASURES)].mean(0) for row in every.values()])
        ranks = rankdata(means, axis=0).mean(1)
        for (key, row), rank in zip(every.items(), ranks, strict=True):
            first = float(row.values[:, len(MEASURES)].mean())
            found.setdefault(key, []).append(((rank - 1) / max(1, len(every) - 1), first, row.runs))
    means_of = {key: np.mean(some, axis=0) for key, some in found.items()}
    return [Entry(*key, *map(float, means), families=len(found[key])) for key, means in means_of.items()]


def front(every: Sequence[Entry]) -> list[Entry]:
    """Those that none of at most their cost is better than, the cheapest first."""
    complete = [one for one in every if one.families == len(compared())]
    order = sorted(complete, key=lambda one: (one.runs, -one.quality))
    best, kept = -1.0, []
    for one in order:
        if one.quality > best:
            best = one.quality
            kept.append(one)
    return kept


def compute_table(every: Sequence[Entry]) -> tuple[Sequence[str], list[list[str]]]:
    columns = ["method", "as proposed", "forwards", *(f"at {budget}" for budget in BUDGETS)]
    by = {(one.method, one.budget): one for one in every}
    methods = sorted({one.method for one in every}, key=lambda name: -_quality(by, name))
    table = []
    for name in methods:
        own = by.get((name, None))
        cells = [_cell(by.get((name, budget))) for budget in BUDGETS]
        table.append([f"`{name}`", _cell(own), f"{own.runs:.0f}" if own else "–", *cells])
    return columns, table


def _quality(by: Mapping[tuple[str, int | None], Entry], name: str) -> float:
    """As proposed, if that was measured, or else the best."""
    own = {budget: one.quality for (method, budget), one in by.items() if method == name}
    return own.get(None, max(own.values()))


def _cell(entry: Entry | None) -> str:
    if entry is None:
        return "–"
    short = "" if entry.families == len(compared()) else f" ({entry.families} of {len(compared())} families)"
    return f"{entry.quality:.2f}; {entry.first:.0%}{short}"


def draw(every: Sequence[Entry]) -> None:
    """Quality over cost; methods that none of their cost are better than are named and joined."""
    complete, best = [one for one in every if one.families == len(compared())], front(every)
    with plt.rc_context({"svg.hashsalt": "heta_lens", "font.size": 8}):
        figure, axis = plt.subplots(figsize=(7, 4.5))
        for heta, colour in ((False, "C0"), (True, "C3")):
            some = [one for one in complete if one.method.startswith("heta") == heta]
            axis.scatter(*_points(some), s=12, color=colour, label="HETA" if heta else "others", alpha=0.7)
        axis.step(*_points(best), where="post", color="0.6", linewidth=0.8, zorder=0)
        for one in best:
            name = one.method if one.budget is None else f"{one.method} at {one.budget}"
            axis.annotate(name, (max(one.runs, 0.5), one.quality), xytext=(3, 4), textcoords="offset points")
        axis.set(xscale="log", xlabel="forwards (a backward, or an HVP, counts as two)", ylabel="quality")
        axis.legend(frameon=False, loc="lower right")
        figure.tight_layout()
        figure.savefig(FIGURE, metadata={"Date": None})
        plt.close(figure)


def _points(some: Sequence[Entry]) -> tuple[list[float], list[float]]:
    """Those that take no forward are drawn at a half."""
    return [max(one.runs, 0.5) for one in some], [one.quality for one in some]


# ------------------------------------------------------------------------------------------------------ causal tables
def family_tables(family: str) -> Iterator[str]:
    every = as_proposed(family)
    own = every[REFERENCE]
    yield f"## {family.capitalize()}"
    absent = [f"`{name}`" for group in AS_PROPOSED for name in GROUPS[group][0] if name not in every]
    missing = f" Without {', '.join(absent)}, which do not explain all of them, or are not measured." if absent else ""
    fewer = [f"`{name}` on {len(row.keys)}" for name, row in every.items() if len(row.keys) < len(own.keys)]
    some = f" Slow ones on fewer prompts: {', '.join(fewer)}." if fewer else ""
    yield f"{len(own.templates)} prompts of {len(set(own.templates))} templates.{some}{missing}"
    for places in (CAUSAL, [*AREAS, len(MEASURES), len(MEASURES) + 1]):
        marks = {at: verdicts(family, at) for at in places}
        table = [
            [f"`{name}`", *(marks[at].get(name, "") + value(row, at) for at in places)] for name, row in every.items()
        ]
        yield markdown(["method", *(NAMES[at] for at in places)], table)


def value(row: Row, at: int) -> str:
    bounds = (-1.0, 1.0) if at not in range(len(REFERENCES), 2 * len(REFERENCES)) else None
    return average(row.values[:, at].tolist(), row.templates, bounds, 3 if at < len(MEASURES) else 2)


@cache
def verdicts(family: str, at: int) -> Mapping[str, str]:
    """Better or worse than HETA by more than chance, after Holm's correction for the number of methods."""
    every = as_proposed(family)
    own = every[REFERENCE]
    others = [(name, row, own.of(row.keys)) for name, row in every.items() if name != REFERENCE]
    p_values = corrected([
        chance(row.values[:, at].tolist(), same.values[:, at].tolist(), same.templates) for _, row, same in others
    ])  # fmt: skip
    signs = [np.sign(row.values[:, at].mean() - same.values[:, at].mean()) for _, row, same in others]
    marks = {1.0: BETTER, -1.0: WORSE}
    return {
        name: marks.get(float(sign), "") if isfinite(p) and p <= LEVEL else ""
        for (name, _, _), p, sign in zip(others, p_values, signs, strict=True)
    }


# ------------------------------------------------------------------------------------------------------------ the page
def write() -> None:
    every = entries()
    draw(every)
    sections = [
        TEXT,
        reading(every),
        "![quality over forwards](rivals.svg)",
        "## At equal compute",
        f"{COMPUTE} Prompts: {prompts_compared()}.",
        markdown(*compute_table(every)),
        "## Causal tables",
        CAUSAL_TEXT,
        *(part for family in measured() for part in family_tables(family)),
    ]
    PAGE.write_text("\n\n".join(sections) + "\n", encoding="utf-8")


def prompts(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{size} of {family}" for family, size in sizes.items())


def prompts_compared() -> str:
    """How many prompts of which families the quality stands on."""
    return prompts({family: len(rows(family, "quick", True)[REFERENCE].templates) for family in compared()})


def reading(every: Sequence[Entry]) -> str:
    best = front(every)
    steps = "; ".join(
        f"from {one.runs:.0f} forwards `{one.method}`"
        + ("" if one.budget is None else f" with a budget of {one.budget}")
        for one in best
    )
    complete = sorted(
        (one for one in every if one.budget is None and one.families == len(compared())), key=lambda one: -one.quality
    )
    place = [one.method for one in complete].index(REFERENCE) + 1
    return (
        f"**What to use, by budget:** {steps}.\n\n**HETA** as published is number {place} of {len(complete)} rows "
        f"(methods as they are proposed, other settings of some, and controls) that explain all {len(compared())} "
        "families of prompts."
    )


TEXT = f"""# Who agrees with interventions

{TOY_MODELS}

Written by `python -m benchmarks.rivals write`: every method but SEA-CoT, which these models cannot answer, as its
authors propose it and with the same compute, on prompts of the [study](study.md)'s test split (of recall more than the
study itself has), by its ten measures. None of these uses the known evidence; two more measures, which do, are shown
beside them."""
COMPUTE = """*Quality*: among all methods with all budgets, the share that one is better than, averaged over ten
measures and over the families; 1 would be best by all, 0.5 is the middle. With a budget, the option that a method's
cost grows with is made as large as 3, 30 or 100 forwards allow, where a backward or an HVP counts
as two; a dash says that on some prompt even the cheapest setting costs more. Methods that refuse a family's target are
compared on the others. After the semicolon, which is no part of the quality: how often the highest score is on known
evidence. Rows are sorted by the quality as proposed (of those that were only measured with budgets, by the best)."""
CAUSAL_TEXT = """Methods as they are proposed. ▲ better, ▼ worse than `heta`, the literal formula: p ≤ 0.05 by the
cluster bootstrap over templates, after Holm's correction for the number of methods; in brackets 95 % intervals."""
