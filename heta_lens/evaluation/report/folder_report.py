"""The report of an evaluation: tables, figures and a page, written into the folder of the evaluation.

``report.md``, ``results.csv``, ``missing.csv`` and the figures depend on the values alone. Costs are apart, in
``costs.csv`` and the last section of ``report.html``, because seconds differ from run to run.
"""

import re
from collections.abc import Iterator, Mapping
from math import ceil, isnan
from os import PathLike
from pathlib import Path
from typing import Any

import pandas as pd

from heta_lens._util.files import write_atomically
from heta_lens._util.python import check_extra
from heta_lens._util.text import counted
from heta_lens.evaluation.report import results as wording
from heta_lens.evaluation.report.document import (
    Block,
    Figure,
    Footnotes,
    Heading,
    Notes,
    Paragraph,
    Table,
    markdown,
    page,
    sheet,
)
from heta_lens.evaluation.report.results import SIGNIFICANT, Measure, Summary, summary
from heta_lens.metrics.registry import described_metric

WIDE = 4  # metrics side by side
BETTER, WORSE, FEWER, DEGENERATE = "▲", "▼", "†", "‡"
MORE, LESS = "↑", "↓"  # better


def write_report(folder: str | PathLike[str]) -> list[Path]:
    """Write the report of a folder into the folder, and return the files."""
    folder = Path(folder).expanduser()
    return write_summary(summary(folder), folder)


def write_summary(results: Summary, folder: Path) -> list[Path]:
    """Write the report of a summary into a folder, and return the files."""
    check_extra("matplotlib", "a report, which has figures,")
    from heta_lens.evaluation.report.figures import dots  # matplotlib is slow to import

    figures = {
        name: Figure(
            f"{number:02d}-{re.sub(r'[^A-Za-z0-9.-]+', '_', name)}",
            *dots(results, metric),
            f"{metric.title} of every method with its interval, as in the table below",
        )
        for number, (name, metric) in enumerate(results.metrics.items(), 1)
    }
    title = f"{results.run.get('suite', 'An evaluation')} on {results.run.get('model', 'a model')}"
    blocks = [*_document(results, title, figures)]
    texts = {
        "report.md": markdown([*blocks, Paragraph("Costs are in costs.csv and at the end of report.html.")]),
        "report.html": page(title, [*blocks, *_costs(results)]),
        "results.csv": sheet(pd.DataFrame(result_rows(results))),
        "missing.csv": sheet(_missing_table(results)),
        "costs.csv": sheet(_costs_table(results)),
    }
    drawn = {path: data for figure in figures.values() for path, data in figure.files.items()}
    (folder / "figures").mkdir(exist_ok=True)
    return [write_atomically(folder / name, data) for name, data in {**texts, **drawn}.items()]


def _document(results: Summary, title: str, figures: Mapping[str, Figure]) -> Iterator[Block]:
    yield Heading(title, 1)
    yield from map(Paragraph, _about(results))
    yield Heading("At a glance")
    yield from overview(results)
    yield Heading("Metric by metric")
    for name, metric in results.metrics.items():
        yield Heading(metric.title, 3)
        yield Paragraph(" ".join(filter(None, [described_metric(name), wording.meaning(metric)])))
        yield figures[name]
        yield _details(results, metric)
    yield Heading("What is missing")
    yield _missing(results)
    yield Heading("Methods and options")
    yield from _setup(results)


def _about(results: Summary) -> Iterator[str]:
    told = {record.instance: record.template for record in results.records}
    if not told:
        yield "No instance has been finished yet."
        return
    run, n, templates = results.run, len(told), {*filter(None, told.values())}
    done = f"{n} of " if n < results.requested else ""
    split = f" of the {run['split']} split" if run.get("split") else ""
    shard = f" in shard {run['shard']}" if run.get("shard") else ""
    made = f", made from {counted(len(templates), 'template')}" if templates else ""
    instances = counted(max(n, results.requested), "instance")
    yield f"{done}{instances}{split}{shard}{made}. Methods are compared with {results.reference}."
    if run.get("budget") is not None:
        yield f"Every method takes at most {run['budget']:g} forwards per prompt (a backward counts as two)."
    known = {record.instance: record.correct for record in results.records if record.correct is not None}
    if correct := known.values():
        yield f"The explained token is the model's own prediction in {sum(correct)} of {len(correct)} instances."


def overview(results: Summary, *, intervals: bool = True) -> Iterator[Block]:
    """Yield tables with methods as rows and a few metrics side by side, and notes."""
    reasons, every = Footnotes(), [*results.metrics.values()]
    width = ceil(len(every) / ceil(len(every) / WIDE))
    for start in range(0, len(every), width):
        metrics = every[start : start + width]
        rows = [
            [method, *(_glance(results, metric, method, reasons, intervals) for metric in metrics)]
            for method in results.methods
        ]
        best = frozenset(
            (results.methods.index(results.best[metric.name]), column)
            for column, metric in enumerate(metrics, 1)
            if metric.name in results.best
        )
        heads = [f"{metric.title} ({metric.better} is better, n = {results.most(metric)})" for metric in metrics]
        if not intervals:
            heads = [f"{metric.title} {LESS if metric.better == 'less' else MORE}" for metric in metrics]
        yield Table(["method", *heads], rows, bold=best)
    if not intervals:
        yield Notes([f"{MORE} more is better, {LESS} less is better. Intervals: --intervals, or results.csv."])
    yield Notes([*_legend(results, intervals), *reasons.lines()])


def _glance(results: Summary, metric: Measure, method: str, reasons: Footnotes, intervals: bool) -> str:
    cell, verdict = results.cells[metric.name, method], results.verdict(metric, method)
    if isnan(cell.estimate.value):
        return f"none ({reasons.letter(wording.why(cell))})"
    marks = {
        BETTER: verdict > 0,
        WORSE: verdict < 0,
        FEWER: cell.estimate.n < results.most(metric),
        DEGENERATE: bool(cell.degenerate),
    }
    signs = [sign for sign, holds in marks.items() if holds]
    if intervals:
        return " ".join([*signs, wording.with_interval(cell.estimate)])
    return "".join([*signs, f"{cell.estimate.value:.3g}"])


def _legend(results: Summary, intervals: bool) -> Iterator[str]:
    if intervals:
        yield (
            "In brackets: 95 % intervals by the cluster bootstrap by template (over instances where there is one "
            "template, or none). An infinite end means that so few templates, or ones so alike, give no bound."
        )
    yield (
        f"{BETTER} better, {WORSE} worse than {results.reference} on the same instances: p < {SIGNIFICANT:g} by the "
        "studentised cluster bootstrap by template, after Holm's correction for the number of methods."
    )
    yield "Bold: better than every other method by the same test, with Bonferroni's correction for their number."
    yield (
        f"n: the largest number of instances with a value. {FEWER} fewer. {DEGENERATE} degenerate scores among them, "
        "which distinguish no tokens."
    )
    if silent := [metric.title for metric in results.metrics.values() if results.uninformative(metric)]:
        yield f"No information about these methods on these prompts: {', '.join(silent)} (every interval is infinite)."


def _details(results: Summary, metric: Measure) -> Table:
    columns = ["method", "value", "n", "skipped", "failed", "pending", "degenerate", f"minus {results.reference}", "p"]
    methods = results.ranked(metric)
    rows = [[method, *_detail(results, metric, method)] for method in methods]
    best = results.best.get(metric.name)
    return Table(columns, rows, bold=frozenset({(methods.index(best), 1)} if best else ()))


def _detail(results: Summary, metric: Measure, method: str) -> list[str]:
    cell = results.cells[metric.name, method]
    value = f"none ({wording.why(cell)})" if isnan(cell.estimate.value) else wording.with_interval(cell.estimate)
    counts = [cell.estimate.n, cell.skipped.total(), cell.failed.total(), cell.pending, cell.degenerate]
    if cell.difference is None:
        compared = ["the reference", ""]
    elif isnan(cell.difference.value):
        compared = ["none", ""]
    else:
        compared = [wording.with_interval(cell.difference), wording.p_value(cell.p)]
    return [value, *map(str, counts), *compared]


def _missing_table(results: Summary) -> pd.DataFrame:
    """Make ``missing.csv``: numbers of instances by metric, method and reason."""
    rows = [
        (name, method, reason, count)
        for (name, method), cell in results.cells.items()
        for reason, count in cell.why.items()
    ]
    return pd.DataFrame(rows, columns=["metric", "method", "reason", "instances"])


def _missing(results: Summary) -> Block:
    frame = _missing_table(results)
    if frame.empty:
        return Paragraph("Nothing: every method has a value of every metric on every instance.")

    def listed(names: pd.Series) -> str:
        return ", ".join(names.unique())

    by_reason = frame.groupby("reason", sort=False, as_index=False)
    rows = by_reason.agg({"metric": listed, "method": listed, "instances": "max"}).astype(str).to_numpy().tolist()
    return Table(["reason", "metrics", "methods", "instances (at most)"], rows, texts=3)


def _setup(results: Summary) -> Iterator[Block]:
    run = results.run
    rows = [
        [label, recipe["method"], wording.options(recipe.get("options") or {})]
        for label, recipe in run["methods"].items()
    ]
    yield Table(["label", "method", "options"], rows, texts=3)
    options = {"Options of the suite": run.get("suite_options"), "Versions": run.get("versions")}
    yield Notes(
        [
            *(f"{name}: {wording.options(given)}" for name, given in options.items() if given),
            *(f"{name}: {run[name]}" for name in ("seed", "limit") if run.get(name) is not None),
            "The same numbers, one per line: results.csv; every reason for a missing value: missing.csv.",
        ]
    )


def result_rows(results: Summary) -> Iterator[dict[str, Any]]:
    """Yield the rows of ``results.csv`` with numbers, or None for a missing number."""
    for (name, method), cell in results.cells.items():
        estimate = cell.estimate
        compared = cell.difference if cell.difference and cell.difference.n else None
        yield {
            "metric": name,
            "method": method,
            "value": estimate.value,
            "low": estimate.low,
            "high": estimate.high,
            "n": estimate.n,
            "skipped": cell.skipped.total(),
            "degenerate": cell.degenerate,
            "difference": compared and compared.value,
            "difference_low": compared and compared.low,
            "difference_high": compared and compared.high,
            "p": compared and cell.p,
            "better": results.metrics[name].better,
            "failed": cell.failed.total(),
            "pending": cell.pending,
            "clusters": estimate.clusters,
            "why": "; ".join(f"{reason} ({count})" for reason, count in cell.why.items()),
        }


def _costs(results: Summary) -> Iterator[Block]:
    yield Heading("Cost")
    yield Paragraph(
        "Medians per prompt (worth: a backward, or a Hessian–vector product (HVP), counts as two forwards); seconds "
        "also with the 10th and 90th percentile. Seconds depend on the machine and differ from run to run; nothing "
        "above does."
    )
    table = _costs_table(results)
    rows = table.map(
        lambda cell: cell if isinstance(cell, str) else f"{cell:.{3 if cell < 100 else 6}g}".replace("nan", "none")
    )
    yield Table([*table.columns], rows.to_numpy().tolist())


def _costs_table(results: Summary) -> pd.DataFrame:
    """Make ``costs.csv``: a row per method."""
    costs = results.costs.reindex([*results.methods])
    return costs.assign(n=costs["n"].fillna(0).astype(int)).reset_index(names="method")
