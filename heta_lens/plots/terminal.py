"""An attribution in a terminal: its tokens coloured by score and by each part, and the highest of them in numbers."""

from collections.abc import Collection, Sequence

from jaxtyping import Float
from rich.cells import cell_len, set_cell_size
from rich.console import Group
from rich.padding import Padding
from rich.text import Text
from torch import Tensor

from heta_lens._util.printable_text import legible
from heta_lens.attribution import Attribution
from heta_lens.plots.colours import shades, strips
from heta_lens.plots.message_shares import message_shares

WIDE = 40  # the most cells of a column


def terminal(attribution: Attribution, *, marked: Collection[int] = (), top: int = 8, coloured: bool = True) -> Group:
    """Something for `rich` to print: ``rich.print(terminal(attribution))``.

    ``marked`` positions are underlined; the ``top`` highest scores are listed, in the order of `Attribution.top`, and
    the messages of a chat. Where there are no colours, only the lists say something: ``coloured=False``.
    """
    views = [
        part
        for name, values in (strips(attribution) if coloured else {}).items()
        for part in (Text(legible(name), style="bold"), Padding(_coloured(attribution, values, marked), (0, 0, 1, 2)))
    ]
    return Group(
        Text(attribution.title, style="bold"),
        *(Text(legible(line)) for line in attribution.notes),
        Text(),
        *views,
        _table(attribution, top),
        *([] if attribution.messages is None else [Text(), _messages(attribution)]),
    )


def _coloured(attribution: Attribution, values: Float[Tensor, "pos"], marked: Collection[int]) -> Text:
    line = Text()
    rows = zip(attribution.tokens, attribution.positions.tolist(), shades(values), strict=True)
    for token, position, shade in rows:
        underline = " underline" if position in marked else ""
        line.append(legible(token, keep="\n"), style=f"#000000 on {shade.css}{underline}")
    return line


def _table(attribution: Attribution, top: int) -> Text:
    """The highest scores, in the order of `Attribution.top`."""
    highest, parts = attribution.top(top), strips(attribution)
    place = {position: row for row, position in enumerate(attribution.positions.tolist())}
    rows = [place[token.positions[0]] for token in highest]
    columns = [
        _column("position", [str(token.positions[0]) for token in highest]),
        _column("token", [repr(token.text) for token in highest]),
        *(
            _column(name, [f"{part:.4g}" for part in values[rows].tolist()], right=True)
            for name, values in parts.items()
        ),
    ]
    return _lines(columns)


def _messages(attribution: Attribution) -> Text:
    """Every message with its score, and how much of the whole score it holds."""
    shares = message_shares(attribution)
    columns = [
        _column("message", ["" if message.template else str(number) for number, message in enumerate(shares)]),
        _column("role", [message.role for message in shares]),
        _column("share", [message.percent for message in shares], right=True),
        _column("score", [f"{message.score:.4g}" for message in shares], right=True),
        _column("text", ["" if message.template else repr(message.text) for message in shares]),
    ]
    return _lines(columns)


def _lines(columns: Sequence[Sequence[str]]) -> Text:
    # One text of lines: for every cell of a table of its own, `rich` takes a millisecond.
    head, *lines = ("  ".join(cells) for cells in zip(*columns, strict=True))
    return Text("\n", no_wrap=True, overflow="ellipsis").join([Text(head, style="bold"), *map(Text, lines)])


def _column(name: str, cells: Sequence[str], *, right: bool = False) -> list[str]:
    """A column's name and its cells, all of one width."""
    shown = [legible(cell) for cell in [name, *cells]]
    width = min(WIDE, max(map(cell_len, shown)))
    cut = [cell if cell_len(cell) <= width else set_cell_size(cell, width - 1) + "…" for cell in shown]
    return [" " * (width - cell_len(cell)) + cell if right else set_cell_size(cell, width) for cell in cut]
