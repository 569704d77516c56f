"""A reproduced table as Markdown, with the paper's figures beside ours, and as CSV with a line per cell."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import pandas as pd

from heta_lens.evaluation.report import results as wording
from heta_lens.evaluation.report.document import Block as Part
from heta_lens.evaluation.report.document import Footnotes, Heading, Notes, Paragraph, Table, markdown, sheet
from heta_lens.evaluation.reproduce.cells import Figure, Place, Printed

NEEDS = "needs --model"


@dataclass(frozen=True)
class ReproducedTable:
    """A reproduced table.

    ``ours`` are our figures by place, of the model ``model``. ``own`` names a block that the paper does not have, and
    is empty if our figures fill a printed block.
    """

    printed: Printed
    ours: Mapping[Place, Figure]
    own: str
    model: str
    about: Sequence[str]
    notes: Sequence[str]

    @property
    def blocks(self) -> list[str]:
        return [*([self.own] if self.own else []), *(block.model for block in self.printed.blocks)]

    @cached_property
    def paper(self) -> Mapping[Place, str]:
        """The printed figures, by place."""
        return dict(self.printed.figures())


def written(table: ReproducedTable) -> str:
    """Write the table as Markdown."""
    notes = Footnotes()
    tables = [*_tables(table, notes)]
    parts = [
        Heading(table.printed.title, 1),
        Paragraph(table.printed.about),
        *map(Paragraph, table.about),
        *tables,
        Notes([*_legend(table), *notes.lines(), *table.notes]),
    ]
    return markdown(parts)


def _legend(table: ReproducedTable) -> Iterator[str]:
    yield (
        "Ours: in brackets the 95 % interval, by the bootstrap over templates of prompts. One without width means that "
        "all agree, not that more would."
    )
    filled = {place.model for place in table.ours}
    if hubs := dict.fromkeys(block.hub for block in table.printed.blocks if block.model not in filled):
        yield f"{NEEDS}: only that model can fill the cell, as --model {', --model '.join(hubs)}."


def _tables(table: ReproducedTable, notes: Footnotes) -> Iterator[Part]:
    printed = table.printed
    if printed.across:
        yield _table(table, notes, {model: (model, column) for model in table.blocks for column in printed.columns})
        return
    for model in table.blocks:
        yield Heading(model if printed.named else f"{model} in the paper, {table.model} here")
        yield _table(table, notes, {column: (model, column) for column in printed.columns})


def _table(table: ReproducedTable, notes: Footnotes, heads: Mapping[str, tuple[str, str]]) -> Table:
    """Make the table of a block, or of all blocks; ``heads`` are the models and columns under their headings."""
    frame = pd.DataFrame({"row": table.printed.rows})
    for head, (model, column) in heads.items():
        places = [Place(model, row, column) for row in table.printed.rows]
        if model != table.own:
            impossible = [table.printed.impossible.get(place, ()) for place in places]
            frame[f"{head}: paper"] = [
                table.paper[place] + notes.marks([f"the printed figure cannot be: {reason}" for reason in reasons])
                for place, reasons in zip(places, impossible, strict=True)
            ]
        frame[f"{head}: ours"] = [_ours(table, place, notes) for place in places]
    return Table([*frame.columns], frame.to_numpy().tolist())


def _ours(table: ReproducedTable, place: Place, notes: Footnotes) -> str:
    if place not in table.ours:
        return NEEDS
    figure = table.ours[place]
    return (wording.with_interval(figure.estimate) if figure.estimate else "none") + notes.marks(figure.notes)


def tidy(table: ReproducedTable) -> str:
    """Write the table as CSV with a line per cell; the note of a cell without a number has the reason."""
    places = product(table.blocks, table.printed.rows, table.printed.columns)
    return sheet(pd.DataFrame([_line(table, Place(*place)) for place in places]))


def _line(table: ReproducedTable, place: Place) -> dict[str, object]:
    hubs = {block.model: block.hub for block in table.printed.blocks}
    figure = table.ours.get(place) or Figure(None, (f"{NEEDS} {hubs[place.model]}",))
    paper, estimate = table.paper.get(place, ""), figure.estimate
    stars = [f"the printed figure cannot be: {reason}" for reason in table.printed.impossible.get(place, ())]
    return {
        "block": place.model,
        "row": place.row,
        "column": place.column,
        "paper": paper,
        "ours": estimate and estimate.value,
        "low": estimate and estimate.low,
        "high": estimate and estimate.high,
        "n": estimate.n if estimate else 0,
        "note": "; ".join([*([] if paper else ["not in the paper"]), *stars, *figure.notes]),
    }
