"""What a folder of records says: for every metric and method an estimate, how it differs from the reference, and what
is missing."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import chain
from math import isnan
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Float

from heta_lens.evaluation.records import RUN, Record, read_records, read_run, terms
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
from heta_lens.reading import brief

Rows: TypeAlias = Float[np.ndarray, "n k"]

SIGNIFICANT = 0.05
MORE_DRAWS, SURE = (4 * DRAWS, 16 * DRAWS), 3.0  # where p is within so many of its standard errors of the threshold
GOODNESS: Mapping[str, Callable[[float], float]] = {
    "more": lambda value: value,
    "less": lambda value: -value,
    "nearer 0": lambda value: -abs(value),
}


@dataclass(frozen=True)
class Measure:
    """What ``run.json`` says of a metric, and how its values are put together and compared."""

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
        """Whether a difference, as methods are compared, is for the better."""
        return difference > 0 if self.better == "more" else difference < 0

    @classmethod
    def read(cls, name: str, told: Mapping[str, Any]) -> "Measure":
        known = {one.name for one in fields(cls)} - {"name", "title"}
        given = {what: told[what] for what in told if what in known and told[what] is not None}
        ends = {end: float(given[end]) for end in ("low", "high") if end in given}
        return cls(name, told.get("title") or name, **{**given, **ends})

    @property
    def made_by(self) -> Aggregate:
        return AGGREGATES[self.aggregate][1]

    @property
    def bounds(self) -> Bounds | None:
        """The least and the greatest value of an instance, where one is known."""
        return None if self.low is None and self.high is None else (self.low, self.high)

    @property
    def compared_by(self) -> Aggregate:
        """What two methods are compared by: what is best near 0, by how far it is from there."""
        made_by = self.made_by
        return (lambda means: np.abs(made_by(means))) if self.better == "nearer 0" else made_by


@dataclass(frozen=True)
class Cell:
    """How one method did by one metric.

    Every instance is in ``estimate``, left out or failed with a reason, or not run; ``doubtful`` ones are in the
    estimate. ``difference`` is to the reference, on the instances where both have a value (None for the reference
    itself), and ``p`` is corrected for the number of methods.
    """

    estimate: Estimate
    difference: Difference | None = None
    p: float | None = None
    left_out: Mapping[str, int] = field(default_factory=dict)
    failed: Mapping[str, int] = field(default_factory=dict)
    not_run: int = 0
    doubtful: int = 0

    @property
    def why(self) -> dict[str, int]:
        """Why instances have no value, the most frequent reason first."""
        failed = Counter({f"failed: {reason}": count for reason, count in self.failed.items()})
        reasons = Counter(self.left_out) + failed + Counter({"not run yet": self.not_run})
        return dict(sorted(reasons.items(), key=lambda item: (-item[1], item[0])))

    @property
    def differs(self) -> bool:
        return self.p is not None and self.p < SIGNIFICANT


@dataclass(frozen=True)
class Spent:
    """What a method cost on a prompt: medians, and of seconds also the 10th and 90th percentile."""

    n: int
    tokens: float
    forwards: float
    backwards: float
    seconds: float
    fast: float
    slow: float


@dataclass(frozen=True)
class Summary:
    """All that a report says. ``cells`` are by the names of a metric and of a method, ``best`` by that of a metric:
    the method that is better than every other, and by more than chance."""

    run: Mapping[str, Any]
    asked: int
    """How many instances there should be."""
    metrics: Mapping[str, Measure]
    methods: tuple[str, ...]
    reference: str
    cells: Mapping[tuple[str, str], Cell]
    best: Mapping[str, str]
    spent: Mapping[str, Spent]
    templates: Mapping[str, str]
    """By the id of an instance."""
    correct: Mapping[str, bool]
    """By the id of an instance, where it is known."""
    strangers: tuple[str, ...]
    """Methods of records that were not asked for."""

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

    def ranked(self, metric: Measure) -> list[str]:
        """The methods, best first; those without a value last."""

        def order(method: str) -> tuple[bool, float]:
            value = self.cells[metric.name, method].estimate.value
            return (True, 0.0) if isnan(value) else (False, -metric.goodness(value))

        return sorted(self.methods, key=order)


def summary(folder: Path) -> Summary:
    """What is in a folder, whether or not everything in it has been finished."""
    run, records = read_run(folder), read_records(folder)
    for part in ("methods", "metrics"):
        if not run.get(part):
            raise ValueError(f"{folder / RUN} names no {part}: begin again in another folder")
    methods, metrics = tuple(run["methods"]), _metrics(folder, run)
    asked = [record for record in records if record.method in run["methods"]]
    reference = next((label for label, told in run["methods"].items() if told["method"] == "heta"), methods[0])
    total = max(int(run.get("instances", 0)), len({record.instance for record in asked}))
    by_method = {method: {one.instance: one for one in asked if one.method == method} for method in methods}
    measured = {name: _Measured.of(metric, by_method, total) for name, metric in metrics.items()}
    return Summary(
        run=run,
        asked=total,
        metrics=metrics,
        methods=methods,
        reference=reference,
        cells=dict(chain.from_iterable(one.cells(reference) for one in measured.values())),
        best={name: best for name, one in measured.items() if (best := one.best())},
        spent={method: spent for method, of_it in by_method.items() if (spent := _spent([*of_it.values()]))},
        templates={record.instance: record.template for record in asked},
        correct={record.instance: record.correct for record in asked if record.correct is not None},
        strangers=tuple(sorted({record.method for record in records} - set(methods))),
    )


@dataclass(frozen=True)
class _Measured:
    """A metric: the records of every method, and the vectors of those that have one, by instance."""

    metric: Measure
    total: int
    clusters: Mapping[str, tuple[str, str]]
    records: Mapping[str, Mapping[str, Record]]
    vectors: Mapping[str, Mapping[str, tuple[float, ...]]]

    @classmethod
    def of(cls, metric: Measure, records: Mapping[str, Mapping[str, Record]], total: int) -> "_Measured":
        vectors = {
            method: {
                instance: tuple(map(float, terms(record.values[metric.name])))
                for instance, record in of_method.items()
                if not record.failed and record.values.get(metric.name) is not None
            }
            for method, of_method in records.items()
        }
        # An instance without a template is like no other.
        every = {name: record for of_method in records.values() for name, record in of_method.items()}
        clusters = {name: (one.template, "" if one.template else name) for name, one in every.items()}
        return cls(metric, total, clusters, records, vectors)

    @cached_property
    def estimates(self) -> dict[str, Estimate]:
        return {
            method: estimate(
                self._rows(method, [*of_it]), self._clusters(of_it), self.metric.made_by, bounds=self.metric.bounds
            )
            for method, of_it in self.vectors.items()
        }

    def cells(self, reference: str) -> Iterator[tuple[tuple[str, str], Cell]]:
        others = self._differences(reference)
        p_values = dict(zip(others, corrected([one.p for one in others.values()]), strict=True))
        for method in self.records:
            told, p = others.get(method), p_values.get(method)
            yield (self.metric.name, method), replace(self._alone(method), difference=told, p=p)

    def best(self) -> str:
        """The best method, if its difference to every other is significant.

        Which method is best is seen in the same numbers, so each p counts as many times as there are others.
        """
        rated = {method: self.metric.goodness(one.value) for method, one in self.estimates.items() if one.n}
        rated = {method: value for method, value in rated.items() if not isnan(value)}
        if len(rated) < 2:
            return ""
        best = max(rated, key=lambda method: rated[method])
        others = [method for method in rated if method != best]
        leads = all(self._sure_difference(best, other, len(others)).p * len(others) < SIGNIFICANT for other in others)
        return best if leads else ""

    def _alone(self, method: str) -> Cell:
        left_out, failed = Counter[str](), Counter[str]()
        for instance, record in self.records[method].items():
            if record.failed:
                failed[_line(record.failed)] += 1
            elif instance not in self.vectors[method]:
                left_out[_line(record.reasons.get(self.metric.name, "no reason given"))] += 1
        return Cell(
            self.estimates[method],
            left_out=dict(left_out),
            failed=dict(failed),
            not_run=self.total - len(self.records[method]),
            doubtful=sum(self.metric.name in self.records[method][one].doubts for one in self.vectors[method]),
        )

    def _differences(self, reference: str) -> dict[str, Difference]:
        """Of every other method to the reference; with more draws where another seed might change a decision."""
        others = {method: self._difference(method, reference) for method in self.records if method != reference}
        for draws in MORE_DRAWS:
            p_values = corrected([one.p for one in others.values()])
            for (method, one), p in zip(list(others.items()), p_values, strict=True):
                if _undecided(one, p / one.p if one.p else 1.0):
                    others[method] = self._difference(method, reference, draws)
        return others

    def _sure_difference(self, method: str, other: str, times: int) -> Difference:
        """Of two methods whose p counts so many times; with more draws where another seed might change the decision."""
        found = self._difference(method, other)
        for draws in MORE_DRAWS:
            if _undecided(found, times):
                found = self._difference(method, other, draws)
        return found

    def _difference(self, method: str, other: str, draws: int = DRAWS) -> Difference:
        """Of two methods, where both have values."""
        shared = [instance for instance in self.vectors[method] if instance in self.vectors[other]]
        own, others, metric = self._rows(method, shared), self._rows(other, shared), self.metric
        return difference(own, others, self._clusters(shared), metric.compared_by, bounds=metric.bounds, draws=draws)

    def _clusters(self, instances: Iterable[str]) -> list[tuple[str, str]]:
        return [self.clusters[instance] for instance in instances]

    def _rows(self, method: str, instances: Sequence[str]) -> Rows:
        found = np.array([self.vectors[method][instance] for instance in instances], dtype=float)
        return found.reshape(len(instances), AGGREGATES[self.metric.aggregate][0])


def _metrics(folder: Path, run: Mapping[str, Any]) -> dict[str, Measure]:
    try:
        return {name: Measure.read(name, told) for name, told in run["metrics"].items()}
    except (TypeError, ValueError) as error:
        raise ValueError(f"{folder / RUN}: {error}") from None


def _undecided(found: Difference, times: float | int) -> bool:
    """Whether ``times * p`` is so near the threshold that p's Monte Carlo error might decide."""
    return abs(found.p * times - SIGNIFICANT) < SURE * found.p_error * times


def _line(reason: str) -> str:
    return " ".join(reason.split()) or "no reason given"


def _spent(records: Sequence[Record]) -> Spent | None:
    done = [record for record in records if not record.failed]
    if not done:
        return None
    seconds = [record.seconds for record in done]
    middle = [float(np.median([getattr(one, what) for one in done])) for what in ("tokens", "forwards", "backwards")]
    return Spent(len(done), *middle, *map(float, np.percentile(seconds, [50, 10, 90])))
