"""Several evaluations side by side: each method's wins, losses and rank over all of them, and what it costs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from math import ceil, isnan
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.figure import Figure as MatplotlibFigure
from scipy.stats import rankdata

from heta_lens._util.files import write_atomically
from heta_lens._util.python import check_extra
from heta_lens.evaluation.report import results
from heta_lens.evaluation.report.document import (
    QUIET,
    Block,
    Drawn,
    Figure,
    Heading,
    Notes,
    Paragraph,
    Table,
    markdown,
    page,
    sheet,
)
from heta_lens.evaluation.report.figures import BLUE, PAPER, WIDTH, drawn, name_points
from heta_lens.evaluation.report.results import SIGNIFICANT, Cell, Summary, summary
from heta_lens.evaluation.statistics import DRAWS, Difference, corrected

# -------------------------------------------------------------------------------------------------- leaderboard figure
# The figure of a leaderboard: mean rank against cost, and which methods no other beats in both.


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


def _drawn(rows: Sequence[Mapping[str, Any]]) -> MatplotlibFigure:
    figure = MatplotlibFigure(figsize=(WIDTH, 4.2), layout="constrained")
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


FILES = "leaderboard.md", "leaderboard.html", "leaderboard.csv"
BETTER, WORSE = "▲", "▼"
FEW_DRAWS, MOST_DRAWS = 10, 64 * DRAWS  # more extreme ones, with which a p is not known well; and the most of all


class Comparison(NamedTuple):
    """A method against the reference, by one metric of one evaluation; ``p`` is corrected for all comparisons."""

    run: str
    metric: str
    method: str
    gains: bool
    p: float

    @property
    def verdict(self) -> int:
        """1 if better, -1 if worse, 0 if that may be chance."""
        return 0 if isnan(self.p) or self.p >= SIGNIFICANT else 1 if self.gains else -1


@dataclass(frozen=True)
class Leaderboard:
    """Evaluations, by a name for each; ``reference`` is the method that all others are compared with."""

    runs: Mapping[str, Summary]
    reference: str

    @classmethod
    def of(cls, folders: Sequence[Path]) -> "Leaderboard":
        """Of folders whose evaluations have the same reference."""
        summaries = [summary(folder) for folder in folders]
        for (folder, mine), (other, its) in combinations(zip(folders, summaries, strict=True), 2):
            if mine.run == its.run:
                raise ValueError(f"{folder} and {other} hold the same evaluation, which would count twice: give one")
        references = {each.reference: folder for each, folder in zip(summaries, folders, strict=True)}
        if len(references) > 1:
            which = "; ".join(f"{name} in {folder}" for name, folder in references.items())
            raise ValueError(f"the evaluations compare methods with different ones ({which}): evaluate one in all")
        names = _names([_title(each) for each in summaries], [folder.resolve() for folder in folders])
        return cls(dict(zip(names, summaries, strict=True)), *references)

    @cached_property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(method for run in self.runs.values() for method in run.methods))

    @cached_property
    def metrics(self) -> dict[str, str]:
        """The titles of all metrics, by name."""
        return {name: metric.title for run in self.runs.values() for name, metric in run.metrics.items()}

    def cell(self, run: str, metric: str, method: str) -> Cell | None:
        """None where the method or the metric was not evaluated."""
        return self.runs[run].cells.get((metric, method))

    @cached_property
    def comparisons(self) -> dict[tuple[str, str, str], Comparison]:
        """By run, metric and method; Holm's correction is for all of them."""
        apart = {
            (run, metric, method): cell.difference
            for run, of in self.runs.items()
            for (metric, method), cell in of.cells.items()
            if cell.difference is not None and cell.difference.n
        }
        comparisons = [
            Comparison(*key, self.runs[key[0]].metrics[key[1]].gains(each.value), self._p(key, each, len(apart)))
            for key, each in apart.items()
        ]
        p_values = corrected([each.p for each in comparisons])
        return {each[:3]: each._replace(p=p) for each, p in zip(comparisons, p_values, strict=True)}

    def _p(self, key: tuple[str, str, str], difference: Difference, comparisons: int) -> float:
        """The p of one of so many comparisons; with more draws where fewer could not tell it from chance."""
        run, metric, method = key
        draws = 8 * ceil(comparisons / SIGNIFICANT)
        if draws <= DRAWS or isnan(difference.p) or difference.p * DRAWS > FEW_DRAWS:
            return difference.p
        return self.runs[run].by_metric[metric].difference(method, self.reference, min(draws, MOST_DRAWS)).p

    @cached_property
    def ranks(self) -> dict[str, list[float]]:
        """By method, its rank by every metric of every evaluation: 0 is the best of all methods, 1 the worst."""
        ranks: dict[str, list[float]] = {method: [] for method in self.methods}
        for run in self.runs.values():
            for metric in run.metrics.values():
                values = {method: run.cells[metric.name, method].estimate.value for method in run.methods}
                rated = {method: -metric.goodness(value) for method, value in values.items() if not isnan(value)}
                if len(rated) > 1:
                    places = (rankdata([*rated.values()]) - 1) / (len(rated) - 1)
                    for method, place in zip(rated, places, strict=True):
                        ranks[method].append(float(place))
        return ranks

    def cost(self, method: str, what: str) -> float:
        """The median over evaluations of the median over prompts."""
        costs = [float(run.costs.to_dict()[what][method]) for run in self.runs.values() if method in run.costs.index]
        return median(costs) if costs else float("nan")

    def row(self, method: str) -> dict[str, Any]:
        own = [each for each in self.comparisons.values() if each.method == method]
        return {
            "method": method,
            "rank": fmean(self.ranks[method]) if self.ranks[method] else float("nan"),
            "ranked": len(self.ranks[method]),
            "better": sum(each.verdict > 0 for each in own),
            "worse": sum(each.verdict < 0 for each in own),
            "compared": len(own),
            "worth": self.cost(method, "worth"),
            "seconds": self.cost(method, "seconds"),
        }

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """A row for every method, the best first."""
        return sorted(map(self.row, self.methods), key=lambda row: (isnan(row["rank"]), row["rank"]))

    @cached_property
    def cells(self) -> list[dict[str, Any]]:
        """A row for every method by every metric of every evaluation."""
        places = [(run, metric, method) for run in self.runs for metric in self.metrics for method in self.methods]
        return [self._cell_row(*place) for place in places if self.cell(*place) is not None]

    def _cell_row(self, run: str, metric: str, method: str) -> dict[str, Any]:
        cell, comparison = self.cell(run, metric, method), self.comparisons.get((run, metric, method))
        assert cell is not None
        return {
            **{"evaluation": run, "metric": metric, "method": method},
            **{"value": cell.estimate.value, "low": cell.estimate.low, "high": cell.estimate.high},
            "n": cell.estimate.n,
            "p": comparison.p if comparison else None,
            "verdict": comparison.verdict if comparison else 0,
        }


def write_leaderboard(board: Leaderboard, folder: Path) -> list[Path]:
    """Write the tables, a page and a figure into a folder."""
    check_extra("matplotlib", "a leaderboard, which has a figure,")
    pass

    drawn = Figure("leaderboard", ranks_by_cost(board.rows), "Mean rank of every method against its cost")
    blocks = [*_document(board, drawn)]
    texts = {
        "leaderboard.md": markdown(blocks),
        "leaderboard.html": page("Leaderboard", blocks),
        "leaderboard.csv": sheet(pd.DataFrame(map(_written, board.cells), dtype=object)),
    }
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    return [write_atomically(folder / name, data) for name, data in {**texts, **drawn.files}.items()]


def _written(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: results.digits(value) if isinstance(value, float | None) else value for name, value in row.items()}


def _title(of: Summary) -> str:
    options = results.options(of.run.get("suite_options") or {})
    split = f" ({of.run['split']})" if of.run.get("split") else ""
    budget = f", at most {of.run['budget']:g} forwards" if of.run.get("budget") else ""
    with_options = f", {options}" if options != "none" else ""
    return f"{of.run.get('suite', 'prompts')}{split}{with_options} on {of.run.get('model', 'a model')}{budget}"


def _names(titles: Sequence[str], folders: Sequence[Path]) -> list[str]:
    """Titles, with their folder where two are the same: as much of its path as tells it apart."""
    short = [folder.name for folder in folders]
    shown = short if len({*short}) == len(short) else [*map(str, folders)]
    return [
        f"{title} [{folder}]" if titles.count(title) > 1 else title for title, folder in zip(titles, shown, strict=True)
    ]


# ------------------------------------------------------------------------------------------------------- the document
def _document(board: Leaderboard, drawn: Figure) -> Iterator[Block]:
    yield Heading("Leaderboard", 1)
    yield Paragraph(f"Methods are compared with {board.reference}, on the same prompts.")
    yield Table(["evaluation", "prompts"], [[name, str(len(run.templates))] for name, run in board.runs.items()])
    yield Heading("All metrics of all evaluations")
    yield _standings(board)
    yield Notes([*_legend(board)])
    yield Heading("Cost against quality")
    yield drawn
    for metric, title in board.metrics.items():
        yield Heading(title, 3)
        yield _metric_table(board, metric)


def _standings(board: Leaderboard) -> Table:
    columns = ["method", "mean rank", "metrics", "better", "worse", "may be chance", "forwards", "seconds"]
    return Table(columns, [_standing(board, row) for row in board.rows])


def _standing(board: Leaderboard, row: Mapping[str, Any]) -> list[str]:
    against = [str(row["better"]), str(row["worse"]), str(row["compared"] - row["better"] - row["worse"])]
    if row["method"] == board.reference:
        against = ["the reference", "", ""]
    costs = ["none" if isnan(row[what]) else f"{row[what]:.3g}" for what in ("worth", "seconds")]
    rank = "none" if isnan(row["rank"]) else f"{row['rank']:.2f}"
    return [row["method"], rank, str(row["ranked"]), *against, *costs]


def _legend(board: Leaderboard) -> Iterator[str]:
    count = len(board.comparisons)
    yield "Mean rank: 0 is the best of all methods by every metric, 1 the worst of all; metrics: over how many."
    yield (
        f"Better, worse ({BETTER}, {WORSE} below): than {board.reference}, p < {SIGNIFICANT:g} after Holm's correction "
        f"for all {count} comparisons. Everything else may be chance."
    )
    yield (
        "Forwards: what a prompt takes, where a backward, or a Hessian–vector product, counts as two. Medians over "
        "prompts, then over evaluations."
    )
    yield "Metrics are not independent: several measure nearly the same, and each counts here."


def _metric_table(board: Leaderboard, metric: str) -> Table:
    having = [run for run, of in board.runs.items() if metric in of.metrics]
    heads = [f"{run} ({board.runs[run].metrics[metric].better} is better)" for run in having]
    rows = [[method, *(_shown(board, run, metric, method) for run in having)] for method in board.methods]
    return Table(["method", *heads], [row for row in rows if any(row[1:])])


def _shown(board: Leaderboard, run: str, metric: str, method: str) -> str:
    cell = board.cell(run, metric, method)
    if cell is None:
        return ""
    if isnan(cell.estimate.value):
        return "none"
    comparison = board.comparisons.get((run, metric, method))
    sign = {1: f"{BETTER} ", -1: f"{WORSE} ", 0: ""}[comparison.verdict if comparison else 0]
    return f"{sign}{results.with_interval(cell.estimate)}"
