"""METRICS: every metric by name, those of other packages included.

A package adds a metric through the entry-point group ``heta_lens.metrics``. Its entry point names a `Metric`, or a
function from an `ExplainedPrompt` to a number with the attribute ``better`` (and any other field of `Metric`):

    def longest(case):
        return float(case.scores.argmax())
    longest.better = "less"

Without an entry point, such a function is named as ``module:function``.
"""

import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Any, get_args

from heta_lens._util.file_reading import brief
from heta_lens._util.named_objects import is_object_name, named_object
from heta_lens._util.options import hint
from heta_lens.metrics import built_in_metrics
from heta_lens.metrics.metric import Better, Metric

GROUP = "heta_lens.metrics"
BUILT_INS: Mapping[str, Metric] = {
    **built_in_metrics.AGAINST_REMOVAL,
    **built_in_metrics.AGAINST_EVIDENCE,
    **built_in_metrics.AGAINST_PATCHING,
    **built_in_metrics.OF_METHODS,
    **built_in_metrics.DOWNSTREAM,
}


class MetricRegistry(Mapping[str, Metric]):
    """The built-in metrics and, loaded when they are first needed, those of other packages.

    Any other can be named as ``module:object``; it is not among those listed.
    """

    def __init__(self) -> None:
        self._named: dict[str, Metric] = {}

    @cached_property
    def plugins(self) -> dict[str, Metric]:
        """The metrics of other packages; one that cannot be used is left out with a warning."""
        metrics: dict[str, Metric] = {}
        for entry_point in entry_points(group=GROUP):
            try:
                if entry_point.name in BUILT_INS or entry_point.name in metrics:
                    raise ValueError("its name is taken by another metric: rename the entry point")
                metrics[entry_point.name] = loaded(entry_point)
            except Exception as error:
                warnings.warn(f"the metric {described(entry_point)} is left out: {error}", stacklevel=2)
        return metrics

    def __getitem__(self, name: str) -> Metric:
        if name in BUILT_INS:
            return BUILT_INS[name]
        if name not in self.plugins and is_object_name(name):
            if name not in self._named:
                self._named[name] = _named(name)
            return self._named[name]
        return self.plugins[name]

    def __iter__(self) -> Iterator[str]:
        yield from (*BUILT_INS, *self.plugins)

    def __len__(self) -> int:
        return len(BUILT_INS) + len(self.plugins)


UNINFORMATIVE = ("soft_ns", "soft_ns_raw")
"""Metrics that do not tell methods apart: they keep one token's worth of the context, and most values are 0."""


def default_metrics() -> list[str]:
    """The default metrics: those that run a method only once, without the uninformative ones."""
    return [name for name, metric in METRICS.items() if not metric.again and name not in UNINFORMATIVE]


def named(metric: str | Metric) -> tuple[str, Metric]:
    """Find the metric of a name; a given one is named by its title, in lower case and with underscores."""
    if isinstance(metric, Metric):
        name = "_".join(re.findall(r"\w+", metric.title.lower()))
        if name not in METRICS:
            return name, checked(name, metric, getattr(metric.evaluate, "__module__", ""))
        if METRICS[name] == metric:
            return name, metric
        raise ValueError(f"title={metric.title!r} names the metric {name!r}, which METRICS has: give another title")
    if not isinstance(metric, str):
        raise TypeError(f"metrics has {brief(metric)}: give names, such as 'f1', or Metric objects")
    if metric not in METRICS:
        way = "`heta-lens metrics` lists them"
        raise ValueError(f"metric={metric!r} is not in heta_lens.metrics.METRICS{hint(metric.lower(), METRICS)}: {way}")
    return metric, METRICS[metric]


def loaded(entry_point: EntryPoint) -> Metric:
    """The metric of another package, with its origin."""
    return checked(entry_point.name, entry_point.load(), origin(entry_point))


def _named(name: str) -> Metric:
    try:
        return checked(name, named_object(name), name.partition(":")[0])
    except (ValueError, TypeError) as error:
        raise type(error)(f"metric {name}: {error}") from None


def checked(name: str, value: Any, origin: str) -> Metric:
    """A metric, or a function that is one."""
    metric = value if isinstance(value, Metric) else metric_of(name, value)
    if metric.better not in get_args(Better):
        raise ValueError(f"better={metric.better!r} is not one of {', '.join(get_args(Better))}")
    return replace(metric, origin=origin)


def metric_of(name: str, function: Any) -> Metric:
    """A function with a direction as a metric; a bound that it does not declare is open."""
    if not callable(function):
        raise TypeError(f"{function!r} is neither a Metric nor a function")
    if not hasattr(function, "better"):
        raise ValueError("it declares no direction: set better to 'more', 'less' or 'nearer 0' on the function")
    known = {field.name for field in fields(Metric)} - {"evaluate"}
    declared = {key: value for key, value in getattr(function, "__dict__", {}).items() if key in known}
    return Metric(**{"title": name, "low": None, "high": None, "evaluate": function, **declared})


def origin(entry_point: EntryPoint) -> str:
    """The distribution that an entry point is from, or else its module."""
    return entry_point.dist.name if entry_point.dist else entry_point.module


def described(entry_point: EntryPoint) -> str:
    return f"{entry_point.name!r} of {origin(entry_point)} ({entry_point.value})"


METRICS: Mapping[str, Metric] = MetricRegistry()
