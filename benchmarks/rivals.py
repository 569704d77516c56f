"""Every method against interventions and known evidence, as its authors propose it and at equal compute.

The prompts are those of the study of HETA's setting, test split, and so are the measures. Methods are measured in
groups: ``quick`` and ``slow`` ones as they are, and all methods with a budget of 3, 30 or 100 forwards.
"""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import product
from math import isfinite
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from matplotlib import pyplot as plt
from scipy.stats import rankdata

import heta_lens
from benchmarks import pages
from benchmarks.interventions import MEASURES, REFERENCES, evaluated
from benchmarks.outcomes import Key, Outcomes
from benchmarks.pages import Table, average, markdown
from benchmarks.prompts import FAMILIES, Case
from heta_lens.evaluation.statistics import corrected, difference
from heta_lens.methods.base import Method
from heta_lens.methods.cost import within_budget
from heta_lens.prediction.prediction import Prediction

SIZES = {"recall": 300} | {family: 100 for family in FAMILIES if family != "recall"}
SLOW = ("causal_tracing", "faml", "reagent", "sequential_integrated_gradients")  # over two seconds a story
UNABLE = ("sea_cot",)  # the models at hand do not answer Yes or No
BUDGETS = (3, 30, 100)

SETTINGS: Mapping[str, Mapping[str, Any]] = {  # of HETA: the winners of the study, and what came near
    "heta kl_only masked_orig": {"variant": "kl_only", "kl": "masked_orig"},
    "heta kl_only": {"variant": "kl_only"},
    "heta balanced": {"balance": "sum"},
    "heta row": {"support": "row"},
    "heta gs": {"variant": "gs", "beta": 1.0, "gamma": 0.0},
    "heta gate": {"variant": "transition_only", "flow": "direct"},
}
QUICK = (*(name for name in heta_lens.METHODS if name not in (*SLOW, *UNABLE)),)
ALL = (*QUICK, *SETTINGS, *SLOW)
GROUPS: Mapping[str, tuple[Sequence[str], int | None]] = {
    "quick": (QUICK, None),
    "settings": ((*SETTINGS,), None),
    "slow": (SLOW, None),
    **{f"budget {budget}": (ALL, budget) for budget in BUDGETS},
}


def outcomes_of(family: str, group: str) -> Outcomes:
    return Outcomes(f"rivals_{family}_{group}".replace(" ", "_"))


def run(*families: str) -> None:
    torch.set_num_threads(1)  # more only slow down models of this size
    warnings.simplefilter("ignore", UserWarning)
    for family in families or FAMILIES:
        cases = {case.id: case for case in FAMILIES[family].cases(family, SIZES[family])}
        for group, (labels, budget) in GROUPS.items():
            measure(outcomes_of(family, group), cases, labels, budget)


def measure(outcomes: Outcomes, cases: Mapping[str, Case], labels: Sequence[str], budget: int | None) -> None:
    outcomes.measure(product(cases), lambda id: outcome(cases[id], labels, budget))


def outcome(case: Case, labels: Sequence[str], budget: int | None) -> dict[str, Any]:
    """Return the outcomes of methods that explain a prompt within the budget, and the refusals."""
    done: dict[str, tuple[torch.Tensor, float]] = {}
    refused: dict[str, str] = {}
    for label in labels:
        method: Any = heta_lens.METHODS[label.split(" ")[0]](progress=False, **SETTINGS.get(label, {}))
        try:
            done[label] = explained(method, case.prediction, budget)
        except ValueError as error:
            refused[label] = str(error)
    scores, runs = zip(*done.values(), strict=True)
    known = {"methods": [*done], "refused": refused, "runs": [round(taken, 1) for taken in runs]}
    return evaluated(case, torch.stack(scores)) | known


def explained(method: Method, prediction: Prediction, budget: int | None) -> tuple[torch.Tensor, float]:
    """Return scores, and cost in forwards (a backward or a product counts as two)."""
    if budget is not None:
        method = within_budget(method, prediction, float(budget))
    attribution = method(prediction)
    cost = attribution.diagnostics.cost
    runs = (cost.forwards or 0) + 2 * ((cost.backwards or 0) + (cost.hvps or 0))
    return attribution.scores.detach().cpu().double(), runs


FIGURE = pages.PAGES["rivals"].with_suffix(".png")
REFERENCE, LEVEL = "heta", 0.05
AS_PROPOSED = ("quick", "settings", "slow")
CAUSAL, AREAS = range(2 * len(REFERENCES)), range(2 * len(REFERENCES), len(MEASURES))
NAMES = (*MEASURES, "first is evidence", "evidence mass")


class Row(NamedTuple):
    """One method on the prompts of a family, with the values of all measures."""

    keys: list[Key]
    templates: list[str]
    values: Float[np.ndarray, "prompt measure"]
    runs: float

    def of(self, keys: Iterable[Key]) -> "Row":
        place_of = {key: place for place, key in enumerate(self.keys)}
        own = [key for key in keys if key in place_of]
        places = [place_of[key] for key in own]
        return self._replace(keys=own, templates=[self.templates[at] for at in places], values=self.values[places])


class Entry(NamedTuple):
    """A method with a budget (None without): its quality, from 0 to 1, and its cost."""

    method: str
    budget: int | None
    quality: float
    first: float  # the share of prompts whose highest score is on known evidence
    runs: float
    families: int


@cache
def kept(family: str, group: str) -> Mapping[Key, Any]:
    return outcomes_of(family, group).read()


@cache
def rows(family: str, group: str, shared: bool = False) -> Mapping[str, Row]:
    """Return methods that explain every prompt of a family, by name; on the prompts that all groups ``shared``."""
    others = [kept(family, name) for name in GROUPS if shared and kept(family, name)]
    keys = set(kept(family, group)).intersection(*others)
    outcomes = {key: outcome for key, outcome in kept(family, group).items() if key in keys}
    if not outcomes:
        return {}
    methods, *others = (outcome["methods"] for outcome in outcomes.values())
    everywhere = {*methods}.intersection(*others)
    return {name: _row(outcomes, name) for name in methods if name in everywhere}


def _row(outcomes: Mapping[Key, Any], name: str) -> Row:
    pairs = [(outcome, outcome["methods"].index(name)) for outcome in outcomes.values()]
    values = np.array([[*one["measures"][at], *one["evidence"][at]] for one, at in pairs])
    runs = float(np.mean([one["runs"][at] for one, at in pairs]))
    return Row([*outcomes], [str(outcome["template"]) for outcome, _ in pairs], values, runs)


def as_proposed(family: str) -> dict[str, Row]:
    """Return methods without a budget, on the prompts of the quick methods; slow methods have fewer."""
    every = {name: row for group in AS_PROPOSED for name, row in rows(family, group).items()}
    settings = kept(family, "settings")
    shared = [key for key in kept(family, "quick") if not settings or key in settings]
    return {name: row.of(shared) for name, row in every.items() if {*shared} & {*row.keys}}


def measured() -> list[str]:
    return [family for family in FAMILIES if rows(family, "quick")]


def compared() -> list[str]:
    """Return the families with outcomes for every budget."""
    return [family for family in measured() if all(rows(family, f"budget {budget}") for budget in BUDGETS)]


# --------------------------------------------------------------------------------------------------- at equal compute
def entries() -> list[Entry]:
    """Return every method with every budget.

    Quality is the mean rank over measures and families, without the evidence.
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
    """Return the entries that no cheaper entry is better than, the cheapest first."""
    complete = [one for one in every if one.families == len(compared())]
    order = sorted(complete, key=lambda one: (one.runs, -one.quality))
    best, kept = -1.0, []
    for one in order:
        if one.quality > best:
            best = one.quality
            kept.append(one)
    return kept


def compute_table(every: Sequence[Entry]) -> Table:
    """Return the methods by their quality as proposed, or else by their best."""
    by: dict[str, dict[int | None, Entry]] = {}
    for one in every:
        by.setdefault(one.method, {})[one.budget] = one
    quality = {name: own.get(None, max(own.values(), key=lambda one: one.quality)).quality for name, own in by.items()}
    table = []
    for name in sorted(quality, key=lambda name: -quality[name]):
        own = by[name].get(None)
        cells = [_cell(by[name].get(budget)) for budget in BUDGETS]
        table.append([f"`{name}`", _cell(own), f"{own.runs:.0f}" if own else "–", *cells])
    sizes = (f"{len(rows(family, 'quick', True)[REFERENCE].keys)} of {family}" for family in compared())
    columns = ["method", "as proposed", "forwards", *(f"at {budget}" for budget in BUDGETS)]
    return Table("At equal compute", columns, table, note=f"Prompts: {', '.join(sizes)}.")


def _cell(entry: Entry | None) -> str:
    if entry is None:
        return "–"
    short = "" if entry.families == len(compared()) else f" ({entry.families} of {len(compared())} families)"
    return f"{entry.quality:.2f}; {entry.first:.0%}{short}"


def draw(every: Sequence[Entry]) -> None:
    """Draw quality over cost; the entries of the front are named and joined."""
    complete, best = [one for one in every if one.families == len(compared())], front(every)
    with plt.rc_context({"font.size": 8}):
        figure, axis = plt.subplots(figsize=(7, 4.5))
        for label, colour in (("others", "C0"), ("HETA", "C3")):
            some = [one for one in complete if one.method.startswith("heta") == (label == "HETA")]
            axis.scatter(*_points(some), s=12, color=colour, label=label, alpha=0.7)
        axis.step(*_points(best), where="post", color="0.6", linewidth=0.8, zorder=0)
        for one in best:
            name = one.method if one.budget is None else f"{one.method} at {one.budget}"
            axis.annotate(name, (max(one.runs, 0.5), one.quality), xytext=(3, 4), textcoords="offset points")
        axis.set(xscale="log", xlabel="forwards (a backward, or an HVP, counts as two)", ylabel="quality")
        axis.legend(frameon=False, loc="lower right")
        figure.tight_layout()
        pages.save_figure(figure, FIGURE)
        plt.close(figure)


def _points(some: Sequence[Entry]) -> tuple[list[float], list[float]]:
    return [max(one.runs, 0.5) for one in some], [one.quality for one in some]


# ------------------------------------------------------------------------------------------------------ causal tables
def family_section(family: str) -> tuple[str, str]:
    every = as_proposed(family)
    own = every[REFERENCE]
    absent = [f"`{name}`" for group in AS_PROPOSED for name in GROUPS[group][0] if name not in every]
    missing = f" Without {', '.join(absent)}, which do not explain all of them, or are not measured." if absent else ""
    fewer = [f"`{name}` on {len(row.keys)}" for name, row in every.items() if len(row.keys) < len(own.keys)]
    some = f" Slow ones on fewer prompts: {', '.join(fewer)}." if fewer else ""
    parts = [f"{len(own.templates)} prompts of {len(set(own.templates))} templates.{some}{missing}"]
    for places in (CAUSAL, [*AREAS, len(MEASURES), len(MEASURES) + 1]):
        marks = {at: verdicts(family, at) for at in places}
        table = [
            [f"`{name}`", *(marks[at].get(name, "") + value(row, at) for at in places)] for name, row in every.items()
        ]
        parts.append(markdown(["method", *(NAMES[at] for at in places)], table))
    return family.capitalize(), "\n\n".join(parts)


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
        difference(row.values[:, at].tolist(), same.values[:, at].tolist(), same.templates).p for _, row, same in others
    ])  # fmt: skip
    signs = [np.sign(row.values[:, at].mean() - same.values[:, at].mean()) for _, row, same in others]
    marks = {1.0: "▲ ", -1.0: "▼ "}
    return {
        name: marks.get(float(sign), "") if isfinite(p) and p <= LEVEL else ""
        for (name, _, _), p, sign in zip(others, p_values, signs, strict=True)
    }


# ------------------------------------------------------------------------------------------------------------ the page
def write() -> None:
    every = entries()
    draw(every)
    steps = ("The best here, by budget", reading(every))
    pages.write("rivals", [steps, compute_table(every), *map(family_section, measured())])


def reading(every: Sequence[Entry]) -> str:
    steps = "; ".join(
        f"from {one.runs:.0f} forwards `{one.method}`"
        + ("" if one.budget is None else f" with a budget of {one.budget}")
        for one in front(every)
    )
    complete = [one for one in every if one.budget is None and one.families == len(compared())]
    place = [one.method for one in sorted(complete, key=lambda one: -one.quality)].index(REFERENCE) + 1
    return (
        f"On these prompts of small models, in order of cost: {steps}. [Choosing a method](choosing.md) proposes by "
        f"prompts of real models.\n\n`{REFERENCE}` as published is number {place} of {len(complete)} rows (methods "
        f"as they are proposed, other settings of some, and controls) that explain all {len(compared())} families of "
        "prompts."
    )
