"""The worth of each metric, from the values behind docs/results.md, and with other seeds.

A metric is sound if it agrees with interventions, repeats itself on other templates, and is deceived neither by chance
nor by position.
"""

import random
import warnings
from collections.abc import Mapping, Sequence
from statistics import mean
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from scipy.stats import rankdata

import heta_lens
from benchmarks import pages
from benchmarks.outcomes import Outcomes
from benchmarks.pages import Table
from benchmarks.prompts import Case, measure_family
from benchmarks.results import FOLDER, PARTS, REFERENCES
from heta_lens.diagnostics import rank_correlation
from heta_lens.evaluation.report.results import Measure, MetricResults, metrics_of
from heta_lens.evaluation.run_database import reading
from heta_lens.metrics import Drops, faithfulness_error, soft, soft_area
from heta_lens.metrics.interventions import additivity_gap
from heta_lens.metrics.scores import ordinary

MADE_OF = {"morf": "abpc", "lerf": "abpc", "aopc_del": "abpc"}  # an area that these are a part of
EVIDENCE, INTERVENTIONS = "evidence_mass", ("mean_effect_5", "abpc")
SPLITS = 50
AGREES, LATE, STABLE, OFTEN = 0.5, 0.75, 0.8, 0.5
SEEDS, PROMPTS, METHODS = 5, 30, ("heta", "attn_lrp", "leave_one_out", "attention_rollout", "gradient_norm", "random")
OUTCOMES = Outcomes("metric_seeds")


class Worth(NamedTuple):
    """Spearman's correlations of a metric's means over methods, on the prompts of a part."""

    metric: Measure
    methods: int
    evidence: float
    interventions: float
    random_place: int  # the rank among the methods, 1 for the best
    recency_place: int
    halves: float  # between two halves of the templates
    ties: float  # the share of prompts on which two methods have the same value

    @property
    def sound(self) -> bool:
        positional = self.recency_place <= (1 - LATE) * self.methods
        deceived = self.random_place <= LATE * self.methods or positional or self.ties > OFTEN
        return self.interventions > AGREES and self.halves > STABLE and not deceived


class Values(NamedTuple):
    """The terms of a metric, NaN for a method without a value of a prompt."""

    metric: Measure
    rows: Float[np.ndarray, "method prompt term"]
    clusters: list[tuple[str, str]]

    @classmethod
    def of(cls, result: MetricResults) -> "Values":
        ids = list(result.clusters)
        frames = [frame.reindex(ids) for frame in result.values.values()]
        terms = max(frame.shape[1] for frame in frames)
        rows = [frame.to_numpy(float) if frame.shape[1] else np.full((len(ids), terms), np.nan) for frame in frames]
        return cls(result.metric, np.stack(rows), [result.clusters[id] for id in ids])


# ------------------------------------------------------------------------------------------------ from kept values
def worths(part: str) -> list[Worth]:
    """Return the worth of all metrics of a part of docs/results.md."""
    with reading(FOLDER / part) as database:
        run, records = database.run, database.records()
    methods = [name for name in run["methods"] if not name.startswith("heta ")]
    by_method = {name: {one.instance: one for one in records if one.method == name} for name in methods}
    results = {
        name: Values.of(MetricResults(metric, by_method, len(by_method[methods[0]])))
        for name, metric in metrics_of(run).items()
        if name not in REFERENCES
    }
    means = {name: goodness(values) for name, values in results.items()}
    means = {name: own for name, own in means.items() if np.isfinite(own).sum() > len(methods) / 2}
    return [worth(results[name], means, methods) for name in means]


def worth(values: Values, means: Mapping[str, Float[np.ndarray, "method"]], methods: Sequence[str]) -> Worth:
    name, own = values.metric.name, means[values.metric.name]
    there = np.isfinite(own)
    places = rankdata(np.where(there, -own, np.inf), method="average")
    return Worth(
        metric=values.metric,
        methods=int(there.sum()),
        evidence=np.nan if name == EVIDENCE else agreed(own, means[EVIDENCE]),
        interventions=mean(
            agreed(own, means[other]) for other in INTERVENTIONS if other not in (name, MADE_OF.get(name))
        ),
        random_place=int(places[methods.index("random")]),
        recency_place=int(places[methods.index("recency")]),
        halves=mean(halves(values, random.Random(seed)) for seed in range(SPLITS)),
        ties=tied(values),
    )


def goodness(values: Values, kept: Bool[np.ndarray, "prompt"] | None = None) -> Float[np.ndarray, "method"]:
    """Return the goodness of each method on the kept prompts, NaN without a value."""
    found, metric = [], values.metric
    for rows in values.rows if kept is None else values.rows[:, kept]:
        some = rows[np.isfinite(rows).all(1)]
        found.append(metric.goodness(float(metric.aggregated_by(some.mean(0)[None])[0])) if len(some) else np.nan)
    return np.array(found)


def halves(values: Values, draw: random.Random) -> float:
    """Return the correlation of the order of methods between two halves of the templates."""
    clusters = sorted(set(values.clusters))
    some = {*draw.sample(clusters, len(clusters) // 2)}
    kept = np.array([one in some for one in values.clusters])
    return agreed(goodness(values, kept), goodness(values, ~kept))


def tied(values: Values) -> float:
    """Return the share of pairs of methods with the same value of a prompt."""
    every = values.rows[..., 0]
    there, same = 0, 0
    for number, one in enumerate(every):
        both = np.isfinite(one) & np.isfinite(every[:number])
        there, same = there + int(both.sum()), same + int((both & (one == every[:number])).sum())
    return same / max(1, there)


def agreed(one: Float[np.ndarray, "method"], other: Float[np.ndarray, "method"]) -> float:
    there = np.isfinite(one) & np.isfinite(other)
    return rank_correlation(torch.from_numpy(one[there]), torch.from_numpy(other[there]))


# ------------------------------------------------------------------------------------------------- with other seeds
def run() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", UserWarning)
    measure_family(OUTCOMES, "recall", PROMPTS, repeated)


def repeated(case: Case) -> dict[str, dict[str, list[float]]]:
    """Return the value with every seed, by metric and method."""
    found: dict[str, dict[str, list[float]]] = {}
    places = ordinary(case.prediction)
    drops = [Drops.of(case.prediction, seed=seed) for seed in range(SEEDS)]
    for method in METHODS:
        scores = heta_lens.METHODS[method](progress=False)(case.prediction).scores.cpu()
        for seed in range(SEEDS):
            for name, value in drawn(case, scores, places, drops[seed], seed).items():
                found.setdefault(name, {}).setdefault(method, []).append(value)
    return found


def drawn(case: Case, scores: torch.Tensor, places: Sequence[int], drops: Drops, seed: int) -> dict[str, float]:
    one = soft(case.prediction, scores, candidates=places, paired=True, seed=seed)
    area = soft_area(case.prediction, scores, candidates=places, seed=seed)
    errors = faithfulness_error(drops, scores)
    return {
        "Soft-NC, raw": one.nc,
        "Soft-NS, raw": one.ns,
        "Soft-NC, equal retention": area["nc"],
        "Soft-NS, equal retention": area["ns"],
        "Faithfulness error": errors["raw"],
        "Faithfulness error, calibrated": errors["calibrated"],
        "Additivity gap": additivity_gap(drops, scores),
    }


def noise(prompts: Sequence[Mapping[str, Mapping[str, Sequence[float]]]], name: str) -> tuple[float, float]:
    """Return the spread of a method's mean over seeds, relative to the spread of methods; also of one prompt."""
    values = np.array([[prompt[name][method] for method in METHODS] for prompt in prompts])  # prompt method seed
    between = values.mean((0, 2)).std(ddof=1)
    return float(values.mean(0).std(1, ddof=1).mean() / between), float(values.std(2, ddof=1).mean() / between)


# ------------------------------------------------------------------------------------------------------------ the page
COLUMNS = ["metric", "evidence", "interventions", "random", "recency", "halves", "ties", "sound"]
NOISE = """Metrics that draw random numbers, on {} recall stories, repeated with five seeds. *of means*: how much a
method's mean over these prompts moves with the seed, as a share of how much the means of six methods differ; *of one
prompt*: the same for a single value."""


def write() -> None:
    repeats = [*OUTCOMES.read().values()]
    rows = [[name, *(f"{share:.2f}" for share in noise(repeats, name))] for name in (repeats or [{}])[0]]
    note, missing = NOISE.format(len(repeats)), PROMPTS - len(repeats)
    noises = Table("The metrics' own noise", ["metric", "of means", "of one prompt"], rows, missing, note)
    pages.write("metrics_worth", [*map(part_table, ("recall", "copied")), noises])


def part_table(part: str) -> Table:
    found = sorted(worths(part), key=lambda one: -np.nanmin([one.evidence, one.interventions]))
    return Table(PARTS[part].title.capitalize(), COLUMNS, [*map(row, found)], note=f"{found[0].methods} methods.")


def row(one: Worth) -> list[str]:
    numbers = ("–" if np.isnan(value) else f"{value:.2f}" for value in (one.evidence, one.interventions))
    places = (f"{place} of {one.methods}" for place in (one.random_place, one.recency_place))
    sound = "yes" if one.sound else ""
    return [one.metric.title, *numbers, *places, f"{one.halves:.2f}", f"{one.ties:.0%}", sound]
