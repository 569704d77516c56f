"""Texts: safe to print, split into sentences and words, and found in what a model reads."""

import json
import unicodedata
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from helpers.odd_models import SMILE, concatenating
from heta_lens._util.text import (
    Span,
    legible,
    members,
    owners,
    sentences,
    tokens_in,
    visible,
)
from heta_lens.evaluation.external_scores import located_tokens
from heta_lens.methods.sources import wording
from heta_lens.model.tokenizer import locate
from heta_lens.prediction.chat import located

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


Template = Callable[[Mapping[str, Any]], str]


def spans_of(template: Template, values: Mapping[str, Any], key: str) -> list[Span] | None:
    return located(values[key], template(values), lambda instead: template({**values, key: instead}))


def found(template: Template, values: Mapping[str, Any]) -> dict[str, list[str] | None]:
    """What stands at the places that are found."""
    rendered, spans = template(values), {key: spans_of(template, values, key) for key in values}
    return {key: own and [rendered[slice(*span)] for span in own] for key, own in spans.items()}


def starts(template: Template, values: Mapping[str, Any], key: str) -> list[int]:
    spans = spans_of(template, values, key)
    assert spans is not None
    return [span.start for span in spans]


def tagged(values: Mapping[str, Any]) -> str:
    return "".join(f"<{name}>{value}</{name}>" for name, value in values.items())


def test_values_that_repeat_and_hold_the_templates_words_are_found_where_they_are() -> None:
    values = {"a": "<b>x</b>", "b": "x", "c": "x", "d": "</d><d>"}
    assert found(tagged, values) == {name: [value] for name, value in values.items()}
    assert starts(tagged, values, "b") == [3 + len("<b>x</b>") + 4 + 3]


@pytest.mark.parametrize(("strip", "expected"), [(str.strip, "x"), (str.lstrip, "x \n"), (str.rstrip, "\n x")])
def test_a_value_that_is_stripped_is_found_without_what_it_lost(strip: Callable[[str], str], expected: str) -> None:
    template: Template = lambda values: f"[{strip(values['a'])}\n]"  # noqa: E731
    assert found(template, {"a": "\n x \n"}) == {"a": [expected]}


def test_a_value_that_is_written_in_another_way_is_found_by_what_stands_around_it() -> None:
    template: Template = lambda values: f"{json.dumps(values['a'])}: {values['b'].split('/')[-1]}"  # noqa: E731
    assert found(template, {"a": 'a "b"', "b": "x/y/z"}) == {"a": [r"a \"b\""], "b": ["z"]}


def test_a_value_that_other_things_depend_on_is_found_in_what_it_changes() -> None:
    counting: Template = lambda values: f"{len(values['a'])} letters: {values['a']}"  # noqa: E731
    assert found(counting, {"a": "some"}) == {"a": ["some"]}
    assert starts(counting, {"a": "some"}, "a") == [len("4 letters: ")]
    reasoned: Template = lambda values: "<t>{}</t>{}".format(*values["a"].rpartition("</t>")[::2])  # noqa: E731
    assert found(reasoned, {"a": "why</t>so"}) == {"a": ["why</t>so"]}


@pytest.mark.parametrize(
    "template",
    [
        lambda values: values["a"].upper(),
        lambda values: f"{values['a']}, {len(values['a'])}, {values['a']}",
        lambda values: f"{hash(values['a'])}",
    ],
    ids=["altered", "counted between", "dropped"],
)
def test_what_cannot_be_found_is_not_guessed(template: Template) -> None:
    assert found(template, {"a": "some words"}) == {"a": None}
