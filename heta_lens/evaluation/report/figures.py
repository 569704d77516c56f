"""Figures of reports, as SVG and PDF: values with intervals."""

from dataclasses import dataclass
from io import BytesIO, StringIO
from math import isfinite, isnan
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from heta_lens.evaluation.report.document import PAPER
from heta_lens.evaluation.report.results import Measure, Summary
from heta_lens.evaluation.statistics import Estimate
from heta_lens.plots.figures import INK, METADATA, QUIET, STYLE

LOOKS: dict[Any, Any] = {
    **STYLE,
    "svg.fonttype": "none",  # small, for pages
    "pdf.fonttype": 42,  # embedded, for papers
    "figure.dpi": 72,  # an SVG is measured in points
    "font.size": 9,
    "figure.facecolor": PAPER,
    "axes.facecolor": PAPER,
}
BLUE, ORANGE = "#2f7fd0", "#d9702b"
WIDTH, ROW = 5.6, 0.24  # inches


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


def mark(summary: Summary, metric: Measure, method: str) -> Mark:
    if method == summary.reference:
        return REFERENCE
    return {1: BETTER, -1: WORSE, 0: NOT_SIGNIFICANT}[summary.verdict(metric, method)]


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
    svg, pdf = StringIO(), BytesIO()
    for written, kind in (svg, "svg"), (pdf, "pdf"):
        figure.savefig(written, format=kind, metadata={**METADATA[kind]})
    return svg.getvalue(), pdf.getvalue()


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
