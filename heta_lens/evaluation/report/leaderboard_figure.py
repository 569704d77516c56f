"""The figure of a leaderboard: mean rank against cost, and which methods no other beats in both."""

from collections.abc import Mapping, Sequence
from math import isnan
from typing import Any

from matplotlib.figure import Figure

from heta_lens.evaluation.report.document import QUIET, Drawn
from heta_lens.evaluation.report.figures import BLUE, PAPER, WIDTH, drawn, name_points

FREE = 0.5  # where methods stand that run nothing


def ranks_by_cost(rows: Sequence[Mapping[str, Any]]) -> Drawn:
    return drawn(lambda: _drawn([row for row in rows if not (isnan(row["rank"]) or isnan(row["worth"]))]))


def frontier(points: Sequence[tuple[float, float]]) -> list[int]:
    """Of points of cost and rank, those that no other is better than in one, and as good in the other."""
    return [
        place
        for place, (cost, rank) in enumerate(points)
        if not any(
            (other_cost <= cost and other_rank <= rank) and (other_cost < cost or other_rank < rank)
            for other_cost, other_rank in points
        )
    ]


def _drawn(rows: Sequence[Mapping[str, Any]]) -> Figure:
    figure = Figure(figsize=(WIDTH, 4.2), layout="constrained")
    axes = figure.subplots()
    points = [(max(FREE, row["worth"]), row["rank"]) for row in rows]
    best = frontier(points)
    axes.set_xscale("log")
    axes.set_xlim(FREE / 1.5, 4 * max((cost for cost, _ in points), default=1.0))
    axes.set_ylim(1.04, -0.04)
    axes.xaxis.set_major_formatter(lambda cost, _: f"{cost:g}")
    axes.set_xlabel(f"forwards per prompt (median; {FREE:g} or less: none)")
    axes.set_ylabel("mean rank (0 is the best)")
    line = sorted((points[place] for place in best), key=lambda point: point[0])
    axes.plot(
        *zip(*line, strict=True), color=BLUE, linewidth=0.8, linestyle=":", drawstyle="steps-post"
    ) if line else None
    for place, (cost, rank) in enumerate(points):
        colour = BLUE if place in best else QUIET
        filled = colour if place in best else PAPER
        axes.plot([cost], [rank], linestyle="none", marker="o", color=colour, markerfacecolor=filled, markersize=6)
    figure.draw_without_rendering()  # so that places are known
    name_points(axes, [row["method"] for row in rows], points)
    return figure
