"""A reproduced table as Markdown, the paper's figures beside ours, and as CSV with a cell a line."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import inf, isfinite, isinf, isnan
from string import ascii_lowercase

from heta_lens.evaluation import wording
from heta_lens.evaluation.document import Block as Part
from heta_lens.evaluation.document import Heading, Notes, Paragraph, Table, markdown, sheet
from heta_lens.evaluation.reproduce.cells import Figure
from heta_lens.evaluation.reproduce.paper import Place, Printed
from heta_lens.evaluation.statistics import Estimate

COLUMNS = ("block", "row", "column", "paper", "ours", "low", "high", "n", "note")
NEEDS = "needs --model"


@dataclass(frozen=True)
class Found:
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

    def paper(self, place: Place) -> str:
        """Nothing, in a block of our own."""
        for block in self.printed.blocks:
            if block.model == place.model:
                return block.rows[place.row][self.printed.columns.index(place.column)]
        return ""

    def notes_of(self, place: Place) -> tuple[str, ...]:
        """On our side."""
        if place in self.ours:
            return self.ours[place].notes
        hub = next(block.hub for block in self.printed.blocks if block.model == place.model)
        return (f"{NEEDS} {hub}",)

    def figure(self, place: Place) -> Figure:
        return self.ours.get(place, Figure(None))


def written(found: Found) -> str:
    marks = _Marks()
    tables = [*_tables(found, marks)]
    parts = [
        Heading(found.printed.title, 1),
        Paragraph(found.printed.about),
        *map(Paragraph, found.about),
        *tables,
        Notes([*_legend(found), *marks.told(), *found.notes]),
    ]
    return markdown(parts)


def _legend(found: Found) -> Iterator[str]:
    yield (
        "Ours: in brackets the 95 % interval, by the bootstrap over templates of prompts. One without width means that "
        "all agree, not that more would."
    )
    if any(isinf(end) for one in found.ours.values() if one.told for end in (one.told.low, one.told.high)):
        yield "An end is infinite where some of the prompts, drawn again, give the logarithm of 0."
    if found.printed.impossible:
        yield "*: the printed figure cannot be, for the reason of its number."
    if any(place not in found.ours for place, _ in found.printed.figures()):
        hubs = dict.fromkeys(block.hub for block in found.printed.blocks if not _has(found, block.model))
        yield f"{NEEDS}: only that model can fill the cell, as --model {', --model '.join(hubs)}."


def _has(found: Found, model: str) -> bool:
    return any(place.model == model for place in found.ours)


@dataclass
class _Marks:
    """Numbers for what cannot be, letters for what there is to say of ours, in the order they are needed."""

    impossible: dict[str, str] = field(default_factory=dict)
    said: dict[str, str] = field(default_factory=dict)

    def star(self, reasons: Sequence[str]) -> str:
        numbers = [self.impossible.setdefault(reason, str(len(self.impossible) + 1)) for reason in reasons]
        return f"*{','.join(sorted(numbers))}" if numbers else ""

    def letters(self, notes: Sequence[str]) -> str:
        found = [self.said.setdefault(note, _letter(len(self.said))) for note in notes]
        return f" ({', '.join(found)})" if found else ""

    def told(self) -> list[str]:
        stars = [f"*{number}: {reason}." for reason, number in self.impossible.items()]
        return [*stars, *(f"({letter}) {note}" for note, letter in self.said.items())]


def _letter(number: int) -> str:
    return (_letter(number // 26 - 1) if number >= 26 else "") + ascii_lowercase[number % 26]


def _tables(found: Found, marks: _Marks) -> Iterator[Part]:
    printed = found.printed
    if printed.across:
        heads = [(model, column) for model in found.blocks for column in printed.columns]
        yield _table(found, marks, heads, lambda model, _: model)
        return
    for model in found.blocks:
        yield Heading(model if printed.named else f"{model} in the paper, {found.model} here")
        yield _table(found, marks, [(model, column) for column in printed.columns], lambda _, column: column)


def _table(found: Found, marks: _Marks, heads: Sequence[tuple[str, str]], name: Callable[[str, str], str]) -> Table:
    columns, rows = [""], [[row] for row in found.printed.rows]
    for model, column in heads:
        beside = model != found.own
        columns += [f"{name(model, column)}: paper"] * beside + [f"{name(model, column)}: ours"]
        for row in rows:
            place = Place(model, row[0], column)
            if beside:
                row.append(found.paper(place) + marks.star(found.printed.impossible.get(place, ())))
            row.append(_ours(found, place, marks))
    columns[0] = "row"
    return Table(columns, rows)


def _ours(found: Found, place: Place, marks: _Marks) -> str:
    if place not in found.ours:
        return NEEDS
    figure = found.ours[place]
    if figure.told is None:
        text = NEEDS if any(note.startswith(NEEDS) for note in figure.notes) else "none"
    else:
        text = _with_interval(figure.told)
    return text + marks.letters(figure.notes)


def _with_interval(told: Estimate) -> str:
    if not 100 <= abs(told.value) < inf:
        return wording.with_interval(told)
    ends = f" [{told.low:,.0f}, {told.high:,.0f}]" if isfinite(told.low) else ""
    return f"{told.value:,.0f}{ends}"


def tidy(found: Found) -> str:
    """Every cell in a line: what has no number says why in its note."""
    places = product(found.blocks, found.printed.rows, found.printed.columns)
    return sheet(COLUMNS, (_line(found, Place(*place)) for place in places))


def _line(found: Found, place: Place) -> Sequence[object]:
    told, paper = found.figure(place).told, found.paper(place)
    numbers = ["", "", "", 0] if told is None else [*map(_digits, (told.value, told.low, told.high)), told.n]
    stars = [f"the printed figure cannot be: {reason}" for reason in found.printed.impossible.get(place, ())]
    notes = [*([] if paper else ["not in the paper"]), *stars, *found.notes_of(place)]
    return (*place, paper, *numbers, "; ".join(notes))


def _digits(value: float) -> str:
    return "" if isnan(value) else f"{value:.6g}"
