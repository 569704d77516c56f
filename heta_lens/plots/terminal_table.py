"""A table of text for a terminal, and the same as a list where the terminal is too narrow for its columns."""

from collections.abc import Sequence
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from heta_lens._util.printable_text import cut, single_line

WIDE = 40  # the most cells of a column
GAPS = ("  ", " ")  # between columns; the narrow one where room is short


class Column(NamedTuple):
    """A name, and a cell in every row; numbers are to the right."""

    name: str
    cells: Sequence[str]
    right: bool = False


def table(columns: Sequence[Column], width: int) -> Text:
    """Lines of at most ``width`` cells: a row each if they fit; else a block of lines each, with a column in a line."""
    padded = [_padded(column) for column in columns]
    for gap in GAPS:
        rows = [gap.join(cells).rstrip() for cells in zip(*padded, strict=True)]
        if max(map(cell_len, rows)) <= width:
            return _bold_first(rows)
    rows = zip(*(column.cells for column in columns), strict=True)
    blocks = (block([column.name for column in columns], cells, width) for cells in rows)
    return Text("\n\n").join(blocks)


def block(names: Sequence[str], cells: Sequence[str], width: int | None = None) -> Text:
    """A row as lines of a name and a cell each, without empty ones; cut at the width, or free to be folded."""
    longest = max(map(cell_len, names))
    gap = GAPS[0] if longest else ""
    lines = [
        set_cell_size(name, longest) + gap + single_line(cell).strip()
        for name, cell in zip(names, cells, strict=True)
        if cell
    ]
    if not lines:
        return Text()
    if width is not None:
        return _bold_first([cut(line, width) for line in lines])
    shown = _bold_first(lines)
    shown.no_wrap, shown.overflow = False, "fold"
    return shown


def _padded(column: Column) -> list[str]:
    """A column's name and its cells, all of one width."""
    shown = [cut(single_line(cell), WIDE) for cell in [column.name, *column.cells]]
    width = max(map(cell_len, shown))
    return [" " * (width - cell_len(cell)) + cell if column.right else set_cell_size(cell, width) for cell in shown]


def _bold_first(lines: Sequence[str]) -> Text:
    # One text of lines: for every cell of a table of its own, `rich` takes a millisecond.
    head, *rest = lines
    return Text("\n", no_wrap=True, overflow="ellipsis").join([Text(head, style="bold"), *map(Text, rest)])
