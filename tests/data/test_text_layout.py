"""Texts made of named pieces, their words and their sentences."""

import random
import re
from collections.abc import Callable
from time import process_time
from typing import Any

import pytest

from heta_lens._util.text import END, Span, sentences
from heta_lens.data.datasets import Piece, laid_out, occurrences, split_sentences, words_within


def test_pieces_stand_where_they_are_said_to() -> None:
    text, spans = laid_out([Piece(" One. ", "support"), Piece("| "), Piece("Two", "question"), Piece(" ", "gold")])
    assert text == " One. | Two "
    assert spans == {"support": (Span(1, 5),), "question": (Span(8, 11),)}


def test_words_and_occurrences_are_whole() -> None:
    text = "The sun's heat: sunny, SUN-dried sun. It's 3.5"
    assert [text[slice(*word)] for word in words_within(text, [Span(0, 21), Span(26, 37)])] == [
        *("The", "sun's", "heat", "sunny", "sun")
    ]
    assert [text[slice(*found)] for found in occurrences("sun", text)] == ["sun", "SUN", "sun"]
    assert occurrences("sun", text, Span(5, 36)) == [Span(23, 26), Span(33, 36)]
    assert occurrences("3.5", "315 3.5") == [Span(4, 7)]
    assert occurrences("sun", "unsun sun") == [Span(6, 9)]
    assert words_within("one two three", [Span(0, 5), Span(9, 13)]) == [Span(0, 3)]


def test_sentences_end_at_full_stops_but_not_after_titles_and_initials() -> None:
    text = 'Mr. Smith met J. R. Ewing. "Who is it?" He left! it rained... Then "Go." End'
    assert split_sentences(text) == [
        *("Mr. Smith met J. R. Ewing.", '"Who is it?"', "He left! it rained...", 'Then "Go."', "End")
    ]
    assert split_sentences("") == []


PARTS = [
    "J. R. ",
    "Mr. ",
    "xMr. ",
    "etc. ",
    "Dr.",
    "A",
    ".",
    "!",
    "?..",
    '"',
    "')",
    " ",
    "\n\n",
    "b c ",
    "Éa. ",
    'Prof." Q',
]


def random_texts(count: int) -> list[str]:
    generator = random.Random(0)
    return ["".join(generator.choices(PARTS, k=generator.randint(1, 30))) for _ in range(count)]


def sentences_by_definition(text: str) -> list[str]:
    """The whole sentence is searched at each of its full stops, for an abbreviation at its end."""
    abbreviated = re.compile(r"(?:\b(?:Mr|Mrs|Ms|Dr|St|Jr|Sr|Prof|Rev|Col|Capt|Gen|Lt|Sgt|vs|etc)|\b[A-Z])\.$")
    found, start = [], 0
    for end in re.finditer(r"(?<=[.!?])[\"'”’)]*\s+(?=[\"'“‘(]?[A-Z])", text):
        if not abbreviated.search(text[start : end.start()]):
            found.append(text[start : end.end()].strip())
            start = end.end()
    return [*found, text[start:].strip()] if text[start:].strip() else found


def ends_by_definition(text: str) -> list[int]:
    return [end.end() for end in re.finditer(r"[.!?]+[\"')\]”’»]*(?=\s|$)|\n+", text)]


def test_sentences_are_split_as_defined() -> None:
    for text in random_texts(400):
        assert split_sentences(text) == sentences_by_definition(text)
        assert [end.end() for end in END.finditer(text)] == ends_by_definition(text)


@pytest.mark.parametrize(
    ("split", "text"),
    [
        (split_sentences, "J. R. " * 10_000),
        (split_sentences, 'A." ' * 15_000),
        (sentences, "." * 60_000 + "x"),
        (sentences, "?!)" * 20_000 + "x"),
        (sentences, "A. " * 20_000),
    ],
    ids=["initials", "quotes", "dots", "brackets", "short"],
)
def test_splitting_a_long_text_takes_no_longer_than_reading_it(split: Callable[[str], Any], text: str) -> None:
    """60 kB; a quadratic search takes a minute."""
    started = process_time()
    split(text)
    assert process_time() - started < 3


def test_words_are_found_in_spans_that_overlap_and_in_any_order() -> None:
    generator, text = random.Random(0), "one two-three, four's 5 six " * 3
    whole = words_within(text, [Span(0, len(text))])
    for _ in range(200):
        spans = [Span(*sorted(generator.choices(range(len(text) + 1), k=2))) for _ in range(generator.randint(0, 4))]
        inside = [word for word in whole if any(start <= word.start and word.stop <= stop for start, stop in spans)]
        assert words_within(text, spans) == inside
