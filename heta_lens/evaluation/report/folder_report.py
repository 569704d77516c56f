"""A folder of records as tables, figures and a page.

``report.md``, ``results.csv``, ``missing.csv`` and the figures of quality depend on the values alone. Costs are kept
apart, because no two runs take the same seconds: ``costs.csv``, ``figures/costs.svg`` and the last section of
``report.html``.
"""

import re
from collections.abc import Iterator, Mapping
from itertools import islice
from math import ceil, isinf, isnan
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from heta_lens._util.files import write_atomically
from heta_lens._util.python import check_extra
from heta_lens._util.text import probability
from heta_lens.evaluation.report import results as phrases
from heta_lens.evaluation.report.document import (
    Block,
    Figure,
    Footnotes,
    Heading,
    Notes,
    Paragraph,
    Table,
    markdown,
    missing_reasons,
    missing_values,
    page,
    sheet,
)
from heta_lens.evaluation.report.results import SIGNIFICANT, Measure, Summary, summary
from heta_lens.evaluation.statistics import least_p
from heta_lens.metrics.registry import described_metric

# -------------------------------------------------------------------------------------------------------- cost section
# The cost of methods in a report: a table, a figure and ``costs.csv``.


def cost_section(results: Summary, metric: Measure, drawn: Figure) -> Iterator[Block]:
    from heta_lens.evaluation.report.figures import placed

    yield Heading("Cost")
    yield Paragraph(
        "Medians per prompt (worth: a backward, or a Hessian–vector product (HVP), counts as two forwards); seconds "
        "also with the 10th and 90th percentile. Seconds depend on the machine and differ from run to run; nothing "
        "above does."
    )
    yield drawn
    if hidden := [method for method in results.methods if method not in placed(results, metric)]:
        yield Paragraph(f"Not in the figure, without a finite value or a time: {', '.join(hidden)}.")
    yield Table(
        ["method", "seconds", "forwards", "backwards", "HVPs", "worth in forwards", "tokens", "n"],
        [[method, *_row(results.costs, method)] for method in results.methods],
    )


def _row(costs: pd.DataFrame, method: str) -> list[str]:
    if method not in costs.index:
        return ["none (not known, or no instance succeeded)", *[""] * 6]
    cost = costs.loc[method]
    seconds = f"{cost.seconds:.3g} [{cost.seconds_p10:.3g}, {cost.seconds_p90:.3g}]"
    runs = (f"{cost[name]:g}" for name in ("forwards", "backwards", "hvps", "worth", "tokens"))
    return [seconds, *runs, f"{cost.n:.0f}"]


def cost_table(results: Summary) -> pd.DataFrame:
    """``costs.csv``: a row for every method."""
    costs = results.costs.reindex([*results.methods])
    counts = costs["n"].fillna(0).astype(int)
    return costs.map(phrases.digits).assign(n=counts).reset_index(names="method")


FILES = "report.md", "report.html", "results.csv", "missing.csv", "costs.csv"
WIDE = 4  # metrics side by side
BETTER, WORSE, FEWER, DEGENERATE = "▲", "▼", "†", "‡"


def write_report(folder: str | PathLike[str], against: str | None = None) -> list[Path]:
    """Write the report of a folder into it; ``against`` is the metric that costs are drawn against.

    By default, that is the first metric with a value.
    """
    return write_summary(summary(Path(folder)), Path(folder), against)


def write_summary(results: Summary, folder: Path, against: str | None = None) -> list[Path]:
    """The report of a summary that is there already."""
    check_extra("matplotlib", "a report, which has figures,")
    from heta_lens.evaluation.report.figures import costs, dots  # matplotlib is slow to import

    shown = _against(results, against)
    drawn = {
        name: Figure(_file_name(number, name), dots(results, metric), _shows(metric))
        for number, (name, metric) in enumerate(results.metrics.items(), 1)
    }
    cost = Figure("costs", costs(results, shown), f"{shown.title} against seconds per prompt")
    blocks = list(_document(results, drawn))
    texts = {
        "report.md": markdown([*blocks, Paragraph("Costs are in costs.csv and at the end of report.html.")]),
        "report.html": page(_heading(results), [*blocks, *cost_section(results, shown, cost)]),
        "results.csv": sheet(pd.DataFrame(map(_written, result_rows(results)), dtype=object)),
        "missing.csv": sheet(missing_reasons(results)),
        "costs.csv": sheet(cost_table(results)),
    }
    figures = {path: data for figure in [*drawn.values(), cost] for path, data in figure.files.items()}
    (folder / "figures").mkdir(exist_ok=True)
    return [write_atomically(folder / name, data) for name, data in {**texts, **figures}.items()]


def _against(results: Summary, name: str | None) -> Measure:
    if name is None:
        having = (metric for metric, method in results.cells if results.cells[metric, method].estimate.n)
        name = next(having, next(iter(results.metrics)))
    if name not in results.metrics:
        raise ValueError(f"against={name!r} is no metric of this evaluation: it has {', '.join(results.metrics)}")
    return results.metrics[name]


def _document(results: Summary, drawn: Mapping[str, Figure]) -> Iterator[Block]:
    yield Heading(_heading(results), 1)
    yield from map(Paragraph, _about(results))
    yield Heading("At a glance")
    yield from overview(results)
    yield Heading("Metric by metric")
    for name, metric in results.metrics.items():
        yield Heading(metric.title, 3)
        yield Paragraph(" ".join(filter(None, [described_metric(name), phrases.meaning(metric)])))
        yield drawn[name]
        yield _details(results, metric)
    yield Heading("What is missing")
    yield from missing_values(results)
    yield Heading("Methods and options")
    yield from _setup(results)


def _heading(results: Summary) -> str:
    return f"{results.run.get('suite', 'An evaluation')} on {results.run.get('model', 'a model')}"


def _about(results: Summary) -> Iterator[str]:
    if not results.templates:
        yield "No instance has been finished yet."
        return
    n, sizes = len(results.templates), results.sizes
    split = f" of the {results.run['split']} split" if results.run.get("split") else ""
    per_template = (
        f"{sizes[0]} to {sizes[-1]}" if len(sizes) > 1 and sizes[0] < sizes[-1] else str(sizes[0]) if sizes else ""
    )
    made = (
        f", made from {phrases.counted(len(sizes), 'template')} of {per_template} each"
        if sizes and sizes != [1] * n
        else ""
    )
    begun = (
        f"{n} of {phrases.counted(results.requested, 'instance')}"
        if n < results.requested
        else phrases.counted(n, "instance")
    )
    shard = f" in shard {results.run['shard']}" if results.run.get("shard") else ""
    yield f"{begun}{split}{shard}{made}. Methods are compared with {results.reference}."
    if results.run.get("budget") is not None:
        yield f"Every method takes at most {results.run['budget']:g} forwards per prompt (a backward counts as two)."
    if results.correct:
        right = sum(results.correct.values())
        yield f"The explained token is the model's own prediction in {right} of {len(results.correct)} instances."
    if results.log_probs:
        low, middle, high = map(probability, np.quantile([*results.log_probs.values()], (0.25, 0.5, 0.75)))
        yield f"How likely the explained token was: {middle} in the median, {low} and {high} at the quartiles."
    if results.strangers:
        yield f"Skipped, because run.json does not list them: records of {', '.join(results.strangers)}."


def overview(results: Summary) -> Iterator[Block]:
    """Methods as rows, a few metrics side by side."""
    metrics, reasons = iter(results.metrics.values()), Footnotes()
    tables = ceil(len(results.metrics) / WIDE)
    while chunk := list(islice(metrics, ceil(len(results.metrics) / tables))):
        rows = [
            [method, *(_glance(results, metric, method, reasons) for metric in chunk)] for method in results.methods
        ]
        best = frozenset(
            (results.methods.index(results.best[metric.name]), column)
            for column, metric in enumerate(chunk, 1)
            if metric.name in results.best
        )
        heads = [f"{metric.title} ({metric.better} is better, n = {results.most(metric)})" for metric in chunk]
        yield Table(["method", *heads], rows, bold=best)
    yield Notes([*_legend(results), *reasons.lines()])


def _legend(results: Summary) -> Iterator[str]:
    yield (
        "In brackets: 95 % intervals by the cluster bootstrap by template (over instances where there is one template, "
        "or none). An infinite end means that so few templates, or ones so alike, give no bound."
    )
    yield (
        f"{BETTER} better, {WORSE} worse than {results.reference} on the same instances: p < {SIGNIFICANT:g} by the "
        "studentised cluster bootstrap by template, after Holm's correction for the number of methods."
    )
    if (least := _least_p(results)) >= SIGNIFICANT:
        yield f"With so few templates no difference can be significant: p is at least {least:.2g}."
    yield "Bold: better than every other method by the same test, with Bonferroni's correction for their number."
    yield f"n: the largest number of instances with a value. {FEWER} fewer. {DEGENERATE} degenerate scores among them."
    if any(isinf(cell.estimate.value) for cell in results.cells.values()):
        yield "A logarithm is -∞ where the method's own sum is 0, and ∞ where that of random scores is."
    if silent := [metric.title for metric in results.metrics.values() if results.uninformative(metric)]:
        yield f"No information about these methods on these prompts: {', '.join(silent)} (every interval is infinite)."


def _least_p(results: Summary) -> float:
    """The least possible p for the number of templates."""
    differences = [cell.difference for cell in results.cells.values() if cell.difference and cell.difference.n]
    clusters = max((difference.clusters for difference in differences), default=0)
    return min(1.0, least_p(clusters) * (len(results.methods) - 1)) if differences else 0.0


def _glance(results: Summary, metric: Measure, method: str, reasons: Footnotes) -> str:
    cell = results.cells[metric.name, method]
    if isnan(cell.estimate.value):
        return f"none ({reasons.letter(phrases.why(cell))})"
    verdict = results.verdict(metric, method)
    marks = {BETTER: verdict > 0, WORSE: verdict < 0}
    marks |= {FEWER: cell.estimate.n < results.most(metric), DEGENERATE: bool(cell.degenerate)}
    return " ".join([*(sign for sign, holds in marks.items() if holds), phrases.with_interval(cell.estimate)])


def _details(results: Summary, metric: Measure) -> Table:
    columns = ["method", "value", "n", "skipped", "failed", "pending", "degenerate", f"minus {results.reference}", "p"]
    methods = results.ranked(metric)
    rows = [[method, *_detail(results, metric, method)] for method in methods]
    best = results.best.get(metric.name)
    return Table(columns, rows, bold=frozenset({(methods.index(best), 1)} if best else ()))


def _detail(results: Summary, metric: Measure, method: str) -> list[str]:
    cell = results.cells[metric.name, method]
    value = f"none ({phrases.why(cell)})" if isnan(cell.estimate.value) else phrases.with_interval(cell.estimate)
    counts = [cell.estimate.n, sum(cell.skipped.values()), sum(cell.failed.values()), cell.pending, cell.degenerate]
    if cell.difference is None:
        apart = ["the reference", ""]
    elif not cell.difference.n:
        apart = ["none (no instance in common)", ""]
    elif isnan(cell.difference.value):
        apart = ["none (both are infinite, or one has no value)", ""]
    else:
        apart = [phrases.with_interval(cell.difference), phrases.p_value(cell.p)]
    return [value, *map(str, counts), *apart]


def _setup(results: Summary) -> Iterator[Block]:
    yield Table(
        ["label", "method", "options"],
        [
            [label, recipe["method"], phrases.options(recipe.get("options") or {})]
            for label, recipe in results.run["methods"].items()
        ],
        texts=3,
    )
    options = {"Options of the suite": results.run.get("suite_options"), "Versions": results.run.get("versions")}
    yield Notes(
        [
            *(f"{what}: {phrases.options(given)}" for what, given in options.items() if given),
            *(f"{what}: {results.run[what]}" for what in ("seed", "limit") if results.run.get(what) is not None),
            "The same numbers, one per line: results.csv; every reason for a missing value: missing.csv.",
        ]
    )


MEASURED = "value", "low", "high", "difference", "difference_low", "difference_high", "p"  # columns of results.csv


def _written(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: phrases.digits(value) if name in MEASURED else value for name, value in row.items()}


def result_rows(results: Summary) -> Iterator[dict[str, Any]]:
    """The rows of ``results.csv``, as numbers: None where there is none."""
    for (name, method), cell in results.cells.items():
        estimate, apart = cell.estimate, cell.difference if cell.difference and cell.difference.n else None
        yield {
            "metric": name,
            "method": method,
            "value": estimate.value,
            "low": estimate.low,
            "high": estimate.high,
            "n": estimate.n,
            "skipped": sum(cell.skipped.values()),
            "degenerate": cell.degenerate,
            "difference": apart and apart.value,
            "difference_low": apart and apart.low,
            "difference_high": apart and apart.high,
            "p": apart and cell.p,
            "better": results.metrics[name].better,
            "failed": sum(cell.failed.values()),
            "pending": cell.pending,
            "resampled": estimate.unit,
            "clusters": estimate.clusters,
            "why": "; ".join(f"{reason} ({count})" for reason, count in cell.why.items()),
        }


def _file_name(number: int, metric: str) -> str:
    return f"{number:02d}-{re.sub(r'[^A-Za-z0-9.-]+', '_', metric)}"


def _shows(metric: Measure) -> str:
    return f"{metric.title} of every method with its interval, as in the table below"
