"""Tables in a terminal."""

import pytest
from rich.cells import cell_len

from heta_lens.plots.terminal import Column, table

COLUMNS = [
    Column("token", ["' cat'", "'世界'"]),
    Column("score", ["12.5", "3"], right=True),
    Column("role", ["user", ""]),
]


def test_columns_stand_below_each_other() -> None:
    assert table(COLUMNS, 80).plain.splitlines() == [
        "token   score  role",
        "' cat'   12.5  user",
        "'世界'      3",
    ]


def test_columns_come_closer_before_they_are_given_up() -> None:
    assert table(COLUMNS, 18).plain.splitlines()[0] == "token  score role"


def test_where_there_is_no_room_a_row_is_a_block_of_lines() -> None:
    assert table(COLUMNS, 16).plain.splitlines() == [
        "token  ' cat'", "score  12.5", "role   user", "", "token  '世界'", "score  3",
    ]  # fmt: skip


@pytest.mark.parametrize("width", [5, 12, 30, 200])
@pytest.mark.parametrize("cell", ["x" * 300, "世" * 100, "a\tb\nc\x1b[2J"], ids=["long", "wide", "steering"])
def test_no_line_is_wider_than_the_room_or_steers_the_terminal(cell: str, width: int) -> None:
    shown = table([Column("text", [cell]), Column("score", ["1"], right=True)], width).plain
    assert max(map(cell_len, shown.splitlines())) <= width
    assert not set(shown) & set("\t\x1b")


def test_without_rows_there_is_only_the_head() -> None:
    assert table([Column("token", []), Column("score", [])], 80).plain == "token  score"
