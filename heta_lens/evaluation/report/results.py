"""The content of a report: estimates by metric and method, differences from a reference, missing values, costs."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import islice
from math import inf, isinf, isnan
from pathlib import Path
from typing import Any

import pandas as pd

from heta_lens._util.text import counted
from heta_lens.evaluation.records import Record, terms
from heta_lens.evaluation.run_database import reading
from heta_lens.evaluation.statistics import (
    AGGREGATES,
    Aggregate,
    Bounds,
    Difference,
    Estimate,
    corrected,
    difference,
    estimate,
)

SIGNIFICANT = 0.05
REASONS = 3  # shown for a cell; missing.csv has all


@dataclass(frozen=True)
class Measure:
    """A metric of a request: how values are aggregated and compared."""

    name: str
    title: str
    better: str = "more"
    low: float | None = None
    high: float | None = None
    cost: str = ""
    variant: str = ""
    source: str = ""
    aggregate: str = "mean"

    @classmethod
    def read(cls, name: str, metric: Mapping[str, Any]) -> "Measure":
        known = {entry.name for entry in fields(cls)} - {"name", "title"}
        values = {key: value for key, value in metric.items() if key in known}
        return cls(name, metric.get("title") or name, **values)

    def goodness(self, value: float) -> float:
        return value if self.better == "more" else -value

    @property
    def aggregated_by(self) -> Aggregate:
        return AGGREGATES[self.aggregate].aggregate

    @property
    def bounds(self) -> Bounds | None:
        """The least and the greatest value of an instance, if a bound is known."""
        return None if self.low is None and self.high is None else (self.low, self.high)


@dataclass(frozen=True)
class Cell:
    """The result of a method by a metric.

    Every instance is in ``estimate``, skipped or failed for a reason, or pending. ``degenerate`` instances, with scores
    that do not distinguish tokens, are in the estimate. ``difference`` is the difference from the reference on the
    instances with values of both methods, None for the reference; ``p`` is corrected for the number of methods.
    """

    estimate: Estimate
    difference: Difference | None
    p: float | None
    skipped: Counter[str]
    failed: Counter[str]
    pending: int
    degenerate: int

    @property
    def why(self) -> dict[str, int]:
        """The reasons of missing values with the numbers of instances, the most frequent reason first."""
        failed = Counter({f"failed: {reason}": count for reason, count in self.failed.items()})
        reasons = self.skipped + failed + Counter({"not run yet": self.pending})
        return dict(sorted(reasons.items(), key=lambda item: (-item[1], item[0])))


@dataclass(frozen=True)
class MetricResults:
    """The results of all methods by a metric; ``records`` are by method and instance."""

    metric: Measure
    records: Mapping[str, Mapping[str, Record]]
    total: int

    @cached_property
    def clusters(self) -> dict[str, tuple[str, str]]:
        return {name: record.cluster for of_method in self.records.values() for name, record in of_method.items()}

    @cached_property
    def values(self) -> dict[str, pd.DataFrame]:
        """Tables by method, with the terms of an instance in a row."""
        values, columns = {}, range(AGGREGATES[self.metric.aggregate].terms)
        for method, records in self.records.items():
            found = {
                instance: terms(record.values[self.metric.name])
                for instance, record in records.items()
                if not record.failed and record.values.get(self.metric.name) is not None
            }
            values[method] = pd.DataFrame.from_dict(found, orient="index", columns=columns, dtype=float)
        return values

    @cached_property
    def estimates(self) -> dict[str, Estimate]:
        aggregate, bounds = self.metric.aggregated_by, self.metric.bounds
        return {
            method: estimate(values.to_numpy(), [self.clusters[each] for each in values.index], aggregate, bounds)
            for method, values in self.values.items()
        }

    def cells(self, reference: str) -> dict[str, Cell]:
        """Return the cells of all methods, with differences from the reference."""
        differences = {method: self.difference(method, reference) for method in self.records if method != reference}
        p_values = dict(zip(differences, corrected([other.p for other in differences.values()]), strict=True))
        cells, name = {}, self.metric.name
        for method, records in self.records.items():
            valued = self.values[method].index
            lacking = [record for instance, record in records.items() if instance not in valued]
            failed, skipped = list[Record](), list[Record]()
            for record in lacking:
                (failed if record.failed or name in record.errors else skipped).append(record)
            cells[method] = Cell(
                self.estimates[method],
                differences.get(method),
                p_values.get(method),
                skipped=Counter(_line(each.skipped or each.reasons.get(name, "")) for each in skipped),
                failed=Counter(_line(each.failed or each.reasons.get(name, "")) for each in failed),
                pending=self.total - len(records),
                degenerate=sum(name in records[instance].degenerate for instance in valued),
            )
        return cells

    def best(self) -> str:
        """Return the best method if its differences from all other methods are significant, else an empty name.

        The values that select the method also test it, so every p is multiplied by the number of other methods.
        """
        values = {method: estimate.value for method, estimate in self.estimates.items()}
        rated = {method: self.metric.goodness(value) for method, value in values.items() if not isnan(value)}
        if len(rated) < 2:
            return ""
        best = max(rated, key=lambda method: rated[method])
        apart = [self.difference(best, other) for other in rated if other != best]
        leads = all(one.p * len(apart) < SIGNIFICANT and self.metric.goodness(one.value) > 0 for one in apart)
        return best if leads else ""

    def difference(self, method: str, other: str) -> Difference:
        """Compare two methods on the instances with values of both methods."""
        first, second = self.values[method].align(self.values[other], join="inner", axis="index")
        clusters = [self.clusters[instance] for instance in first.index]
        aggregate, bounds = self.metric.aggregated_by, self.metric.bounds
        return difference(first.to_numpy(), second.to_numpy(), clusters, aggregate, bounds)


def _line(reason: str) -> str:
    return " ".join(reason.split()) or "no reason given"


@dataclass(frozen=True)
class Summary:
    """The content of a report."""

    run: Mapping[str, Any]  # the request of the evaluation
    requested: int  # how many instances the evaluation has
    metrics: Mapping[str, Measure]
    methods: tuple[str, ...]
    reference: str  # the method that all other methods are compared with
    cells: Mapping[tuple[str, str], Cell]  # by metric and method
    best: Mapping[str, str]  # by metric, the method that is significantly better than every other method
    costs: pd.DataFrame  # medians per prompt by method; of seconds also the 10th and 90th percentile
    records: Sequence[Record] = field(repr=False)  # of the methods that the request lists

    def verdict(self, metric: Measure, method: str) -> int:
        """Compare a method with the reference: 1 for better, -1 for worse, 0 if chance may explain the difference."""
        cell = self.cells[metric.name, method]
        if cell.difference is None or cell.p is None or not cell.p < SIGNIFICANT:
            return 0
        return 1 if metric.goodness(cell.difference.value) > 0 else -1

    def most(self, metric: Measure) -> int:
        """Return the largest number of instances with a value of a method."""
        return max(self.cells[metric.name, method].estimate.n for method in self.methods)

    def uninformative(self, metric: Measure) -> bool:
        """Check that the interval of every method is infinite in both directions."""
        estimates = [self.cells[metric.name, method].estimate for method in self.methods]
        ends = [(estimate.low, estimate.high) for estimate in estimates if estimate.n > 1]
        return bool(ends) and all(end == (-inf, inf) for end in ends)

    def ranked(self, metric: Measure) -> list[str]:
        """Return the methods, the best first, and methods without a value last."""
        goodness = {method: metric.goodness(self.cells[metric.name, method].estimate.value) for method in self.methods}
        return sorted(self.methods, key=lambda method: inf if isnan(goodness[method]) else -goodness[method])


def summary(folder: Path) -> Summary:
    """Summarise the records of a folder, also before the evaluation is finished."""
    with reading(folder) as database:
        run, records = database.run, database.records()
        ((prompts,),) = database.rows("SELECT count(*) FROM prompts")
    if not run.get("metrics"):
        way = f"heta-lens evaluate … --scores {folder} --out … evaluates the scores"
        raise ValueError(f"{folder} holds scores and no metrics: {way}")
    methods = tuple(run["methods"])
    metrics = {name: Measure.read(name, metric) for name, metric in run["metrics"].items()}
    listed = [record for record in records if record.method in run["methods"]]
    total = prompts if "shard" in run else run.get("instances", prompts)  # of the whole evaluation if merged partly
    by_method = {method: {each.instance: each for each in listed if each.method == method} for method in methods}
    results = {name: MetricResults(metric, by_method, total) for name, metric in metrics.items()}
    # The HETA method with the fewest options, or else the first method.
    of_heta = [method for method in methods if run["methods"][method]["method"] == "heta"]
    reference = min(of_heta, key=lambda method: len(run["methods"][method].get("options") or ()), default=methods[0])
    cells = {
        (name, method): cell for name, result in results.items() for method, cell in result.cells(reference).items()
    }
    own = {name: recipe.get("options") or {} for name, recipe in run["methods"].items()}
    external = {name for name, options in own.items() if {"scores", "digest"} <= options.keys()}
    return Summary(
        run=run,
        requested=total,
        metrics=metrics,
        methods=methods,
        reference=reference,
        cells=cells,
        best={name: best for name, result in results.items() if (best := result.best())},
        costs=_costs([record for record in listed if record.method not in external]),
        records=listed,
    )


def _costs(records: Sequence[Record]) -> pd.DataFrame:
    names = ["seconds", "forwards", "gradients", "hvps", "worth", "tokens"]
    rows = [
        {"method": record.method, **{name: getattr(record, name) for name in names}}
        for record in records
        if not (record.failed or record.skipped)
    ]
    frame = pd.DataFrame(rows, columns=["method", *names]).astype(dict.fromkeys(names, float))
    by_method = frame.groupby("method")
    costs = by_method[names].median().rename(columns={"gradients": "backwards"})
    costs.insert(0, "n", by_method.size())
    for place, percent in ((2, 10), (3, 90)):
        costs.insert(place, f"seconds_p{percent}", by_method["seconds"].quantile(percent / 100))
    return costs


def why(cell: Cell) -> str:
    """Write the reasons of a missing value in a line."""
    if not cell.why:
        return "0 in 0: neither it nor random scores change anything" if cell.estimate.n else "no instance yet"
    shown = [f"{reason} ({count})" for reason, count in islice(cell.why.items(), REASONS)]
    if rest := len(cell.why) - len(shown):
        shown.append(f"and {counted(rest, 'other reason')}")
    return "; ".join(shown)


def with_interval(estimate: Estimate) -> str:
    """Write a value and the ends of the interval with equally many digits."""
    known = not isnan(estimate.low)
    numbers = [estimate.value, *([estimate.low, estimate.high] if known else [])]
    largest = max((abs(number) for number in numbers if not isinf(number)), default=0.0)
    form = ".3f" if largest == 0 or 0.01 <= largest < 1000 else ".2e"
    value, *ends = (f"{number:{form}}".replace("inf", "∞") for number in numbers)
    return f"{value} [{', '.join(ends) or 'one instance'}]"


def p_value(value: float | None) -> str:
    if value is None or isnan(value):
        return "none"
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def meaning(metric: Measure) -> str:
    """Write how a metric is aggregated and compared."""
    ends = {"at least": metric.low, "at most": metric.high}
    bounds = " and ".join(f"{word} {end:g}" for word, end in ends.items() if end is not None)
    aggregate = {
        "mean": "a mean over instances",
        "log_ratio": "ln of the sum over instances, divided by that of random scores",
    }[metric.aggregate]
    details: Mapping[str, str] = {"Variant": metric.variant, "Source": metric.source, "Cost": metric.cost}
    more = "".join(f" {name}: {text.rstrip('.')}." for name, text in details.items() if text)
    direction = f"{metric.name}: {metric.better} is better; {aggregate}"
    return f"{direction}{f', {bounds}' if bounds else ''}.{more}"


def options(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in options.items()) or "none"
