"""The results of all methods by one metric: estimates, differences from the reference, and what is missing."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import isnan

import pandas as pd

from heta_lens.evaluation.aggregates import AGGREGATES
from heta_lens.evaluation.difference_tests import Difference, corrected, difference
from heta_lens.evaluation.intervals import Estimate, estimate
from heta_lens.evaluation.random_draws import DRAWS
from heta_lens.evaluation.report.metric_description import Measure
from heta_lens.evaluation.run_records import Record, terms

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
