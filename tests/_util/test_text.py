"""Texts: safe to print, split into sentences and words, and found in what a model reads."""

import unicodedata
from itertools import pairwise

import numpy as np
import pytest

from helpers.odd_models import SMILE, concatenating
from heta_lens._util.text import Span, legible, members, owners, sentences, tokens_in, visible
from heta_lens.evaluation.external_scores import located_tokens
from heta_lens.methods.sources import wording
from heta_lens.model.tokenizer import locate

PERSIAN = "می‌خواهم"  # with a zero width non-joiner


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("\x1b[31mred", "␛[31mred"),
        ("a\rc\nd\x00\x7f", "a␍c⏎d␀␡"),
        ("\x9b2J\x85", r"\x9b2J\x85"),
        ("\u202eevil\u202c", r"\u202eevil\u202c"),
        ("\u2066a\u2069\u200e\u200f\u061c\u2028", r"\u2066a\u2069\u200e\u200f\u061c\u2028"),
        ("\ud83d\ue000\U0003ffff", r"\ud83d\ue000\U0003ffff"),
        ("a\ufeffb\ufff9", r"a\ufeffb\ufff9"),
        ("a\U000e0068\U000e0069", r"a\U000e0068\U000e0069"),
    ],
)
def test_what_would_steer_a_terminal_or_reorder_text_is_shown(written: str, shown: str) -> None:
    assert legible(written) == shown
    assert legible(shown) == shown


def test_nothing_is_left_that_is_a_control_or_no_character() -> None:
    """Every character of the first plane and of the tags, and some of all others."""
    codes = (*range(0x10000), *range(0x10000, 0x110000, 257), *range(0xE0000, 0xE0200))
    kept = {legible(chr(code)) for code in codes} - {"\t"}
    assert not {unicodedata.category(character) for text in kept for character in text} & {"Cc", "Cs", "Cn", "Co"}


@pytest.mark.parametrize(
    ("token", "shown"),
    [
        ("", ""),
        ("\n", "⏎"),
        ("\n\n  ", "⏎⏎␣␣"),
        ("\t", "→"),
        ("x\ty\n", "x→y⏎"),
        (" ", "␣"),
        ("10\u00a0km", "10⍽km"),
        ("a  b c", "a··b c"),
        ("\u200c", "⟨U+200C⟩"),
        (" \u200d", "␣⟨U+200D⟩"),
        ("\ufe0f", "⟨U+FE0F⟩"),
        ("\u3000", "⟨U+3000⟩"),
        ("\U000e0100", "⟨U+E0100⟩"),
        ("\u0301", "◌\u0301"),
        (PERSIAN, PERSIAN),
        ("👨\u200d💻", "👨\u200d💻"),
    ],
)
def test_a_token_of_its_own_never_looks_like_nothing(token: str, shown: str) -> None:
    assert visible(token) == shown


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


@pytest.mark.parametrize(
    ("pieces", "passages", "expected"),
    [
        (["a", "b", "c"], [[(0, 1)], [(1, 3)]], [0, 1, 1]),
        (["a", "b", "c"], [[(2, 3)], [(0, 1)]], [1, -1, 0]),
        (["a", "b", "c"], [[(0, 1), (2, 3)]], [0, -1, 0]),
        (["a\n", "\n", "b"], [[(2, 4)]], [-1, 0, 0]),
        (["a\n\n", "b"], [[(2, 4)]], [-1, 0]),  # nothing of it that can be seen
        ([" ", "\n"], [[(0, 2)]], [0, 0]),  # all of it is white space
        (["ab", "c"], [[(0, 1)], [(1, 2)]], [0, -1]),  # of both: the first has it
        (["x", SMILE[:2], SMILE[2:], "y"], [[(1, 2)]], [-1, 0, 0, -1]),
        (["a", "", "b", "", "c"], [[(1, 2)]], [-1, -1, 0, -1, -1]),  # empty tokens at its ends
        (["a", "b"], [[(1, 1)], []], [-1, -1]),
        ([], [[(0, 1)]], []),
    ],
)
def test_a_token_writes_one_passage_at_most(pieces: list, passages: list, expected: list[int]):
    text, spans = locate(concatenating(pieces), range(len(pieces)))
    assert owners(text, spans, [[Span(*span) for span in own] for own in passages]) == expected


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


TEXT = "Tom kept é the naïve 🙂\nkey."


@pytest.mark.parametrize(
    "tokens",
    [
        ["Tom", " kept", " é", " the", " naïve", " 🙂", "\n", "key", "."],
        ["Tom", "Ġkept", "ĠÃ©", "Ġthe", "ĠnaÃ¯ve", "ĠðŁĻĤ", "Ċ", "key", "."],  # as byte-level vocabularies write
        ["▁Tom", "▁kept", "▁é", "▁the", "▁naïve", "▁🙂", "Ċ", "key", "."],
        ["[CLS]", "Tom", "kept", "é", "the", "na", "##ïve", "🙂", "key", ".", "[SEP]"],
        ["<s>", "Tom", " kept", " é", " the", " naïve", " 🙂", "\n", "key.", "<|endoftext|>"],
    ],
    ids=["plain", "bytes", "sentencepiece", "wordpiece", "special"],
)
def test_tokens_are_found_as_vocabularies_write_them(tokens: list[str]) -> None:
    spans = located_tokens(tokens, TEXT)
    assert "".join(TEXT[slice(*span)] for span in spans).replace(" ", "") in (
        TEXT.replace(" ", ""),
        TEXT.replace(" ", "").replace("\n", ""),
    )
    assert all(one.stop <= other.start for one, other in pairwise(spans))
