"""A reproduced table as Markdown, with the paper's figures beside ours, and as CSV with one cell per line."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from math import inf, isfinite, isinf

import pandas as pd

from heta_lens.evaluation.report import results
from heta_lens.evaluation.report.document import Block as Part
from heta_lens.evaluation.report.document import Footnotes, Heading, Notes, Paragraph, Table, markdown, sheet
from heta_lens.evaluation.reproduce.cells import Figure, Place, Printed
from heta_lens.evaluation.statistics import Estimate

NEEDS = "needs --model"


@dataclass(frozen=True)
class ReproducedTable:
    """A table as it was made here: of ``printed`` the figures by place.

    ``own`` names a block that the paper does not have, ``model`` is what ours are of.
    """

    printed: Printed
    ours: Mapping[Place, Figure]
    own: str
    model: str
    about: Sequence[str]
    notes: Sequence[str]

    @property
    def blocks(self) -> Iterator[str]:
        if self.own:
            yield self.own
        yield from (block.model for block in self.printed.blocks)

    @cached_property
    def paper(self) -> Mapping[Place, str]:
        """The printed figures; none in a block of our own."""
        return dict(self.printed.figures())

    def notes_of(self, place: Place) -> tuple[str, ...]:
        """Notes on our figure."""
        if place in self.ours:
            return self.ours[place].notes
        hub = next(block.hub for block in self.printed.blocks if block.model == place.model)
        return (f"{NEEDS} {hub}",)

    def figure(self, place: Place) -> Figure:
        return self.ours.get(place, Figure(None))


def written(table: ReproducedTable) -> str:
    marks = _Marks()
    tables = [*_tables(table, marks)]
    parts = [
        Heading(table.printed.title, 1),
        Paragraph(table.printed.about),
        *map(Paragraph, table.about),
        *tables,
        Notes([*_legend(table), *marks.notes(), *table.notes]),
    ]
    return markdown(parts)


def _legend(table: ReproducedTable) -> Iterator[str]:
    yield (
        "Ours: in brackets the 95 % interval, by the bootstrap over templates of prompts. One without width means that "
        "all agree, not that more would."
    )
    if any(isinf(end) for one in table.ours.values() if one.estimate for end in (one.estimate.low, one.estimate.high)):
        yield "An end is infinite where prompts are so few or so alike, or effects so small, that they give no bound."
    if table.printed.impossible:
        yield "*: the printed figure is impossible; the number gives the reason."
    if any(place not in table.ours for place, _ in table.printed.figures()):
        hubs = dict.fromkeys(block.hub for block in table.printed.blocks if not _has(table, block.model))
        yield f"{NEEDS}: only that model can fill the cell, as --model {', --model '.join(hubs)}."


def _has(table: ReproducedTable, model: str) -> bool:
    return any(place.model == model for place in table.ours)


@dataclass
class _Marks:
    """Numbers for impossible figures, letters for notes on ours, in the order they are needed."""

    impossible: dict[str, str] = field(default_factory=dict)
    said: Footnotes = field(default_factory=Footnotes)

    def star(self, reasons: Sequence[str]) -> str:
        numbers = [self.impossible.setdefault(reason, str(len(self.impossible) + 1)) for reason in reasons]
        return f"*{','.join(sorted(numbers))}" if numbers else ""

    def letters(self, notes: Sequence[str]) -> str:
        letters = map(self.said.letter, notes)
        return f" ({', '.join(letters)})" if notes else ""

    def notes(self) -> list[str]:
        stars = [f"*{number}: {reason}." for reason, number in self.impossible.items()]
        return [*stars, *self.said.lines()]


def _tables(table: ReproducedTable, marks: _Marks) -> Iterator[Part]:
    printed = table.printed
    if printed.across:
        heads = {model: (model, column) for model in table.blocks for column in printed.columns}
        yield _table(table, marks, heads)
        return
    for model in table.blocks:
        yield Heading(model if printed.named else f"{model} in the paper, {table.model} here")
        yield _table(table, marks, {column: (model, column) for column in printed.columns})


def _table(table: ReproducedTable, marks: _Marks, heads: Mapping[str, tuple[str, str]]) -> Table:
    """The figures of one block, or of all; ``heads`` has models and columns, by what their columns are called."""
    frame = pd.DataFrame({"row": table.printed.rows})
    for head, (model, column) in heads.items():
        places = [Place(model, row, column) for row in table.printed.rows]
        if model != table.own:
            frame[f"{head}: paper"] = [_paper(table, place, marks) for place in places]
        frame[f"{head}: ours"] = [_ours(table, place, marks) for place in places]
    return Table.of(frame)


def _paper(table: ReproducedTable, place: Place, marks: _Marks) -> str:
    return table.paper[place] + marks.star(table.printed.impossible.get(place, ()))


def _ours(table: ReproducedTable, place: Place, marks: _Marks) -> str:
    if place not in table.ours:
        return NEEDS
    figure = table.ours[place]
    if figure.estimate is None:
        text = NEEDS if any(note.startswith(NEEDS) for note in figure.notes) else "none"
    else:
        text = _with_interval(figure.estimate)
    return text + marks.letters(figure.notes)


def _with_interval(estimate: Estimate) -> str:
    if not 100 <= abs(estimate.value) < inf:
        return results.with_interval(estimate)
    ends = f" [{estimate.low:,.0f}, {estimate.high:,.0f}]" if isfinite(estimate.low) else ""
    return f"{estimate.value:,.0f}{ends}"


def tidy(table: ReproducedTable) -> str:
    """One cell per line; one without a number has the reason in its note."""
    places = product(table.blocks, table.printed.rows, table.printed.columns)
    return sheet(pd.DataFrame([_line(table, Place(*place)) for place in places], dtype=object))


def _line(table: ReproducedTable, place: Place) -> dict[str, object]:
    estimate, paper = table.figure(place).estimate, table.paper.get(place, "")
    stars = [f"the printed figure cannot be: {reason}" for reason in table.printed.impossible.get(place, ())]
    notes = [*([] if paper else ["not in the paper"]), *stars, *table.notes_of(place)]
    return {
        "block": place.model,
        "row": place.row,
        "column": place.column,
        "paper": paper,
        "ours": results.digits(estimate and estimate.value),
        "low": results.digits(estimate and estimate.low),
        "high": results.digits(estimate and estimate.high),
        "n": estimate.n if estimate else 0,
        "note": "; ".join(notes),
    }
