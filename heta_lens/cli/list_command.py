"""``heta-lens methods`` and ``heta-lens metrics``: what there is to choose from."""

import sys

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from heta_lens.cli.application import command


@command("metrics")
def list_metrics() -> None:
    """List the metrics: what each measures, which direction is better, what it costs beside the attribution."""
    from heta_lens.metrics import METRICS

    table = _table("metric", "what it is", "better", "cost", "from")
    for name, metric in METRICS.items():
        cost = f"{metric.again} × the method" if metric.again else metric.cost
        _add_row(table, name, f"{metric.title}: {metric.variant}. {metric.source}.", metric.better, cost, metric.origin)
    Console().print(table)


@command("methods")
def list_methods() -> None:
    """List the ways to explain a prediction: what each does, what it costs, what its scores mean."""
    from heta_lens import METHODS

    table = _table("method", "what it does", "cost", "scores", "from")
    for name, method in METHODS.items():
        summary, adapted = _summary(method), getattr(method, "adapted", "")
        described = f"{summary} Adapted: {adapted}." if adapted else summary
        sign = "±" if method.signed else "≥ 0"
        _add_row(table, name, described, method.cost, sign, METHODS.origin(name))
    console = Console()
    console.print(Text("F: forwards, B: backwards, of N tokens and L layers. ±: above 0 speaks for the target.\n"))
    console.print(table)


def _summary(method: type) -> str:
    """The first line of the file that a method is in."""
    return (sys.modules[method.__module__].__doc__ or "").partition("\n")[0]


def _table(first: str, *others: str) -> Table:
    return Table(Column(first, no_wrap=True), *others, box=None, padding=(0, 2, 0, 0))


def _add_row(table: Table, *cells: str) -> None:
    from heta_lens._util.printable_text import legible

    table.add_row(*(Text(legible(cell)) for cell in cells))
