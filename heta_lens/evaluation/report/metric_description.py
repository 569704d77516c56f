"""Measure: a metric as a report reads it from ``run.json``: how its values are aggregated and compared."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from heta_lens._util.file_reading import brief
from heta_lens.evaluation.aggregates import AGGREGATES, Aggregate
from heta_lens.evaluation.intervals import Bounds

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
