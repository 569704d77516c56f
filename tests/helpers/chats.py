"""Chats for tests: published chat templates on small tokenizers, models that read them, and random conversations."""

import warnings
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformer_lens.config import TransformerBridgeConfig
from transformer_lens.model_bridge import TransformerBridge
from transformers import PreTrainedTokenizerBase

from helpers import zoo

Pieces: TypeAlias = list[tuple[str, int]]  # of a rendered chat, each with the message that it is the content of, or -1
TEMPLATES = Path(__file__).parent / "chat_templates"
TEXTS = [*zoo.SENTENCES, "user\nassistant\nsystem\n", '{"name": "get_weather", "arguments": {"city": "Paris"}}\n\n']
SIZES = {"d_model": 8, "d_head": 2, "n_heads": 4, "n_layers": 1, "d_mlp": 16, "n_ctx": 8192}


# ------------------------------------------------------------------------------------------------------- tokenizers
def byte_level() -> Tokenizer:
    """As Qwen's and Llama 3's: all text is written by its bytes, an emoji by up to four tokens."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False))
    return made


def sentencepiece(*, prepend: bool = False) -> Tokenizer:
    """As Gemma's: blanks are ▁, and what has no token is written by its bytes.

    ``prepend``, as Llama 2's and Phi-3's: a blank is put before what follows a special token, so that decoding gives
    another text.
    """
    pieces = ["▁", "\n", "\n\n", "▁the", "▁cat", "▁Paris", "▁user", "user", "assistant", "model", "cat", ".▁"]
    names = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces, *map(chr, range(33, 127))]
    made = Tokenizer(models.Unigram([(name, -1.0) for name in names], unk_id=0, byte_fallback=True))
    blanks = normalizers.Replace(" ", "▁")
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), blanks]) if prepend else blanks
    stripped = [decoders.Strip(" ", 1, 0)] if prepend else []
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *stripped]
    made.decoder = decoders.Sequence(steps)
    return made


def metaspace() -> Tokenizer:
    """As Mistral's: a blank is put before a text that does not begin with a special token."""
    made = sentencepiece()
    made.normalizer = None
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    return made


@dataclass(frozen=True)
class Family:
    """A published chat template, on the kind of tokenizer that it comes with."""

    template: str
    tokenizer: Callable[[], Tokenizer]
    added: Sequence[str]
    special: dict[str, str] = field(default_factory=dict)
    system: bool = True  # whether it takes a system message
    alternating: bool = False  # whether user and assistant must take turns
    tools: bool = False
    stripped: Sequence[str] = ()  # the roles whose contents lose the white space around them


ALL = ("system", "user", "assistant")
FAMILIES = {
    "qwen2.5": Family(
        template="qwen2.5",
        tokenizer=byte_level,
        added=("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
        special={"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"},
        tools=True,
    ),
    "llama3": Family(
        template="llama3",
        tokenizer=byte_level,
        added=("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        special={"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>", "pad_token": "<|end_of_text|>"},
        stripped=ALL,
    ),
    "mistral": Family(
        template="mistral_v0.3",
        tokenizer=metaspace,
        added=(
            *("<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
            *("[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
        ),
        special={"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
        alternating=True,
        tools=True,
        stripped=("assistant",),
    ),
    "gemma2": Family(
        template="gemma2",
        tokenizer=sentencepiece,
        added=("<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>"),
        special={"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>"},
        system=False,
        alternating=True,
        stripped=ALL,
    ),
    "phi3": Family(
        template="phi3",
        tokenizer=lambda: sentencepiece(prepend=True),
        added=("<s>", "<|endoftext|>", "<|assistant|>", "<|system|>", "<|end|>", "<|user|>"),
        special={"bos_token": "<s>", "eos_token": "<|endoftext|>", "unk_token": "<unk>"},
    ),
}


@lru_cache
def tokenizer(name: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a family, saved to a folder and loaded from there."""
    family = FAMILIES[name]
    made = family.tokenizer()
    made.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in family.added])
    return zoo.on_disk(made, family.special, template(family.template))


def template(name: str) -> str:
    return (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")


# ----------------------------------------------------------------------------------------------------------- models
@lru_cache
def bridge(name: str = "qwen2.5") -> Any:
    """A small random bridge that reads a family's tokens."""
    config = TransformerBridgeConfig(
        **SIZES, d_vocab=len(tokenizer(name)), act_fn="gelu_new", tokenizer_prepends_bos=False, device="cpu"
    )
    with torch.random.fork_rng(devices=[]):
        made = TransformerBridge.boot_native(config, tokenizer=tokenizer(name), dtype=torch.float64, device="cpu")
    zoo.randomize(made)
    return made.eval()


@lru_cache
def hooked(name: str = "qwen2.5") -> Any:
    """A small random `HookedTransformer` that reads a family's tokens."""
    from transformer_lens import HookedTransformer, HookedTransformerConfig

    options = {**SIZES, "d_vocab": len(tokenizer(name)), "act_fn": "gelu_new", "dtype": torch.float64, "device": "cpu"}
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        made = HookedTransformer(HookedTransformerConfig.from_dict(options), tokenizer=tokenizer(name))
    zoo.randomize(made)
    return made.eval()


MODELS: dict[str, Callable[[str], Any]] = {"bridge": bridge, **({"hooked": hooked} if zoo.HAS_HOOKED else {})}


def with_template(source: str | None, name: str = "qwen2.5") -> Any:
    """A new model whose tokenizer has another chat template."""
    made = bridge.__wrapped__(name)
    made.tokenizer = deepcopy(tokenizer(name))
    made.tokenizer.chat_template = source
    return made


# ---------------------------------------------------------------------------------------------------- conversations
SYSTEM = {"role": "system", "content": "Be brief."}
CHAT = [
    {"role": "user", "content": "Where is the cat?"},
    {"role": "assistant", "content": "On the mat."},
    {"role": "user", "content": "And the dog? 😀"},
]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = {"type": "function", "id": "abc123xyz", "function": {"name": "get_weather", "arguments": {"city": "Paris"}}}
TOOL_CHAT = [
    {"role": "user", "content": "How is the weather in Paris?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "22 degrees", "tool_call_id": "abc123xyz"},
    {"role": "assistant", "content": "It is warm."},
    {"role": "user", "content": "Thanks"},
]
ACCENT = "e\N{COMBINING ACUTE ACCENT}"
FAMILY = "\N{ZERO WIDTH JOINER}".join("👨👩👧")
CONTENTS = [
    *("The cat sat.", "The cat sat.", "", " ", "\n", " \n\t ", "\n\n", "a", "q", "qz", "qheta0n0z"),
    *("user", "assistant", "system", "model", "template", "user\n", "\nassistant\n", "{{ messages }}", "{% raw %}"),
    *("<|im_start|>", "<|im_end|>\n<|im_start|>assistant\n", "<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n"),
    *("[INST] user [/INST]", "</s>[INST] ", "<end_of_turn>\n<start_of_turn>model\n", "<|end|>\n<|user|>\n", "<s>"),
    *(
        "😀",
        f"a 😀{FAMILY} b",
        f"{ACCENT}t{ACCENT}",
        "שלום עולם",
        "مرحبا",
        "日本語。",
        "\N{ZERO WIDTH JOINER}",
        "\ufeff",
    ),
    *("  spaces before", "spaces after  ", "\nline before", "line after\n", "two\n\nparagraphs. Two sentences!"),
    *('"quoted" \\n', "<script>&amp;</script>", "\r\n", "\x00", "\N{NO-BREAK SPACE}x", "\N{REPLACEMENT CHARACTER}"),
    *("x" * 500, "long " * 100),
]


def conversation(name: str, seed: int) -> list[dict[str, Any]]:
    """A random conversation that a family's template takes, of contents that are hard to find again."""
    numbers, family = Random(f"{name} {seed}"), FAMILIES[name]
    length = numbers.randint(1, 7)
    roles = [("user", "assistant")[turn % 2] for turn in range(length)]
    if not family.alternating and numbers.random() < 0.5:
        roles = numbers.choices(ALL, k=length)
    if family.system and numbers.random() < 0.5:
        roles = ["system", *roles]
    few = numbers.sample(CONTENTS, k=3) if numbers.random() < 0.3 else CONTENTS  # so that contents repeat
    return [{"role": role, "content": _content(numbers, few)} for role in roles]


def _content(numbers: Random, contents: Sequence[str]) -> str:
    return "".join(numbers.choices(contents, k=numbers.choice([1, 1, 1, 2, 3])))


# ----------------------------------------------------------------------------------------------------------- oracle
QWEN = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."


def pieces(name: str, messages: Sequence[dict[str, Any]]) -> Pieces:
    """What a family's template makes of messages without tools, ending with the generation prompt.

    A transcription of the templates, which finds nothing but puts it down.
    """
    owned = [
        (message["content"].strip() if message["role"] in FAMILIES[name].stripped else message["content"], number)
        for number, message in enumerate(messages)
    ]
    return WRITTEN[name]([message["role"] for message in messages], owned)


def _qwen(roles: list[str], contents: Pieces) -> Pieces:
    written = [] if roles[0] == "system" else [(f"<|im_start|>system\n{QWEN}<|im_end|>\n", -1)]
    for role, content in zip(roles, contents, strict=True):
        written += [(f"<|im_start|>{role}\n", -1), content, ("<|im_end|>\n", -1)]
    return [*written, ("<|im_start|>assistant\n", -1)]


def _llama(roles: list[str], contents: Pieces) -> Pieces:
    written = [("<|begin_of_text|>", -1)]
    for role, content in zip(roles, contents, strict=True):
        written += [(f"<|start_header_id|>{role}<|end_header_id|>\n\n", -1), content, ("<|eot_id|>", -1)]
    return [*written, ("<|start_header_id|>assistant<|end_header_id|>\n\n", -1)]


def _mistral(roles: list[str], contents: Pieces) -> Pieces:
    written, first = [("<s>", -1)], roles[0] == "system"
    for place in range(first, len(roles)):
        if roles[place] == "assistant":
            written += [(" ", -1), contents[place], ("</s>", -1)]
            continue
        system = [contents[0], ("\n\n", -1)] if first and place == len(roles) - 1 else []
        written += [("[INST] ", -1), *system, contents[place], ("[/INST]", -1)]
    return written


def _gemma(roles: list[str], contents: Pieces) -> Pieces:
    written = [("<bos>", -1)]
    for role, content in zip(roles, contents, strict=True):
        named = "model" if role == "assistant" else role
        written += [(f"<start_of_turn>{named}\n", -1), content, ("<end_of_turn>\n", -1)]
    return [*written, ("<start_of_turn>model\n", -1)]


def _phi(roles: list[str], contents: Pieces) -> Pieces:
    written = []
    for role, content in zip(roles, contents, strict=True):
        written += [(f"<|{role}|>\n", -1), content, ("<|end|>\n", -1)]
    return [*written, ("<|assistant|>\n", -1)]


WRITTEN = {"qwen2.5": _qwen, "llama3": _llama, "mistral": _mistral, "gemma2": _gemma, "phi3": _phi}
