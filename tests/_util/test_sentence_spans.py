"""Spans of a context that are removed as a whole, and the tokens that belong to them."""

from math import sqrt
from typing import Any

import numpy as np
import pytest

from heta_lens._util.text import Span, is_finished, members, sentences, split, wording
from heta_lens.methods.surrogates import nearness


def close(found: Any, expected: Any, tolerance: float = 1e-9) -> None:
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two!  Three?", ["One.", " Two!", "  Three?"]),
        ("Pi is 3.14 here... Yes", ["Pi is 3.14 here...", " Yes"]),
        ('He said "no." Then (he left.) So', ['He said "no."', " Then (he left.)", " So"]),
        ("A line\nanother\n\nand. \n", ["A line\n", "another\n\n", "and."]),
        ("no end", ["no end"]),
        (" \n", []),
        ("", []),
    ],
)
def test_where_sentences_end(text: str, expected: list[str]) -> None:
    assert [text[start:stop] for start, stop in sentences(text)] == expected


def test_a_token_belongs_where_it_is_first_seen() -> None:
    text, spans = (
        "A b.\nC d! E ",
        [Span(0, 1), Span(1, 4), Span(4, 5), Span(5, 6), Span(6, 9), Span(9, 11), Span(11, 12)],
    )
    fixed = np.array([True, *[False] * 6])
    own = members(text, spans, [(0, 4), (5, 9), (10, 11)], fixed)
    assert [row.nonzero()[0].tolist() for row in own] == [[1], [2, 3, 4], [5, 6]]
    assert [wording(text, spans, row) for row in own] == ["b.", "C d!", "E"]
    everything = np.ones(7, dtype=bool)
    assert members(text, spans, [(0, 4), (5, 9)], everything).shape == (0, 7)
    assert members(text, spans, [], fixed).shape == (0, 7)


def test_tokens_that_share_a_character_say_it_once() -> None:
    text, spans = "é!", [Span(0, 1), Span(0, 1), Span(1, 2)]
    own = members(text, spans, sentences(text), np.zeros(3, dtype=bool))
    assert own.tolist() == [[True] * 3] and wording(text, spans, own[0]) == "é!"


@pytest.mark.parametrize("spans", [[(3, 5), (0, 2)], [(0, 3), (2, 5)], [(0, 0)], [(0, 6)], [(-1, 2)]])
def test_spans_that_do_not_follow_one_another_are_refused(spans: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match=r"splitter returned .* must follow one another"):
        split(lambda _: spans, "five5")


def test_nearness_falls_with_the_cosine() -> None:
    masks = np.array([[True] * 4, [True, False, False, False], [False] * 4])
    close(nearness(masks, 0.25), [1, np.exp(-((1 - 1 / sqrt(4)) ** 2) / 0.25**2), np.exp(-16)])


def test_a_sentence_is_finished_by_its_mark_or_by_the_end_of_its_line():
    finished = {"": False, "The cat": False, "The cat.": True, "He said: 'No!'": True, "A list:\n": True, "3.5": False}
    assert {text: is_finished(text) for text in finished} == finished
