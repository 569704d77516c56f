"""The tables of a report in the terminal: methods as rows, a few metrics side by side."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.text import Text

from heta_lens.cli.errors_and_messages import show
from heta_lens.cli.text_table import TextTable, text_table

if TYPE_CHECKING:
    from heta_lens.evaluation.report import document
    from heta_lens.evaluation.report.leaderboard import Leaderboard
    from heta_lens.evaluation.report.summary_tables import Summary


def show_summary(results: "Summary") -> None:
    """Print what a report has at a glance."""
    from heta_lens.evaluation.report.folder_report import overview

    _show_blocks(overview(results))


def show_standings(board: "Leaderboard") -> None:
    """Print every method's rank over several evaluations, the best first."""
    names = {"method": "method", "rank": "mean rank", "ranked": "metrics", "better": "better", "worse": "worse"}
    names |= {"worth": "forwards", "seconds": "seconds"}
    rows = [[_written(row[name]) for name in names] for row in board.rows]
    show(text_table([*names.values()], rows, right=[*names.values()][1:]))
    show(Text(f"Mean rank: 0 is the best by every metric, 1 the worst. Better, worse: than {board.reference}."))


def _written(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) and value == value else "none" if value != value else str(value)


def _show_blocks(blocks: "Iterable[document.Block]") -> None:
    """Tables and the notes below them; what else a report has is for its page."""
    from heta_lens.evaluation.report import document

    for block in blocks:
        if isinstance(block, document.Table):
            show(as_rich(block))
            show(Text())
        elif isinstance(block, document.Notes):
            show(Text("\n".join(block.lines), style="dim"))


def as_rich(table: "document.Table") -> TextTable:
    """A table of a report for `rich` to print."""
    from heta_lens._util.printable_text import legible

    def styled(row: int, column: int, cell: str) -> Text:
        return Text(legible(cell), style="bold" if (row, column) in table.bold else "")

    rows = [[styled(row, column, cell) for column, cell in enumerate(cells)] for row, cells in enumerate(table.rows)]
    return TextTable([*map(legible, table.columns)], rows, frozenset(range(table.texts, len(table.columns))))
