"""``heta-lens methods`` and ``heta-lens metrics``: what there is to choose from."""

import sys
from typing import TYPE_CHECKING, Any

from rich.table import Column, Table
from rich.text import Text

from heta_lens.cli.application import command
from heta_lens.cli.errors_and_messages import show
from heta_lens.cli.json_output import add

if TYPE_CHECKING:
    from heta_lens import Method


@command("metrics")
def list_metrics() -> None:
    """List the metrics: what each measures, which direction is better, what it costs beside the attribution."""
    from heta_lens.metrics import METRICS

    add(metrics=[{"name": name, **metric.about} for name, metric in METRICS.items()])
    table = _table("metric", "what it is", "better", "cost", "from")
    for name, metric in METRICS.items():
        cost = f"{metric.again} × the method" if metric.again else metric.cost
        _add_row(table, name, f"{metric.title}: {metric.variant}. {metric.source}.", metric.better, cost, metric.origin)
    show(table)


@command("methods")
def list_methods() -> None:
    """List the ways to explain a prediction: what each does, what it costs, what its scores mean."""
    from heta_lens import METHODS

    table = _table("method", "what it does", "cost", "scores", "from")
    listed = [_about(name, method) for name, method in METHODS.items()]
    add(methods=listed)
    for about in listed:
        described = f"{about['summary']} Adapted: {about['adapted']}." if about["adapted"] else about["summary"]
        sign = "±" if about["signed"] else "≥ 0"
        _add_row(table, about["name"], described, about["cost"], sign, about["origin"])
    show(Text("F: forwards, B: backwards, of N tokens and L layers. ±: above 0 speaks for the target.\n"))
    show(table)


def _about(name: str, method: "type[Method]") -> dict[str, Any]:
    from heta_lens import METHODS

    return {
        "name": name,
        "summary": _summary(method),
        "adapted": getattr(method, "adapted", ""),
        "cost": method.cost,
        "signed": method.signed,
        "family": METHODS.family(name),
        "origin": METHODS.origin(name),
    }


def _summary(method: type) -> str:
    """The first line of the file that a method is in."""
    return (sys.modules[method.__module__].__doc__ or "").partition("\n")[0]


def _table(first: str, *others: str) -> Table:
    return Table(Column(first, no_wrap=True), *others, box=None, padding=(0, 2, 0, 0))


def _add_row(table: Table, *cells: str) -> None:
    from heta_lens._util.printable_text import legible

    table.add_row(*(Text(legible(cell)) for cell in cells))
