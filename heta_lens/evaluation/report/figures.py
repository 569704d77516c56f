"""Figures of reports, as SVG and PDF: values with intervals, and ranks against costs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO, StringIO
from math import ceil, isfinite, isnan
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from heta_lens.evaluation.report.document import INK, PAPER, QUIET
from heta_lens.evaluation.report.results import Measure, Summary
from heta_lens.evaluation.statistics import Estimate

LOOKS: dict[Any, Any] = {
    "svg.hashsalt": "heta_lens",
    "svg.fonttype": "none",  # small, for pages
    "pdf.fonttype": 42,  # embedded, for papers
    "figure.dpi": 72,  # an SVG is measured in points
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "figure.facecolor": PAPER,
    "axes.facecolor": PAPER,
    "text.parse_math": False,
}
NO_METADATA = {"Date": None, "Creator": None, "Format": None, "Type": None}
NO_DATE = {"CreationDate": None, "Creator": None, "Producer": None}
BLUE, ORANGE = "#2f7fd0", "#d9702b"
WIDTH, ROW = 5.6, 0.24  # inches
KEY_LINE = 0.16  # inches
FREE = 0.5  # the place of methods without a forward, in forwards


@dataclass(frozen=True)
class Mark:
    """The mark of a method: shape, colour and filling have the same meaning."""

    shape: str
    colour: str
    filled: bool
    says: str

    @property
    def style(self) -> dict[str, Any]:
        filling = self.colour if self.filled else PAPER
        return {"marker": self.shape, "color": self.colour, "markerfacecolor": filling, "linestyle": "none"}


REFERENCE = Mark("D", INK, True, "the reference")
BETTER = Mark("^", BLUE, True, "better")
WORSE = Mark("v", ORANGE, True, "worse")
NOT_SIGNIFICANT = Mark("o", QUIET, False, "not significant")
ON_FRONTIER, OFF_FRONTIER = Mark("o", BLUE, True, ""), Mark("o", QUIET, False, "")


def mark(summary: Summary, metric: Measure, method: str) -> Mark:
    if method == summary.reference:
        return REFERENCE
    return {1: BETTER, -1: WORSE, 0: NOT_SIGNIFICANT}[summary.verdict(metric, method)]


def _in_files(figure: Figure) -> tuple[str, bytes]:
    svg, pdf = StringIO(), BytesIO()
    FigureCanvasSVG(figure).print_svg(svg, metadata=NO_METADATA)
    FigureCanvasPdf(figure).print_pdf(pdf, metadata=NO_DATE)
    return svg.getvalue(), pdf.getvalue()


@matplotlib.rc_context(LOOKS)
def dots(summary: Summary, metric: Measure) -> tuple[str, bytes]:
    """Draw the value of every method with its interval, the best method on top."""
    methods = summary.ranked(metric)
    figure = Figure(figsize=(WIDTH, ROW * len(methods) + 1.1), layout="constrained")
    axes = figure.subplots()
    estimates = [summary.cells[metric.name, method].estimate for method in methods]
    numbers = [end for estimate in estimates for end in (estimate.value, estimate.low, estimate.high)]
    finite = [*filter(isfinite, numbers)]
    low, high = min(finite, default=0.0), max(finite, default=1.0)
    room = (high - low) * 0.06 or abs(low) * 0.1 or 0.5
    axes.set_xlim(low - room, high + room)
    axes.set_ylim(len(methods) - 0.5, -0.5)
    axes.set_yticks(range(len(methods)), methods)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(f"{metric.title} ({metric.better} is better)")
    if low - room < 0 < high + room:
        axes.axvline(0, color=QUIET, linewidth=0.6, linestyle=":")
    reference = summary.cells[metric.name, summary.reference].estimate.value
    if isfinite(reference):
        axes.axvline(reference, color=QUIET, linewidth=0.6)
    marks = [mark(summary, metric, method) for method in methods]
    for row, (estimate, shape) in enumerate(zip(estimates, marks, strict=True)):
        _draw_dot(axes, row, estimate, shape)
    used = [shape for shape in (REFERENCE, BETTER, WORSE, NOT_SIGNIFICANT) if shape in marks]
    handles = [Line2D([], [], label=shape.says, **shape.style) for shape in used]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(used), frameon=False, fontsize=8)
    return _in_files(figure)


def _draw_dot(axes: Axes, row: int, estimate: Estimate, shape: Mark) -> None:
    left, right = axes.get_xlim()
    beside: dict[str, Any] = {"textcoords": "offset points", "va": "center"}
    if isnan(estimate.value):
        axes.annotate("no value", (left, row), (4, 0), **beside, color=QUIET)
        return
    if not isnan(estimate.low):
        ends = [min(max(end, left), right) for end in (estimate.low, estimate.high)]
        axes.plot(ends, [row, row], color=shape.colour, linewidth=1.4, solid_capstyle="butt")
    if isfinite(estimate.value):
        axes.plot([estimate.value], [row], **shape.style)
    elif estimate.value > 0:
        axes.annotate("∞ →", (right, row), (-4, 0), **beside, ha="right", color=shape.colour)
    else:
        axes.annotate("← -∞", (left, row), (4, 0), **beside, ha="left", color=shape.colour)


def frontier(points: Sequence[tuple[float, float]]) -> list[int]:
    """Return the points of cost and rank that no other point beats in one number without losing in the other."""
    costs_and_ranks = np.array(points).reshape(-1, 2)
    no_worse = (costs_and_ranks[:, None] <= costs_and_ranks).all(-1)  # of every point, than every other
    return np.flatnonzero(~(no_worse & ~no_worse.T).any(0)).tolist()


@matplotlib.rc_context(LOOKS)
def ranks_by_cost(rows: Sequence[Mapping[str, Any]]) -> tuple[str, bytes]:
    """Draw the mean rank of every method of a leaderboard against its cost, with the Pareto frontier."""
    rows = [row for row in rows if not (isnan(row["rank"]) or isnan(row["worth"]))]
    figure = Figure(figsize=(WIDTH, 4.2 + ceil(len(rows) / 2) * KEY_LINE), layout="constrained")
    axes = figure.subplots()
    points = [(max(FREE, row["worth"]), row["rank"]) for row in rows]
    best = frontier(points)
    axes.set_xscale("log")
    axes.set_xlim(FREE / 1.5, 4 * max((cost for cost, _ in points), default=1.0))
    axes.set_ylim(1.04, -0.04)
    axes.xaxis.set_major_formatter(lambda cost, _: f"{cost:g}")
    axes.set_xlabel(f"forwards per prompt (median; {FREE:g} or less: none)")
    axes.set_ylabel("mean rank (0 is the best)")
    if line := sorted(points[place] for place in best):
        axes.plot(*zip(*line, strict=True), color=BLUE, linewidth=0.8, linestyle=":", drawstyle="steps-post")
    for place, point in enumerate(points):
        axes.plot(*point, **(ON_FRONTIER if place in best else OFF_FRONTIER).style)
        axes.annotate(str(place + 1), point, (5, 3), textcoords="offset points", fontsize=8)
    names = [Line2D([], [], linestyle="none", label=f"{place}  {row['method']}") for place, row in enumerate(rows, 1)]
    figure.legend(handles=names, loc="outside lower center", ncols=2, frameon=False, fontsize=8, handlelength=0)
    return _in_files(figure)
