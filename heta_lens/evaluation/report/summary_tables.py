"""The summary of a folder of records: for every metric and method an estimate, how it differs from the reference, and
what is missing; and what each method cost."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from math import inf, isnan
from pathlib import Path
from typing import Any

import pandas as pd

from heta_lens.evaluation.given_scores import is_given
from heta_lens.evaluation.report.metric_description import Measure
from heta_lens.evaluation.report.metric_results import Cell, MetricResults
from heta_lens.evaluation.run_records import RUN, Record, read_records, read_run
from heta_lens.evaluation.shards import Shard


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
