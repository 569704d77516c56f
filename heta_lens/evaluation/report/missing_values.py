"""What is missing in a report: how many instances have no value, and why."""

from collections.abc import Iterator, Sequence

import pandas as pd

from heta_lens.evaluation.report.document import Block, Paragraph, Table
from heta_lens.evaluation.report.summary_tables import Summary


def missing_values(results: Summary) -> Iterator[Block]:
    """What is missing, a row for each reason and number of instances: first by method, then methods together."""
    of_method: dict[tuple[str, str, int], list[str]] = {}
    for name, method, reason, count in _rows(results):
        of_method.setdefault((method, reason, count), []).append(results.metrics[name].title)
    of_all: dict[tuple[str, int, str], list[str]] = {}
    for (method, reason, count), titles in of_method.items():
        of_all.setdefault((reason, count, _listed(titles, len(results.metrics))), []).append(method)
    rows = [
        [reason, titles, _listed(methods, len(results.methods)), str(count)]
        for (reason, count, titles), methods in of_all.items()
    ]
    if rows:
        yield Table(["reason", "metrics", "methods", "instances"], rows, texts=3)
    else:
        yield Paragraph("Nothing: every method has a value of every metric on every instance.")


def _listed(names: Sequence[str], whole: int) -> str:
    return "all" if len(names) == whole else ", ".join(names)


def missing_reasons(results: Summary) -> pd.DataFrame:
    """``missing.csv``: the number of instances by reason; a reason that all metrics share counts once for each."""
    return pd.DataFrame(_rows(results), columns=["metric", "method", "reason", "instances"], dtype=object)


def _rows(results: Summary) -> Iterator[tuple[str, str, str, int]]:
    for (name, method), cell in results.cells.items():
        for reason, count in cell.why.items():
            yield name, method, reason, count
