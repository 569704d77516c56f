"""Scores move to other tokens by the characters they share, and none of them is lost on the way."""

from itertools import pairwise
from random import Random

import pytest

from heta_lens._util.text import Span, located_tokens, shared_out

TEXT = "Tom kept é the naïve 🙂\nkey."


def cut(text: str, numbers: Random, most: int) -> list[Span]:
    ends = sorted({0, len(text), *(numbers.randrange(len(text)) for _ in range(most))})
    return [Span(*pair) for pair in pairwise(ends)]


def test_halves_of_a_token_get_half_of_its_score() -> None:
    assert shared_out([4.0, 1.0], [Span(0, 4), Span(4, 5)], [Span(0, 2), Span(2, 5)]) == [2.0, 3.0]
    assert shared_out([4.0, -1.0], [Span(0, 4), Span(4, 5)], [Span(0, 5)]) == [3.0]


def test_no_score_is_lost_or_made() -> None:
    for seed in range(200):
        numbers = Random(seed)
        spans, places = (cut(TEXT, numbers, numbers.randrange(1, 20)) for _ in range(2))
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
