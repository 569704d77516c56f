"""Where tokens lie in the decoded text, which words they form, and which token spells a string."""

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers
from transformers import PreTrainedTokenizerFast

import heta_lens
import zoo
from heta_lens.text import TAIL, Decode, Span, Speller, appended, legible, locate, tokens_in, visible, words

SMILE = "😀".encode()
PIECES = ["<bos>", "The", " cat", " ", "  ", "\n", "x", "é", SMILE, SMILE[:2], SMILE[2:], b" " + SMILE[:3], SMILE[3:]]


# ------------------------------------------------------------------------------- decoders: an id is an index in pieces
def concatenating(pieces: Sequence[str | bytes]) -> Decode:
    """Bytes put after each other, as byte-level BPE does."""
    raw = [piece.encode() if isinstance(piece, str) else piece for piece in pieces]
    return lambda ids: b"".join(raw[token] for token in ids).decode(errors="replace")


def stripping(pieces: Sequence[str | bytes]) -> Decode:
    """The same without the first space of all, as SentencePiece does."""
    decode = concatenating(pieces)
    return lambda ids: decode(ids).removeprefix(" ")


def joining(pieces: Sequence[str]) -> Decode:
    """Words put after each other with spaces between, as a word-level tokenizer does."""
    return lambda ids: " ".join(pieces[token] for token in ids)


def real(decoder: decoders.Decoder, pieces: Sequence[str]) -> Decode:
    tokenizer = Tokenizer(models.WordLevel({piece: token for token, piece in enumerate(pieces)}, unk_token=pieces[0]))
    tokenizer.decoder = decoder
    return lambda ids: tokenizer.decode(list(ids), skip_special_tokens=False)


def byte_fallback() -> decoders.Decoder:
    """Llama 2's."""
    spaces = decoders.Replace("▁", " ")
    return decoders.Sequence([spaces, decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])


def placed(decode: Decode, ids: Sequence[int]) -> list[str]:
    """The text of every token, by its span."""
    text, spans = locate(decode, ids)
    return [text[span.start : span.stop] for span in spans]


def counting(decode: Decode) -> tuple[Decode, list[int]]:
    """``decode``, and the list of how many tokens each call was given."""
    calls: list[int] = []

    def counted(ids: Sequence[int]) -> str:
        calls.append(len(ids))
        return decode(ids)

    return counted, calls


# ------------------------------------------------------------------------------------------------------------ locate
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


# ------------------------------------------------------------------------------------------------------------- words
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


# --------------------------------------------------------------------------------------------------- spans of the text
@pytest.mark.parametrize(
    ("span", "expected"), [((0, 5), (1, 4)), ((1, 4), (1, 4)), ((0, 1), (1, 1)), ((2, 2), (2, 2)), ((4, 6), (6, 6))]
)
def test_the_visible_part_of_a_span_has_no_white_space_at_its_ends(span: tuple[int, int], expected: tuple[int, int]):
    assert visible(" a\tb\n ", Span(*span)) == expected


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


# ------------------------------------------------------------------------------------------------------------ targets
WORDS = ["The", " capital", " is", "Paris", " Paris", " Lyon", "Nice", " ", "", "<unk>"]


@dataclass(frozen=True)
class Fake:
    """What a `Speller` needs of a tokenizer, where any text is encoded to ``likely``."""

    writes: Decode
    size: int
    likely: tuple[int, ...] = ()

    def __len__(self) -> int:
        return self.size

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        return self.writes(ids)

    def encode(self, text: str, **_: Any) -> list[int]:  # noqa: ARG002
        return list(self.likely)

    def convert_ids_to_tokens(self, token: int) -> str:
        return self.writes([token])


def found(
    text: str,
    pieces: Sequence[str | bytes] | Decode = WORDS,
    size: int | None = None,
    *,
    likely: Sequence[int] = (),
    context: Sequence[int] = (0, 0, 0),
    log_probs: Sequence[float] | None = None,
) -> int:
    """The token that is taken for a text after a context; all are equally likely, unless said otherwise."""
    decode, size = (pieces, size) if callable(pieces) else (concatenating(pieces), len(pieces))
    assert size is not None
    speller = Speller(Fake(decode, size, tuple(likely)))
    return speller.find(text, context, log_probs or [0.0] * size).token


@pytest.mark.parametrize("likely", [(), (3,), (4,), (0,), (0, 1)])
def test_exactly_the_string_is_found_wherever_encoding_points(likely: tuple[int, ...]):
    assert found(" Paris", likely=likely) == 4
    assert found("Paris", likely=likely) == 3


@pytest.mark.parametrize(("text", "token"), [("Lyon", 5), (" Nice", 6)])
def test_failing_that_the_leading_space_is_toggled(text: str, token: int):
    assert found(text) == token


@pytest.mark.parametrize("text", ["y", " y"])
@pytest.mark.parametrize("likeliest", [1, 2])
def test_of_equal_spellings_the_most_likely_is_taken_and_the_others_are_named(text: str, likeliest: int):
    log_probs = [-9.0, -5.0, -5.0, -9.0]
    log_probs[likeliest] = -1.0
    speller = Speller(Fake(concatenating(["x", "y", "y", "z"]), 4, (1,)))
    assert speller.find(text, [0], log_probs) == (likeliest, (3 - likeliest,))


def test_a_string_of_several_tokens_is_refused_by_naming_them():
    with pytest.raises(ValueError, match=r"' Paris Lyon'.* 2: \[' Paris', ' Lyon'\]"):
        found(" Paris Lyon", likely=(4, 5))


def test_a_string_the_tokenizer_cannot_write_is_not_called_one_token_of_one():
    with pytest.raises(ValueError, match="'日'") as refusal:
        found("日", likely=(9,))
    assert "not one token of this model but 1" not in str(refusal.value)


def test_the_empty_string_is_refused():
    with pytest.raises(ValueError, match="empty"):
        found("")


def test_a_space_is_not_a_token_that_shows_nothing():
    with pytest.raises(ValueError, match="' '"):
        found(" ", ["The", " cat", ""], context=[0])


@pytest.mark.parametrize("text", ["Paris", " Paris"])
def test_a_decoder_that_strips_the_first_space_writes_it_after_a_context(text: str):
    decode = stripping([" The", " Paris", "Nice"])
    assert found(text, decode, 3, context=[0]) == 1
    assert found(text, decode, 3, context=[]) == 1


@pytest.mark.parametrize("text", ["cat", " cat"])
def test_a_decoder_that_joins_words_finds_a_word_with_and_without_its_space(text: str):
    assert found(text, joining(["the", "cat", "sat"]), 3, context=[0]) == 1


def test_the_vocabulary_is_decoded_once():
    decode, calls = counting(concatenating(WORDS))
    speller = Speller(Fake(decode, len(WORDS)))
    speller.find(" Lyon", [0], [0.0] * len(WORDS))
    before = len(calls)
    assert speller.find(" Paris", [0], [0.0] * len(WORDS)).token == 4
    assert len(calls) - before <= 10


def test_only_the_end_of_a_long_context_is_decoded():
    decode, calls = counting(concatenating(WORDS))
    assert found(" Lyon", decode, len(WORDS), context=[0] * 1000) == 5
    assert max(calls) <= TAIL + 1


def test_what_a_token_adds_depends_on_what_comes_before():
    decode = stripping([" a", " b"])
    assert list(appended(decode, [0], [0, 1])) == [(0, " a"), (1, " b")]
    assert list(appended(decode, [], [0, 1])) == [(0, "a"), (1, "b")]


def test_a_token_that_completes_a_character_is_written_as_it_is_alone():
    assert list(appended(concatenating([SMILE[:3], SMILE[3:]]), [0], [1])) == [(1, "�")]


# ------------------------------------------------------------------------------------- every printable ASCII character
PRINTABLE = [blank + chr(code) for code in range(32, 127) for blank in ("", " ")]


def writers(tokenizer: Any, context: list[int]) -> dict[str, list[int]]:
    """Tokens by exactly what they add: the whole vocabulary, decoded after the whole context."""
    before, found = tokenizer.decode(context), defaultdict(list)
    for token in range(len(tokenizer)):
        after = tokenizer.decode([*context, token])
        found[after[len(before) :] if after.startswith(before) else ""].append(token)
    return found


def oracle(
    tokenizer: Any, written: dict[str, list[int]], text: str, log_probs: Sequence[float]
) -> tuple[list[int], int | None]:
    """Those that write the text, and the likeliest of the first kind: exact, or its leading space toggled; no byte."""
    toggled = text[1:] if text.startswith(" ") else " " + text
    exact, near = (written.get(one, []) if one else [] for one in (text, toggled))
    for bytes_too in (False, True):
        for tokens in (exact, near):
            likely = [one for one in tokens if bytes_too or "<0x" not in tokenizer.convert_ids_to_tokens(one)]
            if likely:
                return exact, max(likely, key=lambda token: log_probs[token])
    return exact, None


def check_printable(tokenizer: Any, context: list[int], log_probs: list[float], texts: Sequence[str]) -> None:
    speller, written = Speller(tokenizer), writers(tokenizer, context)
    for text in texts:
        exact, expected = oracle(tokenizer, written, text, log_probs)
        if expected is None:
            with pytest.raises(ValueError, match=r"is not one token|cannot be written"):
                speller.find(text, context, log_probs)
            continue
        token, others = speller.find(text, context, log_probs)
        assert token == expected, text
        assert {*exact} <= {token, *others}, text
        spelled = speller.spell(text, context, log_probs)
        if len(spelled) == 1 or (token in exact and "<0x" not in speller.name(token)):
            assert spelled == [token], text
        else:
            assert tokenizer.decode([*context, *spelled]) == tokenizer.decode(context) + text


@pytest.mark.plain
@pytest.mark.parametrize("name", zoo.TOKENIZERS)
def test_every_printable_character_is_its_likeliest_token_and_a_byte_only_where_there_is_no_other(name: str):
    tokenizer = zoo.TOKENIZERS[name]()
    numbers = random.Random(0)
    log_probs = [-numbers.expovariate(0.1) for _ in range(len(tokenizer))]
    check_printable(tokenizer, [0, *tokenizer.encode("the cat", add_special_tokens=False)], log_probs, PRINTABLE)


STORIES = Path(heta_lens.__file__).parents[2] / "shared/models/stories3M"


@pytest.mark.plain
@pytest.mark.skipif(not STORIES.exists(), reason="needs the stories3M model")
def test_every_printable_character_is_found_with_a_trained_llama_tokenizer() -> None:
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(STORIES / "tokenizer.json"))
    numbers = random.Random(0)
    log_probs = [-numbers.expovariate(0.1) for _ in range(len(tokenizer))]
    context = tokenizer.encode("Once upon a time there was a cat")
    check_printable(tokenizer, context, log_probs, PRINTABLE)
    speller = Speller(tokenizer)
    taken = {one: speller.name(speller.find(one, context, log_probs).token) for one in PRINTABLE[::2]}
    assert {one for one, name in taken.items() if "<0x" in name} == set("#=@^_{}")
    assert speller.find(".", context, log_probs) == (4010, (49,))
    assert speller.spell(".", context, log_probs) == [4010]


@pytest.mark.plain
def test_a_byte_token_is_never_taken_for_a_character_that_has_a_token_of_its_own():
    tokenizer = zoo.sentencepiece()
    bytes_likely = [0.0 if "<0x" in name else -30.0 for name in tokenizer.convert_ids_to_tokens(range(len(tokenizer)))]
    speller = Speller(tokenizer)
    taken = {one: speller.name(speller.find(one, [0], bytes_likely).token) for one in PRINTABLE[::2]}
    assert {one for one, name in taken.items() if "<0x" in name} == {"#", "@"}
    assert taken["Q"] == "▁Q"  # sooner another blank than a byte


# ----------------------------------------------------------------------------------------- spelling more than one token
def metaspace() -> PreTrainedTokenizerFast:
    """Puts a blank before every text, as Llama 2's and its kin do."""
    pieces = ["<unk>", "▁", "▁the", "▁ring", "▁red", "s", "ring"]
    unigram = Tokenizer(models.Unigram([(piece, -1.0) for piece in pieces], unk_id=0, byte_fallback=False))
    unigram.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    unigram.decoder = byte_fallback()
    return PreTrainedTokenizerFast(tokenizer_object=unigram, unk_token="<unk>")


def test_an_answer_is_spelled_as_it_goes_on_after_the_context():
    speller = Speller(metaspace())
    context, log_probs = speller.encoder()("the red"), [0.0] * 7

    def spell(text: str) -> list[int]:
        return speller.spell(text, context, log_probs)

    assert speller.encoder()(" ring") == [1, 3]  # a blank too many
    assert spell(" ring") == [3]
    assert spell("ring") == [6]
    assert spell("the") == [2]  # there is none without a blank: the nearest
    assert spell(" red rings") == [4, 3, 5]
    assert speller.decode([*context, *spell(" red rings")]) == "the red red rings"
    with pytest.raises(ValueError, match="' xyz' cannot be written by this model's tokenizer, which makes"):
        spell(" xyz")


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("\x1b[31mred", "␛[31mred"),
        ("a\tb\rc\nd\x00\x7f", "a␉b␍c␊d␀␡"),
        ("\x9b2J\x85", r"\x9b2J\x85"),
        ("\u202eabc\u2066\u200e\u2028", r"\u202eabc\u2066\u200e\u2028"),
        ("\ud83d\ue000", r"\ud83d\ue000"),
        ("é 日本 \u00a0👩\u200d🔬", "é 日本 \u00a0👩\u200d🔬"),
        ("", ""),
    ],
)
def test_what_would_steer_a_terminal_is_shown(written: str, shown: str) -> None:
    assert legible(written) == shown
    assert legible(shown) == shown


def test_line_ends_can_be_kept() -> None:
    assert legible("a\n\x1b", keep="\n") == "a\n␛"
