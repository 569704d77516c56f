"""A table of texts in the terminal; where it is too narrow for the columns, each row as a list."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

GAP = 2  # cells after each column
FOLDED = 24  # to how many cells a column of longer texts may shrink; numbers never do


@dataclass(frozen=True)
class TextTable:
    """Rows for `rich` to print; columns whose places are in ``right`` are numbers."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Text]]
    right: frozenset[int] = frozenset()
    header: bool = True

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        least = sum(min(width, FOLDED) if self.folds[at] else width for at, width in enumerate(self.widths))
        fits = least + GAP * (len(self.columns) - 1) <= options.max_width
        yield from [self._table()] if fits else self._lists()

    @cached_property
    def widths(self) -> list[int]:
        """The most cells of a line in each column."""
        names = self.columns if self.header else [""] * len(self.columns)
        cells = ([Text(name), *(row[at] for row in self.rows)] for at, name in enumerate(names))
        return [max(cell_len(line) for text in column for line in text.plain.split("\n")) for column in cells]

    @cached_property
    def folds(self) -> list[bool]:
        """Whether each column's texts may be broken into lines."""
        return [at not in self.right and at > 0 and width > FOLDED for at, width in enumerate(self.widths)]

    def _table(self) -> Table:
        table = Table(box=None, padding=(0, GAP, 0, 0), show_header=self.header)
        for at, name in enumerate(self.columns):
            side = "right" if at in self.right else "left"
            table.add_column(Text(name), justify=side, no_wrap=not self.folds[at], overflow="fold")
        for row in self.rows:
            table.add_row(*row)
        return table

    def _lists(self) -> Iterator[RenderableType]:
        """For each row a line for each cell with its column's name, and the long texts below, indented."""
        from heta_lens.plots.terminal_table import block

        short = [at for at, folds in enumerate(self.folds) if not folds]
        names = [self.columns[at] * self.header for at in short]
        for number, row in enumerate(self.rows):
            if number:
                yield Text()
            yield block(names, [row[at].plain for at in short])
            yield from (Padding(cell, (0, 0, 0, GAP)) for at, cell in enumerate(row) if self.folds[at] and cell.plain)


def text_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = (), *, header: bool = True
) -> TextTable:
    """A table of texts that cannot steer the terminal."""
    from heta_lens._util.printable_text import legible

    cells = [[Text(legible(cell, keep="\n")) for cell in row] for row in rows]
    names = [legible(column) for column in columns]
    return TextTable(names, cells, frozenset(at for at, name in enumerate(columns) if name in right), header)
