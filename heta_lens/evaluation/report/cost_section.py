"""The cost of methods in a report: a table, a figure and ``costs.csv``."""

from collections.abc import Iterator

import pandas as pd

from heta_lens.evaluation.report import phrases
from heta_lens.evaluation.report.document import Block, Figure, Heading, Paragraph, Table
from heta_lens.evaluation.report.metric_description import Measure
from heta_lens.evaluation.report.summary_tables import Summary


def cost_section(results: Summary, metric: Measure, drawn: Figure) -> Iterator[Block]:
    from heta_lens.evaluation.report.figures import placed

    yield Heading("Cost")
    yield Paragraph(
        "Medians per prompt (worth: a backward, or a Hessian–vector product (HVP), counts as two forwards); seconds "
        "also with the 10th and 90th percentile. Seconds depend on the machine and differ from run to run; nothing "
        "above does."
    )
    yield drawn
    if hidden := [method for method in results.methods if method not in placed(results, metric)]:
        yield Paragraph(f"Not in the figure, without a finite value or a time: {', '.join(hidden)}.")
    yield Table(
        ["method", "seconds", "forwards", "backwards", "HVPs", "worth in forwards", "tokens", "n"],
        [[method, *_row(results.costs, method)] for method in results.methods],
    )


def _row(costs: pd.DataFrame, method: str) -> list[str]:
    if method not in costs.index:
        return ["none (not known, or no instance succeeded)", *[""] * 6]
    cost = costs.loc[method]
    seconds = f"{cost.seconds:.3g} [{cost.seconds_p10:.3g}, {cost.seconds_p90:.3g}]"
    runs = (f"{cost[name]:g}" for name in ("forwards", "backwards", "hvps", "worth", "tokens"))
    return [seconds, *runs, f"{cost.n:.0f}"]


def cost_table(results: Summary) -> pd.DataFrame:
    """``costs.csv``: a row for every method."""
    costs = results.costs.reindex([*results.methods])
    counts = costs["n"].fillna(0).astype(int)
    return costs.map(phrases.digits).assign(n=counts).reset_index(names="method")
