"""Measure: a metric as a report reads it from ``run.json``: how its values are aggregated and compared."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import chain, islice
from math import inf, isinf, isnan
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np
import pandas as pd

from heta_lens._util.files import brief
from heta_lens.evaluation.external_scores import is_given
from heta_lens.evaluation.run_folder import RUN, Record, Shard, read_records, read_run, terms
from heta_lens.evaluation.statistics import (
    AGGREGATES,
    DRAWS,
    Aggregate,
    Bounds,
    Difference,
    Estimate,
    corrected,
    difference,
    estimate,
)

GOODNESS: Mapping[str, Callable[[float], float]] = {
    "more": lambda value: value,
    "less": lambda value: -value,
    "nearer 0": lambda value: -abs(value),
}


@dataclass(frozen=True)
class Measure:
    """A metric of ``run.json``, with how its values are aggregated and compared."""

    name: str
    title: str
    better: str = "more"
    low: float | None = None
    high: float | None = None
    cost: str = ""
    variant: str = ""
    source: str = ""
    aggregate: str = "mean"

    def __post_init__(self) -> None:
        for what, known in {"better": GOODNESS, "aggregate": AGGREGATES}.items():
            if getattr(self, what) not in known:
                raise ValueError(f"{self.name}: {what}={brief(getattr(self, what))} is not one of {', '.join(known)}")

    def goodness(self, value: float) -> float:
        return GOODNESS[self.better](value)

    def gains(self, difference: float) -> bool:
        """Whether a difference between methods is an improvement."""
        return difference > 0 if self.better == "more" else difference < 0

    @classmethod
    def read(cls, name: str, metric: Mapping[str, Any]) -> "Measure":
        known = {field.name for field in fields(cls)} - {"name", "title"}
        given = {what: metric[what] for what in metric if what in known and metric[what] is not None}
        ends = {end: float(given[end]) for end in ("low", "high") if end in given}
        return cls(name, metric.get("title") or name, **{**given, **ends})

    @property
    def aggregated_by(self) -> Aggregate:
        return AGGREGATES[self.aggregate].aggregate

    @property
    def bounds(self) -> Bounds | None:
        """The least and the greatest value of an instance, where one is known."""
        return None if self.low is None and self.high is None else (self.low, self.high)

    @property
    def compared_by(self) -> Aggregate:
        """What two methods are compared by: the distance from 0 where that is best."""
        aggregate = self.aggregated_by
        return (lambda means: np.abs(aggregate(means))) if self.better == "nearer 0" else aggregate


# ------------------------------------------------------------------------------------------------------ metric results
# The results of all methods by one metric: estimates, differences from the reference, and what is missing.


SIGNIFICANT = 0.05
MORE_DRAWS, SURE = (4 * DRAWS, 16 * DRAWS), 3.0  # where p is within so many of its standard errors of the threshold


@dataclass(frozen=True)
class Cell:
    """The result of one method by one metric.

    Every instance is in ``estimate``, skipped or failed with a reason, or pending; ``degenerate`` ones, whose scores
    tell no tokens apart, are in the estimate. ``difference`` is from the reference, on the instances where both have a
    value (None for the reference itself), and ``p`` is corrected for the number of methods.
    """

    estimate: Estimate
    difference: Difference | None = None
    p: float | None = None
    skipped: Mapping[str, int] = field(default_factory=dict)
    failed: Mapping[str, int] = field(default_factory=dict)
    pending: int = 0
    degenerate: int = 0

    @property
    def why(self) -> dict[str, int]:
        """Why instances have no value, the most frequent reason first."""
        failed = Counter({f"failed: {reason}": count for reason, count in self.failed.items()})
        reasons = Counter(self.skipped) + failed + Counter({"not run yet": self.pending})
        return dict(sorted(reasons.items(), key=lambda item: (-item[1], item[0])))

    @property
    def differs(self) -> bool:
        return self.p is not None and self.p < SIGNIFICANT


@dataclass(frozen=True)
class MetricResults:
    """The records of every method, and the terms of those that have a value of this metric: a row per instance."""

    metric: Measure
    total: int
    clusters: Mapping[str, tuple[str, str]]
    records: Mapping[str, Mapping[str, Record]]
    values: Mapping[str, pd.DataFrame]

    @classmethod
    def of(cls, metric: Measure, records: Mapping[str, Mapping[str, Record]], total: int) -> "MetricResults":
        values = {method: _values(metric, of_method) for method, of_method in records.items()}
        # An instance without a template is a cluster of its own.
        every = {name: record for of_method in records.values() for name, record in of_method.items()}
        clusters = {name: (record.template, "" if record.template else name) for name, record in every.items()}
        return cls(metric, total, clusters, records, values)

    @cached_property
    def estimates(self) -> dict[str, Estimate]:
        return {
            method: estimate(
                values.to_numpy(),
                self._clusters(values.index),
                self.metric.aggregated_by,
                bounds=self.metric.bounds,
            )
            for method, values in self.values.items()
        }

    def cells(self, reference: str) -> Iterator[tuple[tuple[str, str], Cell]]:
        others = self._differences(reference)
        p_values = dict(zip(others, corrected([other.p for other in others.values()]), strict=True))
        for method in self.records:
            cell = replace(self._alone(method), difference=others.get(method), p=p_values.get(method))
            yield (self.metric.name, method), cell

    def best(self) -> str:
        """The best method, if its difference to every other is significant.

        The same numbers select the method, so each p is multiplied by the number of others.
        """
        rated = {
            method: self.metric.goodness(estimate.value) for method, estimate in self.estimates.items() if estimate.n
        }
        rated = {method: value for method, value in rated.items() if not isnan(value)}
        if len(rated) < 2:
            return ""
        best = max(rated, key=lambda method: rated[method])
        others = [method for method in rated if method != best]
        leads = all(self._sure_difference(best, other, len(others)).p * len(others) < SIGNIFICANT for other in others)
        return best if leads else ""

    def _alone(self, method: str) -> Cell:
        """The cell without the comparison."""
        records, valued = self.records[method], self.values[method].index
        skipped, failed = Counter[str](), Counter[str]()
        for instance, record in records.items():
            if record.failed:
                failed[_line(record.failed)] += 1
            elif record.skipped:
                skipped[_line(record.skipped)] += 1
            elif instance not in valued:
                skipped[_line(record.reasons.get(self.metric.name, "no reason given"))] += 1
        return Cell(
            self.estimates[method],
            skipped=dict(skipped),
            failed=dict(failed),
            pending=self.total - len(records),
            degenerate=sum(self.metric.name in records[instance].degenerate for instance in valued),
        )

    def _differences(self, reference: str) -> dict[str, Difference]:
        """Of every other method from the reference; with more draws where another seed might change a decision."""
        others = {method: self.difference(method, reference) for method in self.records if method != reference}
        for draws in MORE_DRAWS:
            p_values = corrected([other.p for other in others.values()])
            for (method, other), p in zip(list(others.items()), p_values, strict=True):
                if _undecided(other, p / other.p if other.p else 1.0):
                    others[method] = self.difference(method, reference, draws)
        return others

    def _sure_difference(self, method: str, other: str, times: int) -> Difference:
        """Of two methods whose p is multiplied by ``times``; with more draws where a seed might decide."""
        result = self.difference(method, other)
        for draws in MORE_DRAWS:
            if _undecided(result, times):
                result = self.difference(method, other, draws)
        return result

    def difference(self, method: str, other: str, draws: int = DRAWS) -> Difference:
        """Of two methods, where both have values."""
        own, others = self.values[method].align(self.values[other], join="inner", axis="index")
        return difference(
            own.to_numpy(),
            others.to_numpy(),
            self._clusters(own.index),
            self.metric.compared_by,
            bounds=self.metric.bounds,
            draws=draws,
        )

    def _clusters(self, instances: Iterable[str]) -> list[tuple[str, str]]:
        return [self.clusters[instance] for instance in instances]


def _values(metric: Measure, records: Mapping[str, Record]) -> pd.DataFrame:
    """The terms of every record with a value."""
    having = {
        instance: terms(record.values[metric.name])
        for instance, record in records.items()
        if not record.failed and record.values.get(metric.name) is not None
    }
    columns = range(AGGREGATES[metric.aggregate].terms)
    return pd.DataFrame.from_dict(having, orient="index", columns=columns, dtype=float)


def _undecided(result: Difference, times: float | int) -> bool:
    """Whether ``times * p`` is so near the threshold that p's Monte Carlo error might decide."""
    return abs(result.p * times - SIGNIFICANT) < SURE * result.p_error * times


def _line(reason: str) -> str:
    return " ".join(reason.split()) or "no reason given"


# ------------------------------------------------------------------------------------------------------------- phrases
# The wording of a report: numbers, reasons and the meaning of a metric.


REASONS, LONG = 3, 100  # shown for a cell, and characters of a reason; missing.csv has all


def digits(value: int | float | None) -> str:
    """Six digits, which do not depend on the machine's rounding; nothing where there is no number."""
    return "" if value is None or isnan(value) else f"{value:.6g}"


def why(cell: Cell) -> str:
    """Why there is no value, in a line."""
    if not cell.why:
        return "0 in 0: neither it nor random scores change anything" if cell.estimate.n else "no instance yet"
    first = islice(cell.why.items(), REASONS)
    shown = [f"{shorten(reason, LONG, placeholder=' …')} ({count})" for reason, count in first]
    rest = len(cell.why) - len(shown)
    return "; ".join([*shown, *([f"and {counted(rest, 'other reason')}"] if rest else [])])


def with_interval(estimate: Estimate) -> str:
    ends = [estimate.low, estimate.high] if not isnan(estimate.low) else []
    value, *interval = _alike([estimate.value, *ends])
    return f"{value} [{', '.join(interval) or 'one instance'}]"


def _alike(values: Sequence[float]) -> list[str]:
    """With as many digits each, so that they can be compared at a glance."""
    largest = max((abs(value) for value in values if not isinf(value)), default=0.0)
    form = ".3f" if largest == 0 or 0.01 <= largest < 1000 else ".2e"
    return [("∞" if value == inf else "-∞") if isinf(value) else f"{value:{form}}" for value in values]


def p_value(value: float | None) -> str:
    if value is None or isnan(value):
        return "none"
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def meaning(metric: Measure) -> str:
    ends = {"at least": metric.low, "at most": metric.high}
    bounds = " and ".join(f"{word} {end:g}" for word, end in ends.items() if end is not None)
    made = {
        "mean": "a mean over instances",
        "log_ratio": "ln of the sum over instances, divided by that of random scores",
    }[metric.aggregate]
    near = " The difference is that of the distances from 0." if metric.better == "nearer 0" else ""
    details: Mapping[str, str] = {"variant": metric.variant, "source": metric.source, "cost": metric.cost}
    more = "".join(f" {what.capitalize()}: {text.rstrip('.')}." for what, text in details.items() if text)
    return f"{metric.name}: {metric.better} is better; {made}{f', {bounds}' if bounds else ''}.{near}{more}"


def counted(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"


def options(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in options.items()) or "none"


# ------------------------------------------------------------------------------------------------------ summary tables
# The summary of a folder of records: for every metric and method an estimate, how it differs from the reference, and
# what is missing; and what each method cost.


@dataclass(frozen=True)
class Summary:
    """The content of a report.

    ``cells`` are by the names of a metric and of a method; ``best``, by that of a metric, is the method that is
    significantly better than every other.
    """

    run: Mapping[str, Any]
    requested: int
    """How many instances there should be."""
    metrics: Mapping[str, Measure]
    methods: tuple[str, ...]
    reference: str
    cells: Mapping[tuple[str, str], Cell]
    best: Mapping[str, str]
    costs: pd.DataFrame
    """By the name of a method: medians per prompt, and of seconds also the 10th and 90th percentile."""
    templates: Mapping[str, str]
    """By the id of an instance."""
    correct: Mapping[str, bool]
    """By the id of an instance, where it is known."""
    log_probs: Mapping[str, float]
    """Of the explained tokens, by the id of an instance, where it is known."""
    strangers: tuple[str, ...]
    """Methods of records that the evaluation does not list."""
    by_metric: Mapping[str, MetricResults] = field(repr=False)

    @cached_property
    def sizes(self) -> list[int]:
        """How many instances the templates have, the smallest first."""
        return sorted(Counter(template for template in self.templates.values() if template).values())

    def verdict(self, metric: Measure, method: str) -> int:
        """1 if a method is better than the reference, -1 if it is worse, 0 if that may be chance."""
        cell = self.cells[metric.name, method]
        if cell.difference is None or not cell.differs:
            return 0
        return 1 if metric.gains(cell.difference.value) else -1

    def most(self, metric: Measure) -> int:
        """How many instances a method has a value of, where it has the most."""
        return max(self.cells[metric.name, method].estimate.n for method in self.methods)

    def uninformative(self, metric: Measure) -> bool:
        """Whether the interval of every method is infinite in both directions."""
        estimates = [self.cells[metric.name, method].estimate for method in self.methods]
        ends = [(estimate.low, estimate.high) for estimate in estimates if estimate.n > 1]
        return bool(ends) and all(end == (-inf, inf) for end in ends)

    def ranked(self, metric: Measure) -> list[str]:
        """The methods, best first; those without a value last."""

        def order(method: str) -> tuple[bool, float]:
            value = self.cells[metric.name, method].estimate.value
            return (True, 0.0) if isnan(value) else (False, -metric.goodness(value))

        return sorted(self.methods, key=order)


def summary(folder: Path) -> Summary:
    """The summary of a folder, whether or not its evaluation is finished."""
    run, records = read_run(folder), read_records(folder)
    if not run.get("methods"):
        raise ValueError(f"{folder / RUN} names no methods: begin again in another folder")
    if not run.get("metrics"):
        way = f"heta-lens evaluate … --scores {folder} --out … evaluates them"
        raise ValueError(f"{folder} holds scores and no metrics: {way}")
    methods, metrics = tuple(run["methods"]), metrics_of(folder, run)
    listed = [record for record in records if record.method in run["methods"]]
    of_heta = [label for label, recipe in run["methods"].items() if recipe["method"] == "heta"]
    literal_first = sorted(of_heta, key=lambda label: len(run["methods"][label].get("options") or ()))
    reference = [*literal_first, *methods][0]
    requested = int(run.get("instances", 0))
    requested = Shard.read(run["shard"]).size(requested) if run.get("shard") else requested
    total = max(requested, len({record.instance for record in listed}))
    by_method = {method: {each.instance: each for each in listed if each.method == method} for method in methods}
    results = {name: MetricResults.of(metric, by_method, total) for name, metric in metrics.items()}
    return Summary(
        run=run,
        requested=total,
        metrics=metrics,
        methods=methods,
        reference=reference,
        cells=dict(chain.from_iterable(result.cells(reference) for result in results.values())),
        best={name: best for name, result in results.items() if (best := result.best())},
        costs=_costs([record for record in listed if _ran(record) and not is_given(run["methods"][record.method])]),
        templates={record.instance: record.template for record in listed},
        correct={record.instance: record.correct for record in listed if record.correct is not None},
        log_probs={record.instance: record.log_prob for record in listed if record.log_prob is not None},
        by_metric=results,
        strangers=tuple(sorted({record.method for record in records} - set(methods))),
    )


def metrics_of(folder: Path, run: Mapping[str, Any]) -> dict[str, Measure]:
    """What an evaluation measured, as its ``run.json`` describes it."""
    try:
        return {name: Measure.read(name, metric) for name, metric in run["metrics"].items()}
    except (TypeError, ValueError) as error:
        raise ValueError(f"{folder / RUN}: {error}") from None


def _ran(record: Record) -> bool:
    return not (record.failed or record.skipped)


def _costs(records: Sequence[Record]) -> pd.DataFrame:
    costs = ["seconds", "forwards", "gradients", "hvps", "worth", "tokens"]
    rows = [{"method": record.method, **{name: getattr(record, name) for name in costs}} for record in records]
    frame = pd.DataFrame(rows, columns=["method", *costs]).astype(dict.fromkeys(costs, float))
    by_method = frame.groupby("method")
    return pd.DataFrame(
        {
            "n": by_method.size(),
            "seconds": by_method["seconds"].median(),
            "seconds_p10": by_method["seconds"].quantile(0.1),
            "seconds_p90": by_method["seconds"].quantile(0.9),
            "forwards": by_method["forwards"].median(),
            "backwards": by_method["gradients"].median(),
            "hvps": by_method["hvps"].median(),
            "worth": by_method["worth"].median(),
            "tokens": by_method["tokens"].median(),
        }
    )
