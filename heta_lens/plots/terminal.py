"""An attribution in a terminal: its tokens coloured by score and by each part, and the highest of them in numbers."""

from collections.abc import Collection

from jaxtyping import Float
from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from torch import Tensor

from heta_lens.attribution import Attribution
from heta_lens.plots.shades import legible, shades, strips


def terminal(attribution: Attribution, *, marked: Collection[int] = (), top: int = 8, coloured: bool = True) -> Group:
    """Something for `rich` to print: ``rich.print(terminal(attribution))``.

    ``marked`` positions are underlined; the ``top`` highest scores are listed. Where there are no colours, only the
    list says something: ``coloured=False``.
    """
    views = [
        part
        for name, values in (strips(attribution) if coloured else {}).items()
        for part in (Text(name, style="bold"), Padding(_coloured(attribution, values, marked), (0, 0, 1, 2)))
    ]
    return Group(
        Text(attribution.title, style="bold"), *map(Text, attribution.notes), Text(), *views, _table(attribution, top)
    )


def _coloured(attribution: Attribution, values: Float[Tensor, "pos"], marked: Collection[int]) -> Text:
    line = Text()
    rows = zip(attribution.tokens, attribution.positions.tolist(), shades(values), strict=True)
    for token, position, shade in rows:
        underline = " underline" if position in marked else ""
        line.append(legible(token), style=f"#000000 on {shade.css}{underline}")
    return line


def _table(attribution: Attribution, top: int) -> Table:
    frame = attribution.to_frame()
    frame = frame.reindex(frame["score"].abs().sort_values(ascending=False, kind="stable").index).head(top)
    table = Table("position", "token", *strips(attribution), box=None, pad_edge=False, header_style="bold")
    for column in table.columns[2:]:
        column.justify = "right"
    for _, row in frame.iterrows():
        numbers = [f"{row[name]:.4g}" for name in strips(attribution)]
        table.add_row(str(row["position"]), Text(repr(row["token"])), *numbers)
    return table
