"""What the tables share: means with intervals, and how a table is shown and written down."""

from collections.abc import Iterable, Sequence

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.stats import binomtest, bootstrap

Rows = Sequence[Sequence[str]]


def average(values: np.ndarray, digits: int = 2) -> str:
    """A mean over prompts with its 95 % bootstrap interval."""
    if np.ptp(values) == 0:
        return f"{values.mean():.{digits}f}"
    interval = bootstrap((values,), np.mean, rng=np.random.default_rng(0), method="percentile").confidence_interval
    return f"{values.mean():.{digits}f} [{interval.low:.{digits}f}, {interval.high:.{digits}f}]"


def proportion(hits: np.ndarray, digits: int = 0) -> str:
    """A share with its 95 % Wilson interval; a dash where there is nothing to have a share of."""
    if not len(hits):
        return "–"
    interval = binomtest(int(hits.sum()), len(hits)).proportion_ci(method="wilson")
    return f"{hits.mean():.{digits}%} [{interval.low:.{digits}%}, {interval.high:.{digits}%}]"


def show(title: str, columns: Sequence[str], rows: Rows) -> None:
    table = Table(*columns, title=title)
    for cells in rows:
        table.add_row(*cells)
    Console(width=160).print(table)


def markdown(columns: Sequence[str], rows: Rows) -> str:
    lines: Iterable[Sequence[str]] = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |" for cells in lines)
