"""Which word a token belongs to, and which tokens write a passage."""

import random
from collections.abc import Sequence
from itertools import chain

import pytest

from helpers.decoders import PIECES, SMILE, concatenating
from heta_lens._util.text import Span, joined, owners, tokens_in, visible_span, words
from heta_lens.model.tokenizer import locate


def grouped(pieces: Sequence[str | bytes], special: Sequence[int] = ()) -> list[list[int]]:
    text, spans = locate(concatenating(pieces), range(len(pieces)))
    return words(text, spans, [token in special for token in range(len(pieces))])


@pytest.mark.parametrize(
    ("pieces", "special", "expected"),
    [
        (["The", " ca", "t", ","], (), [[0], [1, 2, 3]]),
        ([" a", "b", " c"], (), [[0, 1], [2]]),
        (["a", " ", "b"], (), [[0], [1], [2]]),
        (["a", "\n", "\n\n", "b"], (), [[0], [1], [2], [3]]),
        (["a\n", "b"], (), [[0], [1]]),
        (["a\N{NO-BREAK SPACE}", "b\N{IDEOGRAPHIC SPACE}", "c"], (), [[0], [1], [2]]),
        (["<s>", "a", "b"], (0,), [[0], [1, 2]]),
        (["a", "<s>", "b"], (1,), [[0], [1], [2]]),
        (["<s>", "<s>"], (0, 1), [[0], [1]]),
        (["a", "", "b"], (), [[0], [1], [2]]),
        (["x", SMILE[:2], SMILE[2:], "y"], (), [[0, 1, 2, 3]]),
        ([b"x " + SMILE[:2], SMILE[2:]], (), [[0, 1]]),
        (["a b", " c"], (), [[0], [1]]),
        (["wo", "rd and", " more"], (), [[0, 1], [2]]),
        ([], (), []),
    ],
)
def test_tokens_form_whitespace_separated_words(pieces: list, special: tuple[int, ...], expected: list[list[int]]):
    assert grouped(pieces, special) == expected


def test_every_token_is_in_exactly_one_word():
    numbers = random.Random(1)
    for _ in range(300):
        pieces = numbers.choices(PIECES, k=numbers.randint(1, 9))
        special = numbers.sample(range(len(pieces)), k=len(pieces) // 3)
        assert list(chain(*grouped(pieces, special))) == list(range(len(pieces)))


@pytest.mark.parametrize(
    ("span", "expected"), [((0, 5), (1, 4)), ((1, 4), (1, 4)), ((0, 1), (1, 1)), ((2, 2), (2, 2)), ((4, 6), (6, 6))]
)
def test_the_visible_part_of_a_span_has_no_white_space_at_its_ends(span: tuple[int, int], expected: tuple[int, int]):
    assert visible_span(" a\tb\n ", Span(*span)) == expected


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ((4, 7), [1]),  # "cat" is all of " cat" that can be seen
        ((5, 6), [1]),
        ((3, 4), []),  # the space before it
        ((0, 7), [0, 1]),
        ((2, 5), [0, 1]),
        ((7, 8), []),  # the newline
        ((8, 9), [3, 4]),  # the emoji
        ((0, 9), [0, 1, 3, 4]),
    ],
)
def test_a_token_is_in_a_stretch_if_a_visible_character_of_it_is(wanted: tuple[int, int], expected: list[int]):
    text, spans = locate(concatenating(["The", " cat", "\n", SMILE[:2], SMILE[2:]]), range(5))
    assert tokens_in(text, spans, Span(*wanted)) == expected


def test_the_space_inside_a_token_is_no_visible_character_of_it():
    text, spans = locate(concatenating(["New York", "!"]), range(2))
    assert tokens_in(text, spans, Span(3, 4)) == []


# --------------------------------------------------------------------------------------------------------- passages
@pytest.mark.parametrize(
    ("pieces", "passages", "expected"),
    [
        (["a", "b", "c"], [[(0, 1)], [(1, 3)]], [0, 1, 1]),
        (["a", "b", "c"], [[(2, 3)], [(0, 1)]], [1, -1, 0]),
        (["a", "b", "c"], [[(0, 1), (2, 3)]], [0, -1, 0]),
        (["a:b"], [[(2, 3)]], [0]),  # a letter of it
        (["a\n", "\n", "b"], [[(2, 4)]], [-1, 0, 0]),
        (["a\n\n", "b"], [[(2, 4)]], [-1, 0]),  # nothing of it that can be seen
        (["a\n\nb"], [[(2, 4)]], [0]),
        ([" ", "\n"], [[(0, 2)]], [0, 0]),  # all of it is white space
        (["ab", "c"], [[(0, 1)], [(1, 2)]], [0, -1]),  # of both: the first has it
        (["x", SMILE[:2], SMILE[2:], "y"], [[(1, 2)]], [-1, 0, 0, -1]),
        (["a", "", "b", "", "c"], [[(1, 2)]], [-1, -1, 0, -1, -1]),  # empty tokens at its ends
        (["a", "b", "", "c"], [[(0, 3)]], [0, 0, 0, 0]),
        (["a", "b"], [[(1, 1)], []], [-1, -1]),
        ([], [[(0, 1)]], []),
    ],
)
def test_a_token_writes_one_passage_at_most(pieces: list, passages: list, expected: list[int]):
    text, spans = locate(concatenating(pieces), range(len(pieces)))
    assert owners(text, spans, [[Span(*span) for span in own] for own in passages]) == expected


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([(0, 1), (1, 2)], [(0, 2)]),
        ([(0, 2), (1, 3), (4, 5)], [(0, 3), (4, 5)]),
        ([(0, 2), (0, 2)], [(0, 2)]),
        ([(3, 3)], []),
        ([(0, 1), (1, 1), (2, 2)], [(0, 1)]),
        ([], []),
    ],
)
def test_spans_that_touch_are_joined(spans: list, expected: list):
    assert joined(Span(*span) for span in spans) == tuple(expected)
