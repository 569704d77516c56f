"""Tokens as a page shows them."""

from dataclasses import replace

import pytest
import torch

from helpers.pages import written
from heta_lens.plots.figures import cells, runs


def texts(tokens: list[str]) -> list[str]:
    return [cell.text for cell in cells(written(tokens))]


def test_blanks_before_a_word_have_no_colour() -> None:
    first, second, third = cells(written(["a", " b", "  c"]))
    assert [(cell.before, cell.text) for cell in (first, second, third)] == [("", "a"), (" ", "b"), ("  ", "c")]


@pytest.mark.parametrize(
    ("token", "text", "breaks"),
    [("\n", "⏎", 1), ("\n\n", "⏎⏎", 2), (".\n", ".⏎", 1), ("\t", "→", 0), (" ", "␣", 0), ("\u200d", "⟨ZWJ⟩", 0)],
)
def test_no_token_looks_like_nothing(token: str, text: str, breaks: int) -> None:
    *_, cell = cells(written(["a", token]))
    assert (cell.text, cell.breaks) == (text, breaks)


def test_an_empty_token_has_a_mark() -> None:
    assert texts(["a", "", "b"]) == ["a", "∅", "b"]


def test_pieces_of_one_character_are_one_cell() -> None:
    made = replace(written(["a", "😀", "b", "c"]), text="a😀c", offsets=torch.tensor([[0, 1], [1, 2], [1, 2], [2, 3]]))
    assert [(cell.text, [*cell.rows]) for cell in cells(made)] == [("a", [0]), ("😀", [1, 2]), ("c", [3])]


def test_tokens_that_were_left_out_leave_an_ellipsis() -> None:
    made = written(["a", " b", " c", " d"]).without([1, 2])
    assert [(cell.gap, cell.before, cell.text) for cell in cells(made)] == [(False, "", "a"), (True, " ", "d")]


def test_words_that_are_read_from_the_right_stay_together_with_what_is_between_them() -> None:
    own = cells(written(["see", " مرحبا", ",", " شكرا", ".", " then", " שלום"]))
    parts = [(right_to_left, [cell.text for cell in run]) for right_to_left, run in runs(own)]
    assert parts == [
        (False, ["see"]),
        (True, ["مرحبا", ",", "شكرا"]),
        (False, [".", "then"]),
        (True, ["שלום"]),
    ]


def test_all_cells_are_in_a_run_in_their_order() -> None:
    own = cells(written(["1", " א", " b", ".", " ג", "!", "\n", " d"]))
    assert [cell for _, run in runs(own) for cell in run] == own
