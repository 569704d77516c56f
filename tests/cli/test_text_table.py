"""A table of texts in the terminal, and the lists that it becomes where the terminal is narrow."""

import pytest
from rich.console import Console

from heta_lens.cli.views import TextTable, text_table

ROWS = [("12", "' jar'", "0.0002298 (1)"), ("3", "' box'", "3.076e-05 (2)")]


def printed(table: TextTable, width: int) -> list[str]:
    console = Console(width=width, color_system=None)
    with console.capture() as shown:
        console.print(table)
    return [line.rstrip() for line in shown.get().splitlines()]


def test_columns_stand_side_by_side_where_they_fit() -> None:
    lines = printed(text_table(["position", "token", "heta"], ROWS, right=["heta"]), 40)
    assert lines == [
        "position  token            heta",
        "12        ' jar'  0.0002298 (1)",
        "3         ' box'  3.076e-05 (2)",
    ]


@pytest.mark.parametrize("width", [30, 23])
def test_numbers_stay_whole_where_they_do_not(width: int) -> None:
    lines = printed(text_table(["position", "token", "heta"], ROWS, right=["heta"]), width)
    assert lines == [
        *("position  12", "token     ' jar'", "heta      0.0002298 (1)", ""),
        *("position  3", "token     ' box'", "heta      3.076e-05 (2)"),
    ]


@pytest.mark.parametrize("header", [True, False])
def test_long_texts_are_folded_and_below_their_row_where_it_is_narrow(header: bool) -> None:
    table = text_table(["method", "what it is"], [("leave_one_out", "word " * 20), ("ifr", "")], header=header)
    assert max(map(len, printed(table, 60))) <= 60 and len(printed(table, 60)) < 7
    narrow = printed(table, 30)
    assert narrow[0] == ("method  " if header else "") + "leave_one_out"
    assert narrow[1] == "  word word word word word" and " ".join(narrow).count("word") == 20
    assert narrow[-1].endswith("ifr")


def test_rows_and_tables_without_text_are_printed() -> None:
    for width in (2, 60):
        assert not "".join(printed(text_table(["a", "b"], [("", "")], header=False), width)).strip()
        assert set("".join(printed(text_table(["a", "b"], []), width))) <= {*"ab "}


def test_a_table_cannot_steer_the_terminal() -> None:
    shown = "".join(printed(text_table(["a\x1b", "b"], [("\x1b[2J", "[red]x"), ("y", "z" * 80)], right=("b",)), 60))
    assert "\x1b" not in shown and "[red]x" in shown and shown.count("z") == 80
