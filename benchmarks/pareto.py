"""Ways to HETA's score by their FLOPs and their error, and the ways that are worth their cost.

The prompts are of three suites: recall stories (demo model), stories whose next word is copied (stories3M), and the
same with another story before them. The reference is one-by-one probes of another seed, twice as many as the default's.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from statistics import mean
from typing import Any, NamedTuple

import torch
from torch import Tensor

import heta_lens
from benchmarks import pages
from benchmarks.copied_words import prompts as copied_prompts
from benchmarks.models import counted_flops, load_stories3m, predicted, shared_top
from benchmarks.outcomes import Outcomes
from benchmarks.pages import average, intervals_over, number, proportion
from heta_lens._util.python import quietly
from heta_lens.data.suites import suite
from heta_lens.diagnostics import agreement
from heta_lens.evaluation import ask
from heta_lens.evaluation.statistics import estimate
from heta_lens.metrics.scores import evidence_positions

BEFORE = 1  # stories before a long one
ALL = 100  # prompts, of which a suite has all or the first: a long one takes minutes
PROMPTS = {"recall": ALL, "copied": ALL, "long": 45}
COUNTED = {"recall": 3, "copied": 3, "long": 1}  # prompts whose FLOPs are counted: ten minutes for a long one
demo = cache(heta_lens.load_demo_model)
REFERENCE: dict[str, Any] = {"groups": None, "probes": 20, "seed": 10**6}
DEFAULT = "groups=16, probes=10"
WAYS: dict[str, dict[str, Any]] = {
    DEFAULT: {"probes": 10},
    "groups=16, probes=5": {"probes": 5},
    "groups=16, probes=20": {"probes": 20},
    "groups=4, probes=40": {"groups": 4, "probes": 40},
    "groups=8, probes=10": {"groups": 8, "probes": 10},
    "groups=8, probes=20": {"groups": 8, "probes": 20},
    "groups=32, probes=10": {"groups": 32, "probes": 10},
    "each token alone, probes=2": {"groups": None, "probes": 2},
    "each token alone, probes=5": {"groups": None, "probes": 5},
    "each token alone, probes=10": {"groups": None, "probes": 10},
    "row, probes=10": {"support": "row", "probes": 10},
    "tolerance=0.05": {"tolerance": 0.05, "probes": 10},
    "lr, rank=64": {"variant": "lr", "rank": 64, "probes": 10},
    "gs": {"variant": "gs"},
}


class Prompt(NamedTuple):
    prediction: heta_lens.Prediction
    evidence: list[int]
    template: str


class Evaluated(NamedTuple):
    ranks: float
    l1: float
    top_ten: float
    first: bool
    mass: float


def recall(number: int) -> Prompt:
    instance = suite("recall", limit=ALL)[number]
    prediction = ask(demo(), instance)
    return Prompt(prediction, evidence_positions(instance, prediction, "gold"), str(instance.template))


def copied(number: int, before: int = 0) -> Prompt:
    """Return a story whose next word is copied, after a number of other stories."""
    stories = copied_prompts()
    chosen = stories[round(number * (len(stories) - 1) / (ALL - 1))]
    others = [
        stories[(stories.index(chosen) + place * len(stories) // 7) % len(stories)] for place in range(1, before + 1)
    ]
    lead = [token for story in others for token in story["ids"][1:]]  # only one of them begins the text
    ids = torch.tensor([[chosen["ids"][0], *lead, *chosen["ids"][1:]]])
    prediction = predicted(load_stories3m(), ids, chosen["target_id"])
    return Prompt(prediction, [len(lead) + position for position in chosen["source_positions"]], chosen["template"])


SUITES = {"recall": recall, "copied": copied, "long": partial(copied, before=BEFORE)}


def run() -> None:
    wanted = [(name, at) for name in SUITES for at in range(PROMPTS[name])]
    Outcomes("pareto").measure(wanted, lambda name, at: measured(SUITES[name](at), counted=at < COUNTED[name]))


def write() -> None:
    outcomes = {name: Outcomes("pareto").of([(name, at) for at in range(PROMPTS[name])]) for name in SUITES}
    pages.write("pareto", [table(name, [*those.values()], missing) for name, (those, missing) in outcomes.items()])


def measured(prompt: Prompt, *, counted: bool) -> dict[str, Any]:
    """Measure every way on one prompt; the ways share the gate and the information, which are exact."""
    prediction, reference = prompt.prediction, scored(prompt.prediction, **REFERENCE)
    scores = {way: by_itself(prediction, reference, options) for way, options in WAYS.items()}
    gflop = {
        way: counted_flops(partial(scored, prediction, **options)) / 1e9 for way, options in WAYS.items() if counted
    }
    return {
        "template": prompt.template,
        "length": len(prompt.prediction),
        "ways": {way: evaluated(score, reference, prompt.evidence) for way, score in scores.items()},
        "flops": gflop if counted else None,
    }


def scored(prediction: heta_lens.Prediction, **options: Any) -> heta_lens.Attribution:
    return quietly(lambda: heta_lens.Heta(progress=False, **options)(prediction))


def by_itself(prediction: heta_lens.Prediction, whole: heta_lens.Attribution, options: Mapping[str, Any]) -> Tensor:
    """Return a way's score; the curvature is its own, unless the way stops by the score."""
    if "tolerance" in options:
        return scored(prediction, **options).scores
    return combined(whole, scored(prediction, **options, gamma=0.0).parts["curvature"])


def combined(whole: heta_lens.Attribution, curvature: Tensor) -> Tensor:
    """The score of a curvature with the gate and information of another."""
    parts, weights = whole.parts, whole.options
    return parts["gate"] * (weights["beta"] * curvature + weights["gamma"] * parts["information"])


def evaluated(scores: Tensor, reference: heta_lens.Attribution, evidence: Sequence[int]) -> Evaluated:
    agreed, top = agreement(scores, reference.scores), shared_top(scores, reference.scores)
    candidates = scores.masked_fill(reference.special, 0.0)
    mass = float(candidates[list(evidence)].sum() / candidates.sum())
    first = int(candidates.argmax()) in evidence
    return Evaluated(agreed["rank_correlation"], agreed["l1"], top, first, mass)


# ------------------------------------------------------------------------------------------------------------ the page
COLUMNS = ["way", "GFLOP", "on the front", "ρ", "L1", "top ten", "first", "mass"]


class Point(NamedTuple):
    """The mean cost of a way, and its distance from the expected score on each prompt."""

    flops: float
    l1: list[float]


def points(outcomes: Sequence[Mapping[str, Any]]) -> dict[str, Point]:
    counted = [outcome for outcome in outcomes if outcome["flops"] is not None]
    return {
        way: Point(mean(one["flops"][way] for one in counted), [Evaluated(*one["ways"][way]).l1 for one in outcomes])
        for way in WAYS
    }


def front(placed: Mapping[str, Point], templates: Sequence[str]) -> list[str]:
    """Return the ways, the cheapest first, that no cheaper way is nearer than by more than chance."""
    ways = sorted(placed, key=lambda way: placed[way].flops)
    return [way for way in ways if not any(beats(placed[other], placed[way], templates) for other in ways)]


def beats(one: Point, other: Point, templates: Sequence[str]) -> bool:
    differences = [own - theirs for own, theirs in zip(one.l1, other.l1, strict=True)]
    return one.flops <= other.flops and estimate(differences, templates).high < 0


def table(name: str, outcomes: Sequence[Mapping[str, Any]], missing: int) -> pages.Table:
    if not outcomes:
        return pages.Table(name, COLUMNS, [], missing)
    templates = [outcome["template"] for outcome in outcomes]
    placed = points(outcomes)
    lengths = [outcome["length"] for outcome in outcomes]
    note = f"{len(outcomes)} prompts of {min(lengths)} to {max(lengths)} tokens. {intervals_over([templates])}"
    return pages.Table(name, COLUMNS, [*rows(outcomes, placed, templates)], missing, note)


def rows(
    outcomes: Sequence[Mapping[str, Any]], placed: Mapping[str, Point], templates: Sequence[str]
) -> Iterator[list[str]]:
    best = front(placed, templates)
    for way, point in sorted(placed.items(), key=lambda item: item[1].flops):
        ranks, l1, top, first, mass = zip(*(Evaluated(*outcome["ways"][way]) for outcome in outcomes), strict=True)
        yield [
            way,
            number(point.flops),
            "yes" if way in best else "",
            average(ranks, templates, (-1, 1), 3),
            average(l1, templates, (0, 2), 3),
            average(top, templates, (0, 10), 1),
            proportion(first, templates),
            average(mass, templates, (0, 1), 3),
        ]
