"""Which token or tokens write a text, and what is said where none does."""

import random
from collections import defaultdict
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import pytest
from tokenizers import Tokenizer, models, normalizers
from transformers import PreTrainedTokenizerFast

import heta_lens
from helpers import chats, paths, zoo
from helpers.decoders import byte_fallback, concatenating, counting, joining, stripping
from heta_lens.model.tokenizer import TAIL, Decode, TokenizerWrapper

# ------------------------------------------------------------------------------------------------------------ targets
WORDS = ["The", " capital", " is", "Paris", " Paris", " Lyon", "Nice", " ", "", "<unk>"]


@dataclass(frozen=True)
class Fake:
    """What a `TokenizerWrapper` needs of a tokenizer, where any text is encoded to ``likely``."""

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
    wrapper = TokenizerWrapper(Fake(decode, size, tuple(likely)))
    return wrapper.find(text, context, log_probs or [0.0] * size).token


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
    wrapper = TokenizerWrapper(Fake(concatenating(["x", "y", "y", "z"]), 4, (1,)))
    assert wrapper.find(text, [0], log_probs) == (likeliest, (3 - likeliest,))


def test_a_string_of_several_tokens_is_refused_by_naming_them():
    with pytest.raises(ValueError, match=r"' Paris Lyon'.* 2: \[' Paris', ' Lyon'\]"):
        found(" Paris Lyon", likely=(4, 5))


def test_a_string_the_tokenizer_cannot_write_is_not_called_one_token_of_one():
    with pytest.raises(ValueError, match="'日'") as refusal:
        found("日", likely=(9,))
    assert "not a single token of this model but 1" not in str(refusal.value)


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
    wrapper = TokenizerWrapper(Fake(decode, len(WORDS)))
    wrapper.find(" Lyon", [0], [0.0] * len(WORDS))
    before = len(calls)
    assert wrapper.find(" Paris", [0], [0.0] * len(WORDS)).token == 4
    assert len(calls) - before <= 10


def test_only_the_end_of_a_long_context_is_decoded():
    decode, calls = counting(concatenating(WORDS))
    assert found(" Lyon", decode, len(WORDS), context=[0] * 1000) == 5
    assert max(calls) <= TAIL + 1


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
    wrapper, written = TokenizerWrapper(tokenizer), writers(tokenizer, context)
    for text in texts:
        exact, expected = oracle(tokenizer, written, text, log_probs)
        if expected is None:
            with pytest.raises(ValueError, match=r"is not a single token|cannot be written"):
                wrapper.find(text, context, log_probs)
            continue
        token, others = wrapper.find(text, context, log_probs)
        assert token == expected, text
        assert {*exact} <= {token, *others}, text
        spelled = wrapper.spell(text, context, log_probs)
        if len(spelled) == 1 or (token in exact and "<0x" not in wrapper.name(token)):
            assert spelled == [token], text
        else:
            assert tokenizer.decode([*context, *spelled]) == tokenizer.decode(context) + text


@pytest.mark.parametrize("name", zoo.TOKENIZERS)
def test_every_printable_character_is_its_likeliest_token_and_a_byte_only_where_there_is_no_other(name: str):
    tokenizer = zoo.TOKENIZERS[name]()
    numbers = random.Random(0)
    log_probs = [-numbers.expovariate(0.1) for _ in range(len(tokenizer))]
    check_printable(tokenizer, [0, *tokenizer.encode("the cat", add_special_tokens=False)], log_probs, PRINTABLE)


STORIES = paths.SHARED / "models/stories3M"


@pytest.mark.slow
@pytest.mark.skipif(not STORIES.exists(), reason="needs the stories3M model")
def test_every_printable_character_is_found_with_a_trained_llama_tokenizer() -> None:
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(STORIES / "tokenizer.json"))
    numbers = random.Random(0)
    log_probs = [-numbers.expovariate(0.1) for _ in range(len(tokenizer))]
    context = tokenizer.encode("Once upon a time there was a cat")
    check_printable(tokenizer, context, log_probs, PRINTABLE)
    wrapper = TokenizerWrapper(tokenizer)
    taken = {one: wrapper.name(wrapper.find(one, context, log_probs).token) for one in PRINTABLE[::2]}
    assert {one for one, name in taken.items() if "<0x" in name} == set("#=@^_{}")
    assert wrapper.find(".", context, log_probs) == (4010, (49,))
    assert wrapper.spell(".", context, log_probs) == [4010]


def test_a_byte_token_is_never_taken_for_a_character_that_has_a_token_of_its_own():
    tokenizer = zoo.sentencepiece()
    bytes_likely = [0.0 if "<0x" in name else -30.0 for name in tokenizer.convert_ids_to_tokens(range(len(tokenizer)))]
    wrapper = TokenizerWrapper(tokenizer)
    taken = {one: wrapper.name(wrapper.find(one, [0], bytes_likely).token) for one in PRINTABLE[::2]}
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
    wrapper = TokenizerWrapper(metaspace())
    context, log_probs = wrapper.encoder()("the red"), [0.0] * 7

    def spell(text: str) -> list[int]:
        return wrapper.spell(text, context, log_probs)

    assert wrapper.encoder()(" ring") == [1, 3]  # a blank too many
    assert spell(" ring") == [3]
    assert spell("ring") == [6]
    assert spell("the") == [2]  # there is none without a blank: the nearest
    assert spell(" red rings") == [4, 3, 5]
    assert wrapper.decode([*context, *spell(" red rings")]) == "the red red rings"
    with pytest.raises(ValueError, match="' xyz' cannot be written by this model's tokenizer, which turns it into"):
        spell(" xyz")


def test_control_tokens_are_special_whether_they_have_a_name_or_not() -> None:
    tokenizer = chats.tokenizer("gemma2")
    ids = tokenizer.convert_tokens_to_ids(["<bos>", "<end_of_turn>", "cat", "<0x0A>"])
    assert TokenizerWrapper(tokenizer).special(ids) == [True, True, False, False]
    assert TokenizerWrapper(None).special([0, 1]) == [False, False]


def test_what_unknown_words_become_is_not_special_unless_it_is_bos_or_eos_too() -> None:
    words = heta_lens.load_demo_model().tokenizer
    assert words is not None and words.unk_token_id in words.all_special_ids
    ids = [words.bos_token_id, words.unk_token_id, words.pad_token_id]
    assert TokenizerWrapper(words).special(ids) == [True, False, True]
    one_for_all = deepcopy(words)
    one_for_all.unk_token = words.eos_token
    assert TokenizerWrapper(one_for_all).special([words.eos_token_id]) == [True]


def test_what_stands_in_for_other_tokens() -> None:
    plain = TokenizerWrapper(zoo.tokenizer())
    blank = plain.stand_in("space")
    assert blank is not None and plain.decode([blank]) == " " and plain.stand_in("pad") == plain.filler != blank
    words = TokenizerWrapper(zoo.whole_words())  # none of which is a blank
    assert words.stand_in("space") == words.stand_in("pad") == words.filler
    assert TokenizerWrapper(None).stand_in("space") is None
