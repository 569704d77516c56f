"""A folder of records as tables, figures and a page.

``report.md``, ``results.csv``, ``missing.csv`` and the figures of quality depend on nothing but what was measured. What
it cost is apart, because no two runs take the same seconds: ``costs.csv``, ``figures/costs.svg`` and the last section
of ``report.html``.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from math import ceil, isinf, isnan
from pathlib import Path

from heta_lens.evaluation import wording
from heta_lens.evaluation.document import Block, Figure, Heading, Notes, Paragraph, Table, markdown, page, sheet
from heta_lens.evaluation.statistics import least_p
from heta_lens.evaluation.tables import SIGNIFICANT, Measure, Summary, summary
from heta_lens.files import write_atomically

FILES = "report.md", "report.html", "results.csv", "missing.csv", "costs.csv"
WIDE = 4  # metrics side by side
BETTER, WORSE, FEWER, DOUBTFUL = "▲", "▼", "†", "‡"
COLUMNS = (  # noqa: SIM905
    "metric method value low high n left_out doubtful difference difference_low difference_high p better "
    "failed not_run resampled clusters why"
).split()
COST_COLUMNS = "method n seconds seconds_p10 seconds_p90 forwards backwards tokens".split()  # noqa: SIM905


def write_report(folder: Path, against: str | None = None) -> list[Path]:
    """Write what the records in a folder say, beside them; ``against`` is the metric that costs are drawn against.

    Without it, it is the first one that has a value.
    """
    from heta_lens.evaluation.figures import costs, dots  # matplotlib is slow to import

    found = summary(folder)
    shown = _against(found, against)
    drawn = {
        name: Figure(f"figures/{_file_name(number, name)}.svg", dots(found, metric), _shows(metric))
        for number, (name, metric) in enumerate(found.metrics.items(), 1)
    }
    cost = Figure("figures/costs.svg", costs(found, shown), f"{shown.title} against seconds for a prompt")
    told = list(_document(found, drawn))
    texts = {
        "report.md": markdown([*told, Paragraph("What all this cost is in costs.csv and at the end of report.html.")]),
        "report.html": page(_heading(found), [*told, *_costs(found, shown, cost)]),
        "results.csv": sheet(COLUMNS, _results(found)),
        "missing.csv": sheet(["metric", "method", "reason", "instances"], _missing(found)),
        "costs.csv": sheet(COST_COLUMNS, _spent(found)),
        **{figure.path: figure.svg for figure in [*drawn.values(), cost]},
    }
    (folder / "figures").mkdir(exist_ok=True)
    return [write_atomically(folder / name, text) for name, text in texts.items()]


def _against(found: Summary, name: str | None) -> Measure:
    if name is None:
        having = (one for one, method in found.cells if found.cells[one, method].estimate.n)
        name = next(having, next(iter(found.metrics)))
    if name not in found.metrics:
        raise ValueError(f"against={name!r} is no metric of this evaluation: it has {', '.join(found.metrics)}")
    return found.metrics[name]


def _document(found: Summary, drawn: Mapping[str, Figure]) -> Iterator[Block]:
    yield Heading(_heading(found), 1)
    yield from map(Paragraph, _about(found))
    yield Heading("At a glance")
    yield from overview(found)
    yield Heading("Metric by metric")
    for name, metric in found.metrics.items():
        yield Heading(metric.title, 3)
        yield Paragraph(wording.meaning(metric))
        yield drawn[name]
        yield _details(found, metric)
    yield Heading("What is missing")
    yield from _gaps(found)
    yield Heading("How it was done")
    yield from _made(found)


def _heading(found: Summary) -> str:
    return f"{found.run.get('suite', 'An evaluation')} on {found.run.get('model', 'a model')}"


def _about(found: Summary) -> Iterator[str]:
    if not found.templates:
        yield "No instance has been finished yet."
        return
    n, sizes = len(found.templates), found.sizes
    split = f" of the {found.run['split']} split" if found.run.get("split") else ""
    each = f"{sizes[0]} to {sizes[-1]}" if len(sizes) > 1 and sizes[0] < sizes[-1] else str(sizes[0]) if sizes else ""
    made = f", made from {wording.counted(len(sizes), 'template')} of {each} each" if sizes and sizes != [1] * n else ""
    begun = f"{n} of {wording.counted(found.asked, 'instance')}" if n < found.asked else wording.counted(n, "instance")
    yield f"{begun}{split}{made}. Methods are compared with {found.reference}."
    if found.correct:
        right = sum(found.correct.values())
        yield f"What is explained is what the model says by itself in {right} of {len(found.correct)} instances."
    if found.strangers:
        yield f"Left out, for run.json does not name them: records of {', '.join(found.strangers)}."


def overview(found: Summary) -> Iterator[Block]:
    """Methods as rows, a few metrics side by side."""
    metrics, reasons = iter(found.metrics.values()), _Letters()
    tables = ceil(len(found.metrics) / WIDE)
    while chunk := list(islice(metrics, ceil(len(found.metrics) / tables))):
        rows = [[method, *(_glance(found, metric, method, reasons) for metric in chunk)] for method in found.methods]
        best = frozenset(
            (found.methods.index(found.best[metric.name]), column)
            for column, metric in enumerate(chunk, 1)
            if metric.name in found.best
        )
        heads = [f"{metric.title} ({metric.better} is better, n = {found.most(metric)})" for metric in chunk]
        yield Table(["method", *heads], rows, bold=best)
    yield Notes([*_legend(found), *reasons.told()])


def _legend(found: Summary) -> Iterator[str]:
    yield (
        "In brackets: 95 % intervals over templates (over instances where there is one template, or none). An infinite "
        "end means that so few templates, or ones so alike, give no bound."
    )
    yield (
        f"{BETTER} better, {WORSE} worse than {found.reference} on the same instances: p < {SIGNIFICANT:g} by the "
        "studentised cluster bootstrap over templates, after Holm's correction for the number of methods."
    )
    if (least := _least_p(found)) >= SIGNIFICANT:
        yield f"With so few templates no difference can be significant: no p can be below {least:.2g}."
    yield "Bold: better than every other method by the same test, each p times the number of others."
    yield f"n: the most instances that a method has a value of. {FEWER} of fewer. {DOUBTFUL} some values say little."
    if any(isinf(cell.estimate.value) for cell in found.cells.values()):
        yield "A logarithm is -∞ where the method's own sum is 0, and ∞ where that of random scores is."


def _least_p(found: Summary) -> float:
    """What p is at least, for the number of templates."""
    differences = [cell.difference for cell in found.cells.values() if cell.difference and cell.difference.n]
    clusters = max((difference.clusters for difference in differences), default=0)
    return min(1.0, least_p(clusters) * (len(found.methods) - 1)) if differences else 0.0


class _Letters:
    """Letters for reasons, in the order they are first needed."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def of(self, reason: str) -> str:
        return self._known.setdefault(reason, _letters(len(self._known)))

    def told(self) -> list[str]:
        return [f"({letter}) {reason}" for reason, letter in self._known.items()]


def _letters(number: int) -> str:
    return (_letters(number // 26 - 1) if number >= 26 else "") + chr(ord("a") + number % 26)


def _glance(found: Summary, metric: Measure, method: str, reasons: _Letters) -> str:
    cell = found.cells[metric.name, method]
    if isnan(cell.estimate.value):
        return f"none ({reasons.of(wording.why(cell))})"
    verdict = found.verdict(metric, method)
    marks = {BETTER: verdict > 0, WORSE: verdict < 0}
    marks |= {FEWER: cell.estimate.n < found.most(metric), DOUBTFUL: bool(cell.doubtful)}
    return " ".join([*(sign for sign, holds in marks.items() if holds), wording.with_interval(cell.estimate)])


def _details(found: Summary, metric: Measure) -> Table:
    columns = ["method", "value", "n", "left out", "failed", "not run", "doubtful", f"minus {found.reference}", "p"]
    methods = found.ranked(metric)
    rows = [[method, *_detail(found, metric, method)] for method in methods]
    best = found.best.get(metric.name)
    return Table(columns, rows, bold=frozenset({(methods.index(best), 1)} if best else ()))


def _detail(found: Summary, metric: Measure, method: str) -> list[str]:
    cell = found.cells[metric.name, method]
    value = f"none ({wording.why(cell)})" if isnan(cell.estimate.value) else wording.with_interval(cell.estimate)
    counts = [cell.estimate.n, sum(cell.left_out.values()), sum(cell.failed.values()), cell.not_run, cell.doubtful]
    if cell.difference is None:
        apart = ["the reference", ""]
    elif not cell.difference.n:
        apart = ["none (no instance in common)", ""]
    elif isnan(cell.difference.value):
        apart = ["none (both are infinite, or one has no value)", ""]
    else:
        apart = [wording.with_interval(cell.difference), wording.p_value(cell.p)]
    return [value, *map(str, counts), *apart]


def _gaps(found: Summary) -> Iterator[Block]:
    """What is missing for one reason, of one number of instances, in a row: first of a method, then of several."""
    of_method: dict[tuple[str, str, int], list[str]] = {}
    for name, method, reason, count in _missing(found):
        of_method.setdefault((method, reason, count), []).append(found.metrics[name].title)
    of_all: dict[tuple[str, int, str], list[str]] = {}
    for (method, reason, count), titles in of_method.items():
        of_all.setdefault((reason, count, _listed(titles, len(found.metrics))), []).append(method)
    rows = [
        [reason, titles, _listed(methods, len(found.methods)), str(count)]
        for (reason, count, titles), methods in of_all.items()
    ]
    if rows:
        yield Table(["why there is no value", "of metrics", "of methods", "instances"], rows, texts=3)
    else:
        yield Paragraph("Nothing: every method has a value of every metric on every instance.")


def _listed(names: Sequence[str], whole: int) -> str:
    return "all" if len(names) == whole else ", ".join(names)


def _missing(found: Summary) -> Iterator[tuple[str, str, str, int]]:
    """A reason that all metrics share, as that a method failed, counts once for each."""
    for (name, method), cell in found.cells.items():
        for reason, count in cell.why.items():
            yield name, method, reason, count


def _made(found: Summary) -> Iterator[Block]:
    yield Table(
        ["method", "made by", "options"],
        [
            [label, told["method"], wording.options(told.get("options") or {})]
            for label, told in found.run["methods"].items()
        ],
        texts=3,
    )
    told = {"Options of the suite": found.run.get("suite_options"), "Versions": found.run.get("versions")}
    yield Notes(
        [
            *(f"{what}: {wording.options(given)}" for what, given in told.items() if given),
            *(f"{what}: {found.run[what]}" for what in ("seed", "limit") if found.run.get(what) is not None),
            "The same numbers, one a line: results.csv; every reason for a missing value: missing.csv.",
        ]
    )


def _costs(found: Summary, metric: Measure, drawn: Figure) -> Iterator[Block]:
    from heta_lens.evaluation.figures import placed

    yield Heading("What it cost")
    yield Paragraph(
        "For a prompt, the median; seconds also with the 10th and 90th percentile. Seconds depend on the machine and "
        "differ from run to run: all above does not."
    )
    yield drawn
    if hidden := [method for method in found.methods if method not in placed(found, metric)]:
        yield Paragraph(f"Not in the figure, for want of a finite value or of a time: {', '.join(hidden)}.")
    rows = []
    for method in found.methods:
        spent = found.spent.get(method)
        if spent is None:
            rows.append([method, "none (no instance succeeded)", *[""] * 4])
            continue
        seconds = f"{spent.seconds:.3g} [{spent.fast:.3g}, {spent.slow:.3g}]"
        rows.append(
            [method, seconds, *(f"{one:g}" for one in (spent.forwards, spent.backwards, spent.tokens)), str(spent.n)]
        )
    yield Table(["method", "seconds", "forwards", "backwards", "tokens", "n"], rows)


def _spent(found: Summary) -> Iterator[Sequence[object]]:
    for method in found.methods:
        if spent := found.spent.get(method):
            times = [wording.digits(one) for one in (spent.seconds, spent.fast, spent.slow)]
            yield method, spent.n, *times, *map(wording.digits, (spent.forwards, spent.backwards, spent.tokens))
        else:
            yield method, 0, *[""] * 6


def _results(found: Summary) -> Iterator[Sequence[object]]:
    for (name, method), cell in found.cells.items():
        told, apart, metric = cell.estimate, cell.difference, found.metrics[name]
        difference = [apart.value, apart.low, apart.high, cell.p] if apart and apart.n else [None] * 4
        yield (
            *(name, method, *map(wording.digits, (told.value, told.low, told.high))),
            *(told.n, sum(cell.left_out.values()), cell.doubtful, *map(wording.digits, difference), metric.better),
            *(sum(cell.failed.values()), cell.not_run, told.unit, told.clusters),
            "; ".join(f"{reason} ({count})" for reason, count in cell.why.items()),
        )


def _file_name(number: int, metric: str) -> str:
    return f"{number:02d}-{re.sub(r'[^A-Za-z0-9.-]+', '_', metric)}"


def _shows(metric: Measure) -> str:
    return f"{metric.title} of every method with its interval, as in the table below"
