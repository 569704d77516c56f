"""Tokens and their texts: written, found, located and chat templates, with tokenizers of every kind."""

import random
from collections import defaultdict
from collections.abc import Sequence
from copy import deepcopy
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import decoders
from transformers import PreTrainedTokenizerFast

import heta_lens
from helpers import SHARED, chats, zoo
from helpers.odd_models import PIECES, SMILE, byte_fallback, concatenating, joining, real, stripping
from heta_lens._util.text import Span
from heta_lens.model import tokenizer
from heta_lens.model.tokenizer import Decode, TokenizerWrapper, chat_template, locate

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
        token = wrapper.find(text, context, log_probs)
        assert token == expected, text
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


STORIES = SHARED / "models/stories3M"


@pytest.mark.slow
@pytest.mark.skipif(not STORIES.exists(), reason="needs the stories3M model")
def test_every_printable_character_is_found_with_a_trained_llama_tokenizer() -> None:
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(STORIES / "tokenizer.json"))
    numbers = random.Random(0)
    log_probs = [-numbers.expovariate(0.1) for _ in range(len(tokenizer))]
    context = tokenizer.encode("Once upon a time there was a cat")
    check_printable(tokenizer, context, log_probs, PRINTABLE)
    wrapper = TokenizerWrapper(tokenizer)
    taken = {one: wrapper.name(wrapper.find(one, context, log_probs)) for one in PRINTABLE[::2]}
    assert {one for one, name in taken.items() if "<0x" in name} == set("#=@^_{}")
    assert wrapper.find(".", context, log_probs) == 4010
    assert wrapper.spell(".", context, log_probs) == [4010]


def test_a_byte_token_is_never_taken_for_a_character_that_has_a_token_of_its_own():
    tokenizer = zoo.sentencepiece()
    bytes_likely = [0.0 if "<0x" in name else -30.0 for name in tokenizer.convert_ids_to_tokens(range(len(tokenizer)))]
    wrapper = TokenizerWrapper(tokenizer)
    taken = {one: wrapper.name(wrapper.find(one, [0], bytes_likely)) for one in PRINTABLE[::2]}
    assert {one for one, name in taken.items() if "<0x" in name} == {"#", "@"}
    assert taken["Q"] == "▁Q"  # sooner another blank than a byte


def test_control_tokens_are_special_whether_they_have_a_name_or_not() -> None:
    tokenizer = chats.tokenizer("gemma2")
    ids = tokenizer.convert_tokens_to_ids(["<bos>", "<end_of_turn>", "cat", "<0x0A>"])
    assert TokenizerWrapper(tokenizer).special(ids) == [True, True, False, False]
    assert TokenizerWrapper(None).special([0, 1]) == [False, False]


def test_bytes_of_one_emoji_share_its_span():
    text, spans = locate(concatenating(["hi", b" " + SMILE[:2], SMILE[2:3], SMILE[3:], "!"]), range(5))
    assert text == "hi 😀!"
    assert spans == [Span(0, 2), Span(2, 4), Span(2, 4), Span(2, 4), Span(4, 5)]


def test_a_context_that_ends_inside_a_character_still_places_every_token():
    text, spans = locate(concatenating(["hi", SMILE[:1], SMILE[1:3]]), range(3))
    assert text == "hi�"
    assert spans == [Span(0, 2), Span(2, 3), Span(2, 3)]


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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Mia put the elephant in the fridge.", "no token for 'elephant': it has 375 tokens"),
        ("Mia sold the elephant; Leo ate.", "no token for 'sold', 'elephant', ';', 'ate': it has"),
        ("  ", "the text is empty"),
        ("Mia " * 1024, "1025 tokens long, and this model reads 1024 at most"),
        ("Mia " * 3000, "3001 tokens long"),
        ("Mia \udcff", "not valid UTF-8 at character 4"),
    ],
)
def test_text_that_cannot_be_read_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tokenizer.encode(heta_lens.load_demo_model(), text)


def test_the_name_of_the_unknown_token_is_text() -> None:
    assert tokenizer.encode(heta_lens.load_demo_model(), "Leo put the <unk> in the").shape == (1, 7)


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


def test_a_model_without_a_chat_template_is_refused() -> None:
    with pytest.raises(ValueError, match=r"this model's tokenizer has no chat template.*leave out chat=True"):
        chat_template(TokenizerWrapper(zoo.tokenizer()), {})
    with pytest.raises(ValueError, match="this model has no tokenizer, and so no chat template"):
        chat_template(TokenizerWrapper(None), {})
    with pytest.raises(ValueError, match="has no chat template"):
        chat_template(TokenizerWrapper(SimpleNamespace(decode=str)), {})


@pytest.mark.parametrize("option", ["return_tensors", "max_length", "misspelt"])
def test_an_option_that_the_template_does_not_read_is_refused(option: str) -> None:
    with pytest.raises(ValueError, match=f"this model's chat template does not read {option}="):
        template(**{option: 4})


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


def test_text_is_encoded_with_tokens_that_were_added_since() -> None:
    wrapped = deepcopy(chats.tokenizer("qwen2.5"))
    read = TokenizerWrapper(wrapped).encoder
    assert len(read()("<new>")) > 1
    wrapped.add_tokens(["<new>"])
    assert read()("<new>") == [len(wrapped) - 1]
