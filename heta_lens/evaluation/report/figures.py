"""Figures of a summary, as SVG and PDF: the value of every method with its interval, and against its cost."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO, StringIO
from math import ceil, isfinite, isnan
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullFormatter
from matplotlib.transforms import Bbox, BboxBase

from heta_lens.evaluation.report.document import INK, PAPER, QUIET, Drawn
from heta_lens.evaluation.report.results import Cell, Measure, Summary

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
LETTER, LINE = 4.9, 10.0  # points, of a small letter and of a line
NAMED = 10  # more methods are numbered where they would crowd


@dataclass(frozen=True)
class Mark:
    """How a method is drawn: shape, colour and filling all have the same meaning."""

    shape: str
    colour: str
    filled: bool
    says: str

    @property
    def style(self) -> dict[str, Any]:
        filling = self.colour if self.filled else PAPER
        return {"marker": self.shape, "color": self.colour, "markerfacecolor": filling, "markersize": 6}


REFERENCE = Mark("D", INK, True, "the reference")
BETTER = Mark("^", BLUE, True, "better")
WORSE = Mark("v", ORANGE, True, "worse")
NOT_SIGNIFICANT = Mark("o", QUIET, False, "not significant")


def dots(summary: Summary, metric: Measure) -> Drawn:
    """Every method's value with its interval, the best on top."""
    return drawn(lambda: _dots(summary, metric))


def costs(summary: Summary, metric: Measure) -> Drawn:
    """Every method's value against its seconds per prompt."""
    return drawn(lambda: _costs(summary, metric))


def mark(summary: Summary, metric: Measure, method: str) -> Mark:
    if method == summary.reference:
        return REFERENCE
    return {1: BETTER, -1: WORSE, 0: NOT_SIGNIFICANT}[summary.verdict(metric, method)]


def drawn(draw: Callable[[], Figure]) -> Drawn:
    with matplotlib.rc_context(LOOKS):
        figure, svg, pdf = draw(), StringIO(), BytesIO()
        FigureCanvasSVG(figure).print_svg(svg, metadata=NO_METADATA)
        FigureCanvasPdf(figure).print_pdf(pdf, metadata=NO_DATE)
    return Drawn(svg.getvalue(), pdf.getvalue())


def _dots(summary: Summary, metric: Measure) -> Figure:
    methods = summary.ranked(metric)
    figure = Figure(figsize=(WIDTH, ROW * len(methods) + 1.1), layout="constrained")
    axes = figure.subplots()
    cells = [summary.cells[metric.name, method] for method in methods]
    left, right = _limits([end for cell in cells for end in _ends(cell)])
    axes.set_xlim(left, right)
    axes.set_ylim(len(methods) - 0.5, -0.5)
    axes.set_yticks(range(len(methods)), methods)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(f"{metric.title} ({metric.better} is better)")
    if left < 0 < right:
        axes.axvline(0, color=QUIET, linewidth=0.6, linestyle=":")
    reference = summary.cells[metric.name, summary.reference].estimate.value
    if isfinite(reference):
        axes.axvline(reference, color=QUIET, linewidth=0.6)
    marks = [mark(summary, metric, method) for method in methods]
    for row, (cell, drawn) in enumerate(zip(cells, marks, strict=True)):
        _dot(axes, row, cell, drawn, left, right)
    _legend(figure, [shape for shape, cell in zip(marks, cells, strict=True) if not isnan(cell.estimate.value)])
    return figure


def _dot(axes: Axes, row: int, cell: Cell, drawn: Mark, left: float, right: float) -> None:
    estimate = cell.estimate
    if isnan(estimate.value):
        under = {"facecolor": PAPER, "edgecolor": "none", "pad": 1}
        axes.annotate("no value", (left, row), (4, 0), textcoords="offset points", va="center", color=QUIET, bbox=under)
        return
    if not isnan(estimate.low):
        ends = [min(max(end, left), right) for end in (estimate.low, estimate.high)]
        axes.plot(ends, [row, row], color=drawn.colour, linewidth=1.4, solid_capstyle="butt")
    if isfinite(estimate.value):
        axes.plot([estimate.value], [row], linestyle="none", **drawn.style)
        return
    edge, side, shift = (right, "right", -4) if estimate.value > 0 else (left, "left", 4)
    text = "∞ →" if estimate.value > 0 else "← -∞"
    axes.annotate(text, (edge, row), (shift, 0), textcoords="offset points", va="center", ha=side, color=drawn.colour)


def _costs(summary: Summary, metric: Measure) -> Figure:
    methods = placed(summary, metric)
    keyed = len(methods) > NAMED
    figure = Figure(figsize=(WIDTH, 4.2 + (ceil(len(methods) / 2) * 0.16 if keyed else 0)), layout="constrained")
    axes = figure.subplots()
    cells = [summary.cells[metric.name, method] for method in methods]
    points = [(summary.costs.seconds[method], summary.cells[metric.name, method].estimate.value) for method in methods]
    _frame(axes, metric, [x for x, _ in points], [end for cell in cells for end in _ends(cell)])
    marks = [mark(summary, metric, method) for method in methods]
    low, high = axes.get_ylim()
    for cell, drawn, (x, y) in zip(cells, marks, points, strict=True):
        if not isnan(cell.estimate.low):
            ends = [min(max(end, low), high) for end in (cell.estimate.low, cell.estimate.high)]
            axes.plot([x, x], ends, color=drawn.colour, linewidth=1, alpha=0.4)
        axes.plot([x], [y], linestyle="none", **drawn.style)
    _legend(figure, marks, "outside upper center")
    names = [str(number) for number in range(1, len(methods) + 1)] if keyed else methods
    if keyed:
        _key(figure, [f"{name}  {method}" for name, method in zip(names, methods, strict=True)])
    figure.draw_without_rendering()  # so that places are known
    name_points(axes, names, points)
    return figure


def _frame(axes: Axes, metric: Measure, seconds: Sequence[float], values: Sequence[float]) -> None:
    axes.set_xscale("log")
    axes.set_xlim(min(seconds, default=1) / 2, max(seconds, default=1) * 4)
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_ylim(*_limits(values))
    axes.set_xlabel("seconds per prompt (median)")
    axes.set_ylabel(f"{metric.title} ({metric.better} is better)")


def _key(figure: Figure, entries: Sequence[str]) -> None:
    """What the numbers by the points stand for."""
    nothing = [Line2D([], [], linestyle="none") for _ in entries]
    figure.legend(
        nothing, entries, loc="outside lower center", ncols=2, frameon=False, fontsize=8, handlelength=0,
        handletextpad=0, labelspacing=0.2,
    )  # fmt: skip


def placed(summary: Summary, metric: Measure) -> list[str]:
    """The methods that have a place in a plot of costs, best first."""
    return [
        method
        for method in summary.ranked(metric)
        if isfinite(summary.cells[metric.name, method].estimate.value)
        and method in summary.costs.index
        and summary.costs.seconds[method] > 0
    ]


def name_points(axes: Axes, names: Sequence[str], points: Sequence[tuple[float, float]]) -> None:
    """Write each name by its point, where it hides no other name and no point; far from it with a line."""
    if not names:
        return
    spots = [(x, y) for x, y in axes.transData.transform(points).tolist()]
    frame = axes.get_window_extent().padded(4)
    taken = [Bbox.from_bounds(x - 4, y - 4, 8, 8) for x, y in spots]
    for name, point, (x, y) in zip(names, points, spots, strict=True):
        width = LETTER * len(name)
        boxes = {
            shift: Bbox.from_bounds(x + shift[0], y + shift[1] - LINE / 2, width, LINE) for shift in _shifts(width)
        }
        free = (shift for shift, box in boxes.items() if _within(box, frame) and not box.count_overlaps(taken))
        shift = next(free, next(iter(boxes)))
        taken.append(boxes[shift])
        line = {"arrowstyle": "-", "color": QUIET, "linewidth": 0.5, "shrinkA": 0, "shrinkB": 3}
        axes.annotate(
            name,
            point,
            shift,
            textcoords="offset points",
            fontsize=8,
            va="center",
            arrowprops=line if abs(shift[1]) > LINE / 2 else None,
        )


def _shifts(width: float) -> Iterator[tuple[float, float]]:
    """Where a name may stand, in points from its point: right, left, and ever further above and below."""
    for step in range(16):
        for sign in (1, -1) if step else (1,):
            yield 6.0, sign * step * LINE / 2
            yield -6.0 - width, sign * step * LINE / 2


def _within(box: Bbox, frame: BboxBase) -> bool:
    return bool(box.x0 >= frame.x0 and box.y0 >= frame.y0 and box.x1 <= frame.x1 and box.y1 <= frame.y1)


def _ends(cell: Cell) -> list[float]:
    estimate = cell.estimate
    return [end for end in (estimate.value, estimate.low, estimate.high) if isfinite(end)]


def _limits(values: Sequence[float]) -> tuple[float, float]:
    """From the lowest to the highest, with room around them."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    room = (high - low) * 0.06 or abs(low) * 0.1 or 0.5
    return low - room, high + room


def _legend(figure: Figure, marks: Sequence[Mark], where: Any = "outside lower center") -> None:
    used = [shape for shape in (REFERENCE, BETTER, WORSE, NOT_SIGNIFICANT) if shape in marks]
    handles = [Line2D([], [], linestyle="none", **shape.style) for shape in used]
    if used:
        figure.legend(
            handles, [shape.says for shape in used], loc=where, ncols=len(used), frameon=False, fontsize=8,
            handletextpad=0.1, columnspacing=1.2,
        )  # fmt: skip
