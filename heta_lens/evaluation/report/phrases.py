"""The wording of a report: numbers, reasons and the meaning of a metric."""

from collections.abc import Mapping, Sequence
from itertools import islice
from math import inf, isinf, isnan
from textwrap import shorten
from typing import Any

from heta_lens.evaluation.intervals import Estimate
from heta_lens.evaluation.report.metric_description import Measure
from heta_lens.evaluation.report.metric_results import Cell

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
