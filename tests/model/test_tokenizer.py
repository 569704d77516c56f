"""Tokens and their texts: written, found, located and chat templates, with tokenizers of every kind."""

import random
from collections import defaultdict
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers
from transformers import PreTrainedTokenizerFast

import heta_lens
from helpers import chats, paths, zoo
from helpers.odd_models import PIECES, SMILE, byte_fallback, concatenating, counting, joining, real, stripping
from heta_lens._util.text import Span
from heta_lens.model import tokenizer
from heta_lens.model.tokenizer import (
    TAIL,
    Decode,
    TokenizerWrapper,
    chat_template,
    locate,
)

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


def test_the_empty_string_is_refused():
    with pytest.raises(ValueError, match="empty"):
        found("")


@pytest.mark.parametrize("text", ["Paris", " Paris"])
def test_a_decoder_that_strips_the_first_space_writes_it_after_a_context(text: str):
    decode = stripping([" The", " Paris", "Nice"])
    assert found(text, decode, 3, context=[0]) == 1
    assert found(text, decode, 3, context=[]) == 1


@pytest.mark.parametrize("text", ["cat", " cat"])
def test_a_decoder_that_joins_words_finds_a_word_with_and_without_its_space(text: str):
    assert found(text, joining(["the", "cat", "sat"]), 3, context=[0]) == 1


def test_only_the_end_of_a_long_context_is_decoded():
    decode, calls = counting(concatenating(WORDS))
    assert found(" Lyon", decode, len(WORDS), context=[0] * 1000) == 5
    assert max(calls) <= TAIL + 1


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


def test_words_carry_their_leading_space():
    text, spans = locate(concatenating(["The", " cat", " sat", "."]), range(4))
    assert text == "The cat sat."
    assert spans == [Span(0, 3), Span(3, 7), Span(7, 11), Span(11, 12)]


def test_bytes_of_one_emoji_share_its_span():
    text, spans = locate(concatenating(["hi", b" " + SMILE[:2], SMILE[2:3], SMILE[3:], "!"]), range(5))
    assert text == "hi 😀!"
    assert spans == [Span(0, 2), Span(2, 4), Span(2, 4), Span(2, 4), Span(4, 5)]


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


def test_locating_a_long_context_decodes_a_few_tokens_at_a_time():
    decode, calls = counting(concatenating([b"a", SMILE[:2], SMILE[2:]]))
    locate(decode, [0, 1, 2] * 100)
    assert max(calls) <= 4
    assert len(calls) <= 2 * 300


def test_encoding_keeps_the_text_and_begins_it() -> None:
    model = heta_lens.load_demo_model()
    ids = tokenizer.encode(model, "Mia put the key\n in  the drawer.")
    assert model.tokenizer.decode(ids[0]) == "<bos> Mia put the key in the drawer."


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Mia put the elephant in the fridge.", "no token for 'elephant': it knows 375, each a word"),
        ("Mia sold the elephant; Leo ate.", "no token for 'sold', 'elephant', ';', 'ate': it knows"),
        ("  ", "the text is empty"),
        ("Mia " * 1024, "1025 tokens long, and this model reads 1024 at most"),
        ("Mia " * 3000, "3001 tokens long"),
        ("Mia \udcff", "not valid UTF-8 at character 4"),
    ],
)
def test_text_that_cannot_be_read_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tokenizer.encode(heta_lens.load_demo_model(), text)


USER = [{"role": "user", "content": "The cat 😀"}]


def template(name: str = "qwen2.5", source: str | None = None, **options: Any) -> Any:
    tokenizer = deepcopy(chats.tokenizer(name))
    tokenizer.chat_template = source or tokenizer.chat_template
    return chat_template(TokenizerWrapper(tokenizer), {"add_generation_prompt": True, **options})


@pytest.mark.parametrize("name", chats.FAMILIES)
def test_text_and_tokens_are_the_tokenizers_own(name: str) -> None:
    made = template(name)
    text = made.render(USER)
    assert text == chats.tokenizer(name).apply_chat_template(USER, tokenize=False, add_generation_prompt=True)
    ids, spans = made.encode(USER, text)
    assert ids == chats.tokenizer(name)(text, add_special_tokens=False)["input_ids"]
    place = text.index("😀")
    writing = [token for token, span in zip(ids, spans, strict=True) if span == (place, place + 1)]
    assert chats.tokenizer(name).decode(writing).strip() == "😀" and len(writing) == 4
    assert "".join(text[slice(*span)] for span in dict.fromkeys(spans)) == text


def test_without_offsets_such_text_is_refused() -> None:
    made = template("phi3")
    slow = SimpleNamespace(
        apply_chat_template=made.tokenizer.wrapped.apply_chat_template, decode=made.tokenizer.wrapped.decode
    )
    with pytest.raises(
        ValueError, match=r"cannot be located in the text .* tokenizer \(SimpleNamespace\) has no offset"
    ):
        type(made)(TokenizerWrapper(slow), made.options).encode(USER, made.render(USER))


def test_control_tokens_in_messages_can_be_read_as_text() -> None:
    made, chat = template(sanitize_control_tokens=True), [{"role": "user", "content": "<|im_end|> a"}]
    text = made.render(chat)
    ids, spans = made.encode(chat, text)
    end = made.tokenizer.wrapped.convert_tokens_to_ids("<|im_end|>")
    assert ids.count(end) == 2 and template().encode(chat, text)[0].count(end) == 3
    assert "".join(text[slice(*span)] for span in spans) == text


def test_the_tokenizer_is_left_as_it_was() -> None:
    made = template()
    tokenizer = made.tokenizer.wrapped
    tokenizer.backend_tokenizer.enable_padding(length=7)
    before = tokenizer.backend_tokenizer.padding
    made.encode(USER, made.render(USER))
    assert tokenizer.backend_tokenizer.padding == before


def test_a_model_without_a_chat_template_is_refused() -> None:
    with pytest.raises(ValueError, match="this model's tokenizer has no chat template"):
        chat_template(TokenizerWrapper(zoo.tokenizer()), {})
    with pytest.raises(ValueError, match="this model has no tokenizer, and so no chat template"):
        chat_template(TokenizerWrapper(None), {})
    with pytest.raises(ValueError, match="has no chat template"):
        chat_template(TokenizerWrapper(SimpleNamespace(decode=str)), {})


def test_a_chat_template_may_be_given() -> None:
    made = chat_template(TokenizerWrapper(zoo.tokenizer()), {"chat_template": "{{ messages[0].content }}"})
    assert made.render(USER) == "The cat 😀"


@pytest.mark.parametrize("option", ["tokenize", "return_dict", "return_tensors", "padding", "max_length"])
def test_options_that_are_not_of_a_template_are_refused(option: str) -> None:
    with pytest.raises(TypeError, match=f"{option}= is not an option of a chat template"):
        template(**{option: True})


@pytest.mark.parametrize(
    ("name", "option"), [("llama3", {"tools": [chats.WEATHER]}), ("qwen2.5", {"enable_thinking": False})], ids=str
)
def test_options_that_the_template_does_not_read_are_refused(name: str, option: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"does not read {next(iter(option))}=, so it would have no effect"):
        template(name, **option)
    assert template(source=chats.template("qwen3"), enable_thinking=False).render(USER).endswith("</think>\n\n")


@pytest.mark.parametrize(
    ("name", "messages", "reason"),
    [
        ("gemma2", [chats.SYSTEM, *USER], "System role not supported"),
        ("gemma2", [*USER, *USER], "Conversation roles must alternate user/assistant/user/assistant/..."),
        ("mistral", [{"role": "critic", "content": "no"}], "After the optional system message"),
        ("qwen2.5", [{"role": "user"}], "'dict object' has no attribute 'content'"),
        ("qwen2.5", [{"role": "user", "content": 5}], "can only concatenate str"),
    ],
    ids=["system", "alternate", "role", "no content", "no text"],
)
def test_what_the_template_refuses_is_said_in_a_line(name: str, messages: list[Any], reason: str) -> None:
    with pytest.raises(ValueError, match=rf"this model's chat template refuses this chat: .*{reason}") as raised:
        template(name).render(messages)
    assert "\n" not in str(raised.value)
