"""Tables of texts for terminals, printed by `rich`."""

from collections.abc import Collection, Iterable, Sequence

from rich.table import Table
from rich.text import Text

from heta_lens._util.text import legible


def text_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    right: Collection[str] = (),
    *,
    header: bool = True,
    bold: Collection[tuple[int, int]] = (),
) -> Table:
    """Return a table of texts, without characters to steer the terminal.

    ``right`` are columns of numbers, ``bold`` the row and the column of each bold cell.
    """
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=header)
    for name in columns:
        table.add_column(Text(legible(name)), justify="right" if name in right else "left", overflow="fold")
    for number, cells in enumerate(rows):
        styles = ["bold" if (number, column) in bold else "" for column in range(len(columns))]
        texts = [legible(cell, keep="\n").replace("\t", "→") for cell in cells]
        table.add_row(*map(Text, texts, styles))
    return table
