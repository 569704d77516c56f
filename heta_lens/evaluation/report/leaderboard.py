"""Several evaluations side by side: wins, losses and ranks of every method over the evaluations, and costs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import ceil, isnan
from pathlib import Path
from typing import Any

import pandas as pd

from heta_lens._util.files import write_atomically
from heta_lens._util.python import check_extra
from heta_lens.evaluation.report import results as wording
from heta_lens.evaluation.report.document import Block, Figure, Heading, Notes, Paragraph, Table, markdown, page, sheet
from heta_lens.evaluation.report.folder_report import BETTER, WORSE
from heta_lens.evaluation.report.results import SIGNIFICANT, Summary, summary
from heta_lens.evaluation.statistics import DRAWS, Difference, corrected

SIGNS = {1: f"{BETTER} ", -1: f"{WORSE} ", 0: ""}
FEW_DRAWS = 10  # more extreme draws, below which a p is not known well
MOST_DRAWS = 64 * DRAWS


@dataclass(frozen=True)
class Leaderboard:
    """Evaluations by name, and the reference method that all other methods are compared with."""

    runs: Mapping[str, Summary]
    reference: str

    @classmethod
    def of(cls, folders: Sequence[Path]) -> "Leaderboard":
        """Read folders whose evaluations have the same reference."""
        summaries = [summary(folder) for folder in folders]
        references = {each.reference: folder for each, folder in zip(summaries, folders, strict=True)}
        if len(references) > 1:
            listed = "; ".join(f"{name} in {folder}" for name, folder in references.items())
            raise ValueError(f"the evaluations compare methods with different ones ({listed}): evaluate one in all")
        titles = [*map(_title, summaries)]
        names = [
            f"{title} [{folder}]" if titles.count(title) > 1 else title
            for title, folder in zip(titles, folders, strict=True)
        ]
        return cls(dict(zip(names, summaries, strict=True)), *references)

    @cached_property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(method for run in self.runs.values() for method in run.methods))

    @cached_property
    def metrics(self) -> dict[str, str]:
        """The titles of all metrics, by name."""
        return {name: metric.title for run in self.runs.values() for name, metric in run.metrics.items()}

    @cached_property
    def cells(self) -> list[dict[str, Any]]:
        """The rows of ``leaderboard.csv``: a row per evaluation, metric and method.

        ``p`` is that of the difference from the reference, with Holm's correction for all differences. ``verdict`` is 1
        for a better method, -1 for a worse method, and 0 if chance may explain the difference.
        """
        keys = [key for key in product(self.runs, self.metrics, self.methods) if key[1:] in self.runs[key[0]].cells]
        found = {key: self.runs[key[0]].cells[key[1:]] for key in keys}
        differences = {key: each for key, cell in found.items() if (each := cell.difference) and each.n}
        p_values = [self._p(key, each, len(differences)) for key, each in differences.items()]
        by_key = dict(zip(differences, corrected(p_values), strict=True))
        rows = []
        for key, cell in found.items():
            row: dict[str, Any] = dict(zip(("evaluation", "metric", "method"), key, strict=True))
            row |= {name: getattr(cell.estimate, name) for name in ("value", "low", "high", "n")}
            verdict = self.runs[key[0]].metrics[key[1]].verdict(cell.difference, by_key.get(key))
            rows.append({**row, "p": by_key.get(key), "verdict": verdict})
        return rows

    def _p(self, key: tuple[str, str, str], difference: Difference, comparisons: int) -> float:
        """Return the p of a comparison, with more draws if few draws could not tell the correction from chance."""
        run, metric, method = key
        draws = 8 * ceil(comparisons / SIGNIFICANT)
        if draws <= DRAWS or isnan(difference.p) or difference.p * DRAWS > FEW_DRAWS:
            return difference.p
        return self.runs[run].by_metric[metric].difference(method, self.reference, min(draws, MOST_DRAWS)).p

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """The standings: a row per method, the best method first.

        A rank is 0 for the best of all methods by a metric of an evaluation, and 1 for the worst. Costs are medians
        over evaluations of the medians over prompts.
        """
        cells: Any = pd.DataFrame(self.cells)
        goodness = [self.runs[cell.evaluation].metrics[cell.metric].goodness(cell.value) for cell in cells.itertuples()]
        by_metric = cells.assign(goodness=goodness).groupby(["evaluation", "metric"])["goodness"]
        others = by_metric.transform("count") - 1
        ranked = cells.assign(
            rank=(by_metric.rank(ascending=False) - 1) / others.where(others > 0),
            better=cells["verdict"] == 1,
            worse=cells["verdict"] == -1,
        )
        standings = ranked.groupby("method", sort=False).agg(
            rank=("rank", "mean"),
            ranked=("rank", "count"),
            better=("better", "sum"),
            worse=("worse", "sum"),
            compared=("p", "count"),
        )
        costs = pd.concat([run.costs[["worth", "seconds"]] for run in self.runs.values()]).groupby(level=0).median()
        return standings.join(costs).reset_index().sort_values("rank", kind="stable").to_dict("records")


def _title(of: Summary) -> str:
    run = of.run
    options = f", {wording.options(run['suite_options'])}" if run.get("suite_options") else ""
    split = f" ({run['split']})" if run.get("split") else ""
    budget = f", at most {run['budget']:g} forwards" if run.get("budget") else ""
    return f"{run.get('suite', 'prompts')}{split}{options} on {run.get('model', 'a model')}{budget}"


def write_leaderboard(board: Leaderboard, folder: Path) -> list[Path]:
    """Write tables, a page and a figure into a folder, and return the files."""
    check_extra("matplotlib", "a leaderboard, which has a figure,")
    from heta_lens.evaluation.report.figures import ranks_by_cost  # matplotlib is slow to import

    figure = Figure("leaderboard", *ranks_by_cost(board.rows), "Mean rank of every method against its cost")
    blocks = [*_document(board, figure)]
    texts = {
        "leaderboard.md": markdown(blocks),
        "leaderboard.html": page("Leaderboard", blocks),
        "leaderboard.csv": sheet(pd.DataFrame(board.cells)),
    }
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    return [write_atomically(folder / name, data) for name, data in {**texts, **figure.files}.items()]


def _document(board: Leaderboard, figure: Figure) -> Iterator[Block]:
    yield Heading("Leaderboard", 1)
    yield Paragraph(f"Methods are compared with {board.reference}, on the same prompts.")
    yield Table(["evaluation", "prompts"], [[name, str(len(run.templates))] for name, run in board.runs.items()])
    yield Heading("All metrics of all evaluations")
    yield from standings(board)
    yield Heading("Cost against quality")
    yield figure
    for metric, title in board.metrics.items():
        yield Heading(title, 3)
        yield _metric_table(board, metric)


def standings(board: Leaderboard) -> Iterator[Block]:
    """Yield the table of ranks, the best method first, and notes on the columns."""
    columns = ["method", "mean rank", "metrics", "better", "worse", "may be chance", "forwards", "seconds"]
    yield Table(columns, [_standing(board, row) for row in board.rows])
    yield Notes([*_legend(board)])


def _standing(board: Leaderboard, row: Mapping[str, Any]) -> list[str]:
    compared = [str(row["better"]), str(row["worse"]), str(row["compared"] - row["better"] - row["worse"])]
    if row["method"] == board.reference:
        compared = ["the reference", "", ""]
    costs = ["none" if isnan(row[kind]) else f"{row[kind]:.3g}" for kind in ("worth", "seconds")]
    rank = "none" if isnan(row["rank"]) else f"{row['rank']:.2f}"
    return [row["method"], rank, str(row["ranked"]), *compared, *costs]


def _legend(board: Leaderboard) -> Iterator[str]:
    yield "Mean rank: 0 is the best of all methods by every metric, 1 the worst of all; metrics: over how many."
    yield (
        f"Better, worse ({BETTER}, {WORSE} below): than {board.reference}, p < {SIGNIFICANT:g} after Holm's correction "
        f"for all {sum(row['p'] is not None for row in board.cells)} comparisons. Everything else may be chance."
    )
    yield (
        "Forwards: what a prompt takes, where a backward, or a Hessian–vector product, counts as two. Medians over "
        "prompts, then over evaluations."
    )
    yield "Metrics are not independent: several measure nearly the same, and each counts here."


def _metric_table(board: Leaderboard, metric: str) -> Table:
    having = {name: run for name, run in board.runs.items() if metric in run.metrics}
    heads = [f"{name} ({run.metrics[metric].better} is better)" for name, run in having.items()]
    cells: Any = pd.DataFrame([row for row in board.cells if row["metric"] == metric])
    cells["shown"] = [
        "none"
        if isnan(row.value)
        else SIGNS[row.verdict] + wording.with_interval(having[row.evaluation].cells[metric, row.method].estimate)
        for row in cells.itertuples()
    ]
    shown = cells.pivot(index="method", columns="evaluation", values="shown").fillna("")
    methods = [method for method in board.methods if method in shown.index]
    return Table(["method", *heads], [[method, *shown.loc[method, [*having]]] for method in methods])
