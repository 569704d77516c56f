"""What nearness to the expected score costs: ways to HETA's score by their FLOPs and their error, and the best of them.

On three suites of prompts: recall stories (demo model), stories whose next word is copied, and the same with another
story before them, so that they are about twice as long (stories3M). For each way,

    ρ, L1, top ten   against one-by-one probes of another seed, twice as many as the default's
    first, mass      how often the highest-scored token is known evidence; the evidence's share of the score
    GFLOP            of the whole score, as torch counts them, on the suite's first prompts

A way is on the front unless a cheaper one is nearer by more than chance. `run` takes hours; an interrupted run resumes.

    python -m benchmarks.pareto run [--suite recall] [--limit N]
    python -m benchmarks.pareto write
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Annotated, Any, NamedTuple

import matplotlib.pyplot as plt
import torch
import typer
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import heta_lens
from benchmarks import report
from benchmarks.copied_words.table import prompts as copied_prompts
from benchmarks.outcomes import FOLDER, Folder, Key, Outcomes
from benchmarks.report import average, intervals_over, number, proportion
from benchmarks.stories3m import load_stories3m
from heta_lens._util.python import quietly
from heta_lens.data.suites import suite
from heta_lens.diagnostics import agreement
from heta_lens.evaluation import ask
from heta_lens.evaluation.statistics import estimate
from heta_lens.methods.heta.curvature import Curvature, Problem, whole_segment
from heta_lens.metrics.scores import evidence_positions

HERE = Path(__file__).parent
PAGE, PICTURE = HERE / "PARETO.md", HERE / "pareto.svg"
BEFORE = 1  # stories before a long one
ALL = 100  # prompts, of which a suite has all or the first: a long one takes minutes
PROMPTS = {"recall": ALL, "copied": ALL, "long": 45}
COUNTED = {"recall": 3, "copied": 3, "long": 1}  # prompts whose FLOPs are counted: ten minutes for a long one
REFERENCE: dict[str, Any] = {"groups": None, "probes": 20, "seed": 10**6}
DEFAULT = "default: groups=16, probes=10"
WAYS: dict[str, dict[str, Any]] = {
    DEFAULT: {},
    "groups=16, probes=5": {"probes": 5},
    "groups=16, probes=20": {"probes": 20},
    "groups=4, probes=40": {"groups": 4, "probes": 40},
    "groups=8, probes=10": {"groups": 8},
    "groups=8, probes=20": {"groups": 8, "probes": 20},
    "groups=32, probes=10": {"groups": 32},
    "each token alone, probes=2": {"groups": None, "probes": 2},
    "each token alone, probes=5": {"groups": None, "probes": 5},
    "each token alone, probes=10": {"groups": None},
    "row, probes=10": {"support": "row"},
    "tolerance=0.05": {"tolerance": 0.05},
    "lr, rank=64": {"variant": "lr", "rank": 64},
    "gs": {"variant": "gs"},
}


class Prompt(NamedTuple):
    """A prompt with its evidence, and the template it was made from."""

    prediction: heta_lens.Prediction
    evidence: list[int]
    template: str


class Evaluated(NamedTuple):
    """One way on one prompt."""

    ranks: float
    l1: float
    top_ten: float
    first: bool
    mass: float


@cache
def demo() -> Any:
    return heta_lens.load_demo_model()


@cache
def stories3m() -> Any:
    return load_stories3m()


def recall(number: int) -> Prompt:
    instance = suite("recall", limit=ALL)[number]
    prediction = ask(demo(), instance)
    return Prompt(prediction, evidence_positions(instance, prediction, "gold"), str(instance.template))


def copied(number: int, before: int = 0) -> Prompt:
    """A story whose next word is copied, after so many others."""
    stories = [*copied_prompts().values()]
    chosen = stories[round(number * (len(stories) - 1) / (ALL - 1))]
    others = [
        stories[(stories.index(chosen) + place * len(stories) // 7) % len(stories)] for place in range(1, before + 1)
    ]
    lead = [token for story in others for token in story["ids"][1:]]  # only one of them begins the text
    ids = torch.tensor([[chosen["ids"][0], *lead, *chosen["ids"][1:]]])
    _, activations = stories3m().run_with_cache(ids, names_filter=heta_lens.names_filter)
    prediction = heta_lens.Prediction.from_cache(activations, chosen["target_id"], tokens=ids)
    return Prompt(prediction, [len(lead) + position for position in chosen["source_positions"]], chosen["template"])


def long(number: int) -> Prompt:
    return copied(number, BEFORE)


SUITES = {"recall": recall, "copied": copied, "long": long}
app = typer.Typer(add_completion=False)


@app.command()
def run(
    suite: Annotated[list[str] | None, typer.Option(help=f"Of {', '.join(SUITES)}.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=ALL, help="Only the first N prompts.")] = ALL,
    folder: Folder = FOLDER,
) -> None:
    """Measure every way on every prompt; an interrupted run resumes."""
    wanted: list[Key] = [(name, at) for name in suite or SUITES for at in range(min(limit, PROMPTS[name]))]

    def one(key: Key) -> dict[str, Any]:
        name, at = str(key[0]), int(key[1])
        return measured(SUITES[name](at), counted=at < COUNTED[name])

    Outcomes("pareto", folder).measure(wanted, one)


@app.command()
def write(folder: Folder = FOLDER) -> None:
    """Write PARETO.md and its picture from what was measured."""
    outcomes = {name: Outcomes("pareto", folder).of([(name, at) for at in range(PROMPTS[name])]) for name in SUITES}
    tables = [table(name, [*those.values()], missing) for name, (those, missing) in outcomes.items()]
    for one in tables:
        report.show(one.title, one.columns, one.rows)
    if folder == FOLDER:
        report.write(PAGE, LEGEND, tables)
        whole = {name: [*those.values()] for name, (those, missing) in outcomes.items() if not missing}
        placed = {name: points(those) for name, those in whole.items()}
        fronts = {name: front(placed[name], [one["template"] for one in those]) for name, those in whole.items()}
        draw(placed, fronts, PICTURE)


def measured(prompt: Prompt, *, counted: bool) -> dict[str, Any]:
    """Every way on one prompt; all share the gate and the information, which have no chance in them."""
    prediction, reference = prompt.prediction, scored(prompt.prediction, REFERENCE)
    curvatures = {way: found for options in families() for way, found in by_probes(prediction, *options)}
    others = {way: options for way, options in WAYS.items() if way not in curvatures}
    scores = {way: combined(reference, own) for way, own in curvatures.items()}
    scores |= {way: by_itself(prediction, reference, options) for way, options in others.items()}
    return {
        "template": prompt.template,
        "length": len(prompt.prediction),
        "ways": {way: evaluated(score, reference, prompt.evidence) for way, score in scores.items()},
        "flops": {way: flops(prompt.prediction, options) for way, options in WAYS.items()} if counted else None,
    }


def scored(prediction: heta_lens.Prediction, options: Mapping[str, Any]) -> heta_lens.Attribution:
    return quietly(lambda: heta_lens.Heta(progress=False, **options)(prediction))


def families() -> Iterator[tuple[int | None, dict[str, int]]]:
    """Ways that differ in how many probes they take alone: their groups, and the probes of each."""
    usual = heta_lens.Heta()
    of = defaultdict[int | None, dict[str, int]](dict)
    for way, options in WAYS.items():
        if options.keys() <= {"groups", "probes"}:
            of[options.get("groups", usual.groups)][way] = options.get("probes", usual.probes)
    yield from of.items()


def by_probes(
    prediction: heta_lens.Prediction, groups: int | None, probes: Mapping[str, int]
) -> Iterator[tuple[str, Tensor]]:
    """Each way's curvature, from the products of the one with the most probes: the others' are the first of them."""
    found = curvature(prediction, range(len(prediction)), groups=groups, probes=max(probes.values()))
    for way, count in probes.items():
        yield way, Curvature.of_readings([own[:, :count] for own in found.drawn]).mean


def curvature(
    prediction: heta_lens.Prediction, tokens: Iterable[int], *, groups: int | None, probes: int, seed: int = 0
) -> Curvature:
    """Of some tokens alone, which share HVPs in so many groups (None: in none)."""
    estimator: Any = heta_lens.Heta(seed=seed).estimator
    with prediction.running():
        problem = Problem(whole_segment(prediction), prediction.prompt.batches("auto", len(prediction), products=True))
        return replace(estimator, groups=groups).estimate(problem, dict.fromkeys(tokens, range(probes)))


def by_itself(prediction: heta_lens.Prediction, whole: heta_lens.Attribution, options: Mapping[str, Any]) -> Tensor:
    """A way's score; its own curvature with the others' gate and information, unless it stops by the score."""
    if "tolerance" in options:
        return scored(prediction, options).scores
    return combined(whole, scored(prediction, {**options, "gamma": 0.0}).parts["curvature"])


def combined(whole: heta_lens.Attribution, curvature: Tensor) -> Tensor:
    """The score of a curvature with the gate and information of another."""
    parts, weights = whole.parts, whole.options
    return parts["gate"] * (weights["beta"] * curvature + weights["gamma"] * parts["information"])


def evaluated(scores: Tensor, reference: heta_lens.Attribution, evidence: Sequence[int]) -> Evaluated:
    agreed = agreement(scores, reference.scores)
    top, expected = ({*one.topk(min(10, len(one))).indices.tolist()} for one in (scores, reference.scores))
    candidates = scores.masked_fill(reference.special, 0.0)
    mass = float(candidates[list(evidence)].sum() / candidates.sum())
    first = int(candidates.argmax()) in evidence
    return Evaluated(agreed["rank_correlation"], agreed["l1"], len(top & expected), first, mass)


def flops(prediction: heta_lens.Prediction, options: Mapping[str, Any]) -> float:
    """GFLOP of the whole score, as torch counts them."""
    with FlopCounterMode(display=False) as counter:
        scored(prediction, options)
    return counter.get_total_flops() / 1e9


# ------------------------------------------------------------------------------------------------------------ the page
COLUMNS = ["way", "GFLOP", "on the front", "ρ", "L1", "top ten", "first", "mass"]
LEGEND = f"""# Error against cost

{report.TOY_MODELS}

Written by `python -m benchmarks.pareto`. **recall**: questions about stories, read by the demo model; **copied**:
stories whose next word is copied, read by stories3M; **long**: the same with another story before them.

ρ, L1 (0 to 2, of scores that sum to 1) and the ten highest scores in common are against `groups=None` with
{REFERENCE["probes"]} probes and another seed. That is random as well, and no way can come nearer than its own error.
All ways but `tolerance` share the gate and the information, which are exact. **first**: how often the highest score is
on known evidence; **mass**: the evidence's share of the score. GFLOP: of the whole score, mean of the first
{COUNTED["recall"]} prompts (long: of the first).

A way is on the **front** unless a cheaper one has a lower L1, by more than chance (a paired 95 % interval over
templates). In the picture, ways are named by groups × probes, and those that are not on the front are hollow.

![error over FLOPs](pareto.svg)"""


class Point(NamedTuple):
    """A way's mean cost, and how far from the expected score it was on each prompt."""

    flops: float
    l1: list[float]
    ranks: list[float]


def points(outcomes: Sequence[Mapping[str, Any]]) -> dict[str, Point]:
    counted = [outcome for outcome in outcomes if outcome["flops"] is not None]
    evaluated = {way: [Evaluated(*outcome["ways"][way]) for outcome in outcomes] for way in WAYS}
    return {
        way: Point(mean(one["flops"][way] for one in counted), [one.l1 for one in every], [one.ranks for one in every])
        for way, every in evaluated.items()
    }


def front(placed: Mapping[str, Point], templates: Sequence[str]) -> list[str]:
    """The ways that no cheaper one is nearer than by more than chance, from the cheapest on."""
    ways = sorted(placed, key=lambda way: placed[way].flops)
    return [way for way in ways if not any(beats(placed[other], placed[way], templates) for other in ways)]


def beats(one: Point, other: Point, templates: Sequence[str]) -> bool:
    differences = [own - theirs for own, theirs in zip(one.l1, other.l1, strict=True)]
    return one.flops <= other.flops and estimate(differences, templates).high < 0


def table(name: str, outcomes: Sequence[Mapping[str, Any]], missing: int) -> report.Table:
    if not outcomes:
        return report.Table(name, COLUMNS, [], missing)
    templates = [outcome["template"] for outcome in outcomes]
    placed = points(outcomes)
    lengths = [outcome["length"] for outcome in outcomes]
    note = f"{len(outcomes)} prompts of {min(lengths)} to {max(lengths)} tokens. {intervals_over([templates])}"
    return report.Table(name, COLUMNS, [*rows(outcomes, placed, templates)], missing, note)


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


def short(way: str) -> str:
    """``groups × probes``, where a way has these."""
    numbers = re.findall(r"(groups|probes)=(\d+)", way)
    grouped = bool(numbers) and numbers[0][0] == "groups"
    kind = "" if grouped else way.split(",")[0].split("=")[0].replace("each token alone", "alone")
    return " × ".join(filter(None, [kind, *(number for _, number in numbers)]))


def draw(placed: Mapping[str, Mapping[str, Point]], fronts: Mapping[str, Sequence[str]], path: Path) -> None:
    """Two kinds of error over FLOPs, on logarithmic scales; ways on the front are filled."""
    errors: dict[str, Callable[[Point], float]] = {
        "L1 to groups=None": lambda point: mean(point.l1),
        "1 - ρ": lambda point: 1 - mean(point.ranks),
    }
    with plt.rc_context({"svg.hashsalt": "heta_lens", "font.size": 8}):
        figure, rows = plt.subplots(2, len(placed), figsize=(5 * len(placed), 8), squeeze=False)
        for (what, error), axes in zip(errors.items(), rows, strict=True):
            for (name, ways), axis in zip(placed.items(), axes, strict=True):
                for way, point in ways.items():
                    colour, at = "C3" if way == DEFAULT else "C0", (point.flops, error(point))
                    axis.scatter(*at, facecolors=colour if way in fronts[name] else "none", edgecolors=colour)
                    axis.annotate(short(way), at, xytext=(4, -8 if way == DEFAULT else 4), textcoords="offset points")
                axis.margins(x=0.15)
                axis.set(title=name, xscale="log", yscale="log", xlabel="GFLOP of a score", ylabel=what)
                axis.yaxis.set_major_formatter("{x:g}")
                axis.yaxis.set_minor_formatter("{x:g}")
        figure.tight_layout()
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)


if __name__ == "__main__":
    app()
