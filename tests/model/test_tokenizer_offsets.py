"""Where each token is in the decoded text."""

import random
from collections.abc import Sequence
from itertools import pairwise

import pytest
from tokenizers import decoders

from helpers.decoders import PIECES, SMILE, byte_fallback, concatenating, counting, joining, real, stripping
from heta_lens._util.text import Span
from heta_lens.model.tokenizer import Decode, locate


def placed(decode: Decode, ids: Sequence[int]) -> list[str]:
    """The text of every token, by its span."""
    text, spans = locate(decode, ids)
    return [text[span.start : span.stop] for span in spans]


def test_words_carry_their_leading_space():
    text, spans = locate(concatenating(["The", " cat", " sat", "."]), range(4))
    assert text == "The cat sat."
    assert spans == [Span(0, 3), Span(3, 7), Span(7, 11), Span(11, 12)]


def test_special_and_newline_tokens_have_spans_of_their_own():
    pieces = ["<|endoftext|>", "a", "\n", "\n\n", " b", "<pad>"]
    assert placed(concatenating(pieces), range(6)) == pieces


def test_bytes_of_one_emoji_share_its_span():
    text, spans = locate(concatenating(["hi", b" " + SMILE[:2], SMILE[2:3], SMILE[3:], "!"]), range(5))
    assert text == "hi 😀!"
    assert spans == [Span(0, 2), Span(2, 4), Span(2, 4), Span(2, 4), Span(4, 5)]


def test_two_split_emoji_in_a_row_do_not_run_into_each_other():
    halves = [SMILE[:2], SMILE[2:], SMILE[:1], SMILE[1:]]
    assert locate(concatenating(halves), range(4)) == ("😀😀", [Span(0, 1), Span(0, 1), Span(1, 2), Span(1, 2)])


def test_a_context_that_ends_inside_a_character_still_places_every_token():
    text, spans = locate(concatenating(["hi", SMILE[:1], SMILE[1:3]]), range(3))
    assert text == "hi�"
    assert spans == [Span(0, 2), Span(2, 3), Span(2, 3)]


def test_a_decoder_that_strips_the_first_space_keeps_those_between_words():
    text, spans = locate(stripping([" The", " cat", " ", "\n", " x"]), range(5))
    assert text == "The cat \n x"
    assert spans == [Span(0, 3), Span(3, 7), Span(7, 8), Span(8, 9), Span(9, 11)]


def test_a_decoder_that_joins_words_gives_the_space_to_the_later_word():
    text, spans = locate(joining(["the", "cat", "sat"]), range(3))
    assert text == "the cat sat"
    assert spans == [Span(0, 3), Span(3, 7), Span(7, 11)]


def test_a_token_that_shows_nothing_has_an_empty_span():
    assert locate(concatenating(["a", "", "b"]), range(3)) == ("ab", [Span(0, 1), Span(1, 1), Span(1, 2)])


def test_no_tokens_are_no_text():
    assert locate(concatenating([]), []) == ("", [])


LLAMA = ["<s>", "▁The", "▁cat", "▁", "▁▁", "x", "é", "\n", "<0x0A>"]


DECODERS = {
    "concatenating": (concatenating(PIECES), len(PIECES)),
    "stripping": (stripping(PIECES), len(PIECES)),
    "joining": (joining(["the", "cat", "."]), 3),
    "byte fallback": (real(byte_fallback(), LLAMA), len(LLAMA)),
    "metaspace": (real(decoders.Metaspace(prepend_scheme="always"), LLAMA), len(LLAMA)),
    "word pieces": (real(decoders.WordPiece(cleanup=False), ["the", "##ing", ".", "n't", "do"]), 5),
    "clean-up": (real(decoders.WordPiece(cleanup=True), ["the", "##ing", ".", "n't", "do"]), 5),
}


@pytest.mark.parametrize(("decode", "size"), DECODERS.values(), ids=DECODERS)
def test_random_prompts_are_placed_without_gaps_in_the_text_they_decode_to(decode: Decode, size: int):
    numbers = random.Random(0)
    for _ in range(300):
        ids = numbers.choices(range(size), k=numbers.randint(1, 9))
        text, spans = locate(decode, ids)
        assert text == decode(ids)
        assert (spans[0].start, spans[-1].stop) == (0, len(text))
        assert all(later in (span, (span.stop, later.stop)) for span, later in pairwise(spans))


def test_llama_writes_an_emoji_as_byte_tokens():
    pieces = ["<s>", "▁hi", "▁", *(f"<0x{byte:02X}>" for byte in SMILE), "▁you"]
    assert placed(real(byte_fallback(), pieces), range(8)) == ["<s>", " hi", " ", *["😀"] * 4, " you"]


def test_locating_a_long_context_decodes_a_few_tokens_at_a_time():
    decode, calls = counting(concatenating([b"a", SMILE[:2], SMILE[2:]]))
    locate(decode, [0, 1, 2] * 100)
    assert max(calls) <= 4
    assert len(calls) <= 2 * 300
