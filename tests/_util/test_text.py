"""Texts: safe to print, split into sentences and words, and found in what a model reads."""

import json
import math
import random
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from math import sqrt
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

from helpers.attributions import of_chat
from helpers.odd_models import PIECES, SMILE, concatenating
from heta_lens._util.text import (
    REORDERING,
    Span,
    joined,
    legible,
    members,
    owners,
    plain,
    probability,
    sentences,
    short_repr,
    tokens_in,
    visible,
    visible_span,
    words,
)
from heta_lens.evaluation.external_scores import located_tokens, shared_out
from heta_lens.methods.sources import is_finished, split, wording
from heta_lens.methods.surrogates import nearness
from heta_lens.model.tokenizer import locate
from heta_lens.prediction.chat import places

PERSIAN = "می‌خواهم"  # with a zero width non-joiner

ENGLAND = "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f"


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


@pytest.mark.parametrize(
    "text",
    [
        "", "é 日本", "a\tb", "10\u00a0km", "12\u202f345\u3000", PERSIAN, "👨\u200d💻", "❤\ufe0f", "葛\U000e0100",
        ENGLAND, "Donau\u00addampf", "ภาษา\u200bไทย", "a\u2060b", "\u06dd٣", "e\u0301",
    ],
)  # fmt: skip
def test_what_words_and_emoji_are_made_of_stays(text: str) -> None:
    assert legible(text) == text


def test_every_directional_control_is_shown() -> None:
    controls = ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
    marks = {"\N{LEFT-TO-RIGHT MARK}", "\N{RIGHT-TO-LEFT MARK}", "\N{ARABIC LETTER MARK}"}
    known = {chr(code) for code in range(0x10000) if unicodedata.bidirectional(chr(code)) in controls}
    assert known | marks == REORDERING
    assert not REORDERING & set(legible("".join(REORDERING)))


@pytest.mark.slow
def test_nothing_is_left_that_is_a_control_or_no_character() -> None:
    kept = {legible(chr(code)) for code in range(0x110000)} - {"\t"}
    assert not {unicodedata.category(character) for text in kept for character in text} & {"Cc", "Cs", "Cn", "Co"}


@pytest.mark.parametrize(
    ("token", "shown"),
    [
        ("", ""),
        (" cat", " cat"),
        ("\n", "⏎"),
        ("\n\n  ", "⏎⏎␣␣"),
        ("\t", "→"),
        ("x\ty\n", "x→y⏎"),
        (" ", "␣"),
        ("   ", "␣␣␣"),
        ("\u00a0", "⍽"),
        ("10\u00a0km", "10⍽km"),
        ("a  b c", "a··b c"),
        ("\u200c", "⟨ZWNJ⟩"),
        (" \u200d", "␣⟨ZWJ⟩"),
        ("\u200b", "⟨ZWSP⟩"),
        ("\ufe0f", "⟨VS16⟩"),
        ("\u3000", "⟨U+3000⟩"),
        ("\u3164", "⟨U+3164⟩"),
        ("\U000e0100", "⟨U+E0100⟩"),
        ("\u0301", "◌\u0301"),
        ("\u202e", r"\u202e"),
        (" \x1b", " ␛"),
        (PERSIAN, PERSIAN),
        ("👨\u200d💻", "👨\u200d💻"),
    ],
)
def test_a_token_of_its_own_never_looks_like_nothing(token: str, shown: str) -> None:
    assert visible(token) == shown


@pytest.mark.parametrize(
    ("p", "shown"),
    [
        (1.0, "p = 1"),
        (1 - 1e-12, "p > 0.9999"),
        (0.99991, "p > 0.9999"),
        (0.99989, "p = 0.9999"),
        (0.9996, "p = 0.9996"),
        (0.9994, "p = 0.999"),
        (0.25, "p = 0.25"),
        (1.234e-12, "p = 1.23e-12"),
    ],
)
def test_it_is_rounded_but_never_to_1(p: float, shown: str) -> None:
    assert probability(math.log(p)) == shown


@dataclass(frozen=True, eq=False)
class Record:
    tensor: torch.Tensor
    model: Any
    pair: tuple[int, ...]
    text: str


def test_tensors_and_models_are_shown_by_kind_and_size() -> None:
    record = Record(torch.zeros(2, 3), object(), (1, 2), "x" * 100)
    assert short_repr(record) == f"Record(tensor=float32[2, 3], model=<object>, pair=(1, 2), text='{'x' * 59}…)"
    assert "pair=<3 of them>" in short_repr(Record(torch.zeros(1), None, (1, 2, 3), ""))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (math.nan, None),
        ([math.inf, -math.inf, 1.5], ["+inf", "-inf", 1.5]),
        ({"a": Path("x"), 3: (True, None)}, {"a": "x", "3": [True, None]}),
    ],
)
def test_values_are_those_of_json(value: Any, expected: Any) -> None:
    assert plain(value) == expected


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
    expected = [1, np.exp(-((1 - 1 / sqrt(4)) ** 2) / 0.25**2), np.exp(-16)]
    np.testing.assert_allclose(nearness(masks, 0.25), expected, rtol=0, atol=1e-9)


def test_a_sentence_is_finished_by_its_mark_or_by_the_end_of_its_line():
    finished = {"": False, "The cat": False, "The cat.": True, "He said: 'No!'": True, "A list:\n": True, "3.5": False}
    assert {text: is_finished(text) for text in finished} == finished


TEXT = "Tom kept é the naïve 🙂\nkey."


def cut_up(text: str, numbers: Random, most: int) -> list[Span]:
    ends = sorted({0, len(text), *(numbers.randrange(len(text)) for _ in range(most))})
    return [Span(*pair) for pair in pairwise(ends)]


def test_halves_of_a_token_get_half_of_its_score() -> None:
    assert shared_out([4.0, 1.0], [Span(0, 4), Span(4, 5)], [Span(0, 2), Span(2, 5)]) == [2.0, 3.0]
    assert shared_out([4.0, -1.0], [Span(0, 4), Span(4, 5)], [Span(0, 5)]) == [3.0]


def test_no_score_is_lost_or_made() -> None:
    for seed in range(200):
        numbers = Random(seed)
        spans, places = (cut_up(TEXT, numbers, numbers.randrange(1, 20)) for _ in range(2))
        scores = [numbers.gauss(0, 1) for _ in spans]
        assert sum(shared_out(scores, spans, places)) == pytest.approx(sum(scores), abs=1e-12)
        assert shared_out(scores, spans, spans) == pytest.approx(scores, abs=1e-12)


def test_what_is_on_no_characters_is_left_out() -> None:
    assert shared_out([9.0, 1.0], [Span(0, 0), Span(0, 2)], [Span(0, 0), Span(0, 1), Span(1, 2)]) == [0.0, 0.5, 0.5]


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


@pytest.mark.parametrize(
    ("tokens", "starts"),
    [
        (["a", "Ġâ", "Ģ", "ľ", "b"], [0, 1, 2, 2, 3]),
        (["a", "▁", "<0xE2>", "<0x80>", "<0x9C>", "b"], [0, 1, 2, 2, 2, 3]),
    ],
    ids=["bytes", "sentencepiece"],
)
def test_parts_of_a_character_have_all_of_it(tokens: list[str], starts: list[int]) -> None:
    spans = located_tokens(tokens, "a \N{LEFT DOUBLE QUOTATION MARK}b")
    assert [span.start for span in spans] == starts and spans[-2].stop == 3
    assert sum(shared_out([1.0] * len(tokens), spans, [Span(0, 1), Span(1, 3), Span(3, 4)])) == len(tokens)


def test_a_token_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match=r"its token 1, ' lost', is not what the text goes on with after 3 characters"):
        located_tokens(["Tom", " lost"], TEXT)


Template = Callable[[Mapping[str, Any]], str]


def found(template: Template, values: Mapping[str, Any]) -> dict[str, list[str] | None]:
    """What stands at the places that are found."""
    rendered = template(values)
    located = places(lambda given: template({**values, **given}), rendered, values)
    return {key: spans and [rendered[slice(*span)] for span in spans] for key, spans in located.items()}


def starts(template: Template, values: Mapping[str, Any], key: str) -> list[int]:
    spans = places(lambda given: template({**values, **given}), template(values), values)[key]
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


def test_a_value_may_come_twice_or_not_at_all() -> None:
    twice: Template = lambda values: f"{values['a']}, {values['a']}: {values['b']}"  # noqa: E731
    assert found(twice, {"a": "hm", "b": "hm", "c": "hm"}) == {"a": ["hm", "hm"], "b": ["hm"], "c": []}


def test_an_object_is_found_as_json() -> None:
    template: Template = lambda values: f"{{{json.dumps(values['a'], ensure_ascii=False)}}}"  # noqa: E731
    assert found(template, {"a": {"é": [1, "}"]}}) == {"a": ['{"é": [1, "}"]}']}


def test_a_value_that_is_written_in_another_way_is_found_by_what_stands_around_it() -> None:
    template: Template = lambda values: f"{json.dumps(values['a'])}: {values['b'].split('/')[-1]}"  # noqa: E731
    assert found(template, {"a": 'a "b"', "b": "x/y/z"}) == {"a": [r"a \"b\""], "b": ["z"]}


def test_a_value_that_other_things_depend_on_is_found_in_what_it_changes() -> None:
    counting: Template = lambda values: f"{len(values['a'])} letters: {values['a']}"  # noqa: E731
    assert found(counting, {"a": "some"}) == {"a": ["some"]}
    assert starts(counting, {"a": "some"}, "a") == [len("4 letters: ")]
    reasoned: Template = lambda values: "<t>{}</t>{}".format(*values["a"].rpartition("</t>")[::2])  # noqa: E731
    assert found(reasoned, {"a": "why</t>so"}) == {"a": ["why</t>so"]}


def test_values_that_the_template_compares_are_found_in_their_order() -> None:
    def template(values: Mapping[str, Any]) -> str:
        return "".join(f"{'last: a, ' if value == values['c'] else ''}<{value}>" for value in values.values())

    values = {"a": "a, a", "b": "x", "c": "a, a"}
    assert found(template, values) == {key: [value] for key, value in values.items()}
    assert starts(template, values, "a") < starts(template, values, "c")


def test_an_object_that_is_not_written_as_json_is_what_changes_with_it() -> None:
    template: Template = lambda values: "".join(f"<{name}={item}>" for name, item in values["a"].items())  # noqa: E731
    assert found(template, {"a": {"city": "Rome", "days": 3}}) == {"a": ["city=Rome><days=3"]}


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


def test_tokens_belong_to_messages_or_to_the_template() -> None:
    messages = of_chat().messages
    assert messages is not None
    assert messages.template.tolist() == [True, False, False, True, False, True]
    assert messages.names == ["template", "user", "user", "template", "assistant", "template"]
    assert messages.rows([0]) == [1, 2] and messages.rows([-1]) == [0, 3, 5] and messages.rows([0, 1]) == [1, 2, 4]
    assert messages.rows([2]) == []
