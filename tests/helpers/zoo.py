"""A zoo of tiny random decoder-only models, one for every kind of model that TransformerLens can run.

Everything is built offline, from seeded weights and without touching the global random state. Models are cached and
shared: a test that changes one (hooks, weights, flags) undoes it, or builds its own with `bridge.__wrapped__(...)`.
There are four heads (two in the parallel families), so `d_model` is a multiple of eight.
"""

import atexit
import importlib.metadata
import re
import shutil
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import pytest
import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, normalizers, pre_tokenizers, trainers
from tokenizers import models as tokenizer_models
from transformer_lens.config import TransformerBridgeConfig
from transformer_lens.model_bridge import TransformerBridge
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

import heta_lens.model.loading

HAS_HOOKED = int(importlib.metadata.version("transformer-lens").split(".")[0]) < 4
"""`HookedTransformer` was removed in TransformerLens 4."""

N_CTX = 64
D_MLP = 16
SLIDING_WINDOW = 4
SPECIAL = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>"}
SENTENCES = [
    "The cat sat on the mat, and the dog ran to the tower.",
    "The capital of France is Paris. The capital of Italy is Rome.",
    "When Mary and John went to the store, John gave a drink to Mary.",
    "The tower is in Paris, not in Rome. Is the cat in the store? No, the dog is!",
]


# ----------------------------------------------------------------------------------------------------- tokenizer
@lru_cache
def tokenizer() -> PreTrainedTokenizerBase:
    """Byte-level BPE of about a hundred tokens over the letters of `SENTENCES`.

    Decoding is concatenative, words carry their leading space (" cat"), and no special token is added by itself.
    """
    bpe = Tokenizer(tokenizer_models.BPE(unk_token=SPECIAL["unk_token"]))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=list(SPECIAL.values()), show_progress=False)
    bpe.train_from_iterator(SENTENCES, trainer)
    return on_disk(bpe)


def on_disk(
    tokenizer: Tokenizer, special: Mapping[str, str] = SPECIAL, template: str | None = None
) -> PreTrainedTokenizerBase:
    """TransformerLens re-reads a tokenizer from its folder, so one that lives in memory only is not enough."""
    folder = tempfile.mkdtemp(prefix="zoo-tokenizer-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **special)
    made.chat_template = template
    made.save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


def sentencepiece(byte_values: Sequence[int] = range(256), missing: str = "#@Q") -> PreTrainedTokenizerBase:
    """As Llama 2's: every printable ASCII character but the ``missing`` ones is a piece and, as all bytes are, a byte.

    It puts a blank before every text. "cat" is two tokens: one of them was added later.
    """
    pieces = [chr(code) for code in range(33, 127) if chr(code) not in missing]
    pieces += ["▁", "▁the", "▁cat", "▁Q", "▁a", "cat"]
    names = [*SPECIAL.values(), *(f"<0x{byte:02X}>" for byte in byte_values), *pieces]
    bpe = Tokenizer(
        tokenizer_models.BPE(
            {name: place for place, name in enumerate(names)}, [], unk_token=SPECIAL["unk_token"], byte_fallback=True
        )
    )
    bpe.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    blanks = decoders.Replace("▁", " ")
    bpe.decoder = decoders.Sequence([blanks, decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    bpe.add_tokens([AddedToken("the cat", normalized=False)])
    return on_disk(bpe)


def unigram() -> PreTrainedTokenizerBase:
    """As Gemma's: byte tokens, no blank before a text, and a special token whose text is a plain token's too."""
    pieces = [*SPECIAL.values(), *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁the", "▁cat", "cat", "▁.", "\n"]
    pieces += [chr(code) for code in range(33, 127)]
    model = Tokenizer(tokenizer_models.Unigram([(piece, -1.0) for piece in pieces], unk_id=3, byte_fallback=True))
    model.normalizer = normalizers.Replace(" ", "▁")
    model.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return on_disk(model)


def word_pieces() -> PreTrainedTokenizerBase:
    """As BERT's: a word's later pieces are marked, and all others follow a blank."""
    characters = [chr(code) for code in range(33, 127)]
    names = [*SPECIAL.values(), "the", "cat", "##cat", *characters, *(f"##{one}" for one in characters[::2])]
    model = Tokenizer(
        tokenizer_models.WordPiece({name: place for place, name in enumerate(names)}, unk_token=SPECIAL["unk_token"])
    )
    model.pre_tokenizer = pre_tokenizers.Whitespace()
    model.decoder = decoders.WordPiece(cleanup=False)
    return on_disk(model)


def whole_words() -> PreTrainedTokenizerBase:
    """The demo model's: a token per word, with a blank before it."""
    return AutoTokenizer.from_pretrained(heta_lens.model.loading.DEMO)


TOKENIZERS: dict[str, Callable[[], PreTrainedTokenizerBase]] = {
    "byte-level": tokenizer,
    "sentencepiece": sentencepiece,
    "unigram": unigram,
    "word pieces": word_pieces,
    "words": whole_words,
}


# ------------------------------------------------------------------------------------------------------- weights
def randomize(model: torch.nn.Module, seed: int = 0) -> None:
    """Fill every parameter with seeded noise strong enough for peaked attention and visible curvature."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        # Drawn in float32 whatever the dtype, so that a model has the same weights in each.
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float32)
        is_scale = re.search(r"(ln|norm).*\bw(eight)?$", name) is not None
        parameter.data.copy_(1 + 0.3 * noise if is_scale else 0.4 * noise)


# -------------------------------------------------------------------------------------------- Hugging Face models
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2Config", {"n_positions": N_CTX, "n_inner": D_MLP}),
    "gptj": ("GPTJConfig", {"num_attention_heads": 2, "n_positions": N_CTX, "n_inner": D_MLP, "rotary_dim": 2}),
    "llama": ("LlamaConfig", {"num_key_value_heads": 2}),
    "phi3": ("Phi3Config", {"num_key_value_heads": 2, "original_max_position_embeddings": N_CTX}),
    "qwen2": ("Qwen2Config", {"num_key_value_heads": 2}),
    "neox": ("GPTNeoXConfig", {"num_attention_heads": 2, "rotary_pct": 0.5}),
    "gemma2": ("Gemma2Config", {"num_key_value_heads": 2, "head_dim": 4, "sliding_window": SLIDING_WINDOW}),
    "mistral": ("MistralConfig", {"num_key_value_heads": 2, "sliding_window": SLIDING_WINDOW}),
    # An embedding that is normalised before it is hooked, and ALiBi.
    "bloom": ("BloomConfig", {}),
    # Norms after attention and MLP, and attention sinks, which rows of the pattern lose weight to.
    "olmo2": ("Olmo2Config", {"num_key_value_heads": 2}),
    "gptoss": (
        "GptOssConfig",
        {
            "num_key_value_heads": 2,
            "head_dim": 4,
            "sliding_window": SLIDING_WINDOW,
            "num_local_experts": 2,
            "num_experts_per_tok": 1,
        },
    ),
}


def huggingface(
    family: str, dtype: torch.dtype = torch.float64, d_model: int = 8, n_layers: int = 2
) -> transformers.PreTrainedModel:
    """A new Hugging Face model of this family; the same arguments give the same weights."""
    name, options = FAMILIES[family]
    ids = {f"{kind}_token_id": getattr(tokenizer(), f"{kind}_token_id") for kind in ("bos", "eos", "pad")}
    sizes = {"hidden_size": d_model, "num_hidden_layers": n_layers, "num_attention_heads": 4}
    if "n_inner" not in options:
        sizes |= {"intermediate_size": D_MLP, "max_position_embeddings": N_CTX}
    config = getattr(transformers, name)(**{"vocab_size": len(tokenizer()), **ids, **sizes, **options})
    with torch.random.fork_rng(devices=[]):
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", experts_implementation="eager")
    model.config.architectures = [type(model).__name__]  # as in a folder it was saved to
    randomize(model)
    return model.to(dtype).eval()


# ------------------------------------------------------------------------------------------------------- bridges
@lru_cache
def bridge(family: str, dtype: torch.dtype = torch.float64, d_model: int = 8, n_layers: int = 2) -> TransformerBridge:
    """A bridge around `huggingface(family, ...)`."""
    model = huggingface(family, dtype, d_model, n_layers)
    with torch.random.fork_rng(devices=[]):
        booted = TransformerBridge.boot_transformers(
            f"zoo/{family}", hf_model=model, tokenizer=tokenizer(), dtype=dtype, device="cpu"
        )
    return booted.eval()


@lru_cache
def native_bridge(dtype: torch.dtype = torch.float64, d_model: int = 8, n_layers: int = 2) -> TransformerBridge:
    """A bridge around TransformerLens' own model: learned positions, pre-LayerNorm."""
    config = TransformerBridgeConfig(
        d_model=d_model, d_head=d_model // 4, n_heads=4, n_layers=n_layers, n_ctx=N_CTX, d_mlp=D_MLP,
        d_vocab=len(tokenizer()), act_fn="gelu_new", device="cpu",
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        model = TransformerBridge.boot_native(config, tokenizer=tokenizer(), dtype=dtype, device="cpu")
    randomize(model)
    model.unembed.b_U.data.zero_()  # TransformerLens 3 adds this bias to a model that has none
    return model.eval()


# --------------------------------------------------------------------------------------------- HookedTransformers
RMS_ROTARY = {
    "act_fn": "silu", "gated_mlp": True, "normalization_type": "RMS", "final_rms": True, "eps": 1e-6,
    "positional_embedding_type": "rotary", "n_key_value_heads": 2,
}  # fmt: skip
PARALLEL = {"parallel_attn_mlp": True, "positional_embedding_type": "rotary", "n_heads": 2}
HOOKED_FAMILIES: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "gptj": {**PARALLEL, "rotary_dim": 2, "rotary_adjacent_pairs": True},
    "llama": RMS_ROTARY,
    "phi3": {**RMS_ROTARY, "eps": 1e-5},
    "qwen2": RMS_ROTARY,
}
HOOKED_CONFIGS: dict[str, dict[str, Any]] = {
    "standard": {},
    "rotary_gqa": RMS_ROTARY,
    "parallel": PARALLEL,
    "alibi": {"positional_embedding_type": "alibi"},
    "shortformer": {"positional_embedding_type": "shortformer"},
    "attn_only": {"attn_only": True},
    "local": {"use_local_attn": True, "window_size": SLIDING_WINDOW, "attn_types": ["global", "local"] * 4},
    "sinks": {**RMS_ROTARY, "use_attention_sinks": True},
    "relu": {"act_fn": "relu"},
    "post_norm": {**RMS_ROTARY, "use_normalization_before_and_after": True},
}


def _hooked(options: dict[str, Any], dtype: torch.dtype, d_model: int, n_layers: int) -> Any:
    from transformer_lens import HookedTransformer, HookedTransformerConfig

    sizes = {"d_model": d_model, "n_layers": n_layers, "n_heads": 4, "d_mlp": D_MLP, "n_ctx": N_CTX, **options}
    config = HookedTransformerConfig.from_dict(
        {"act_fn": "gelu_new", "d_vocab": len(tokenizer()), "device": "cpu", "dtype": dtype, **sizes}
        | {"d_head": d_model // sizes["n_heads"]}
    )
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        # The class is deprecated as a whole, and says so whenever one is made.
        warnings.simplefilter("ignore", DeprecationWarning)
        return HookedTransformer(config, tokenizer=tokenizer()).eval()


@lru_cache
def hooked(family: str, dtype: torch.dtype = torch.float64, d_model: int = 8, n_layers: int = 2) -> Any:
    """A `HookedTransformer` with the unprocessed weights of `huggingface(family, ...)`."""
    from transformer_lens.pretrained import weight_conversions

    model = _hooked(HOOKED_FAMILIES[family], dtype, d_model, n_layers)
    convert = getattr(weight_conversions, f"convert_{family}_weights")
    state = convert(huggingface(family, dtype, d_model, n_layers), model.cfg)
    # A converter leaves out biases that are zero, and adds some that the model has no place for.
    for name, parameter in model.named_parameters():
        parameter.data.copy_(state[name] if name in state else torch.zeros_like(parameter))
    return model


@lru_cache
def hooked_config(name: str, dtype: torch.dtype = torch.float64, d_model: int = 8, n_layers: int = 2) -> Any:
    """A `HookedTransformer` of a block variant that needs no Hugging Face model."""
    model = _hooked(HOOKED_CONFIGS[name], dtype, d_model, n_layers)
    randomize(model)
    return model


# ---------------------------------------------------------------------------------------------------------- kinds
KINDS: list[tuple[str, Callable[..., Any]]] = [
    *((f"bridge-{family}", partial(bridge, family)) for family in FAMILIES),
    ("bridge-native", native_bridge),
]
"""Name and builder (called with an optional dtype) of every kind of model the installed version can run."""
if HAS_HOOKED:
    KINDS += [(f"hooked-{family}", partial(hooked, family)) for family in HOOKED_FAMILIES]
    KINDS += [(f"hooked-{name}", partial(hooked_config, name)) for name in HOOKED_CONFIGS]


def models(pattern: str = "") -> list[Any]:
    """Builders whose name matches a regular expression, for `pytest.mark.parametrize("build", zoo.models())`."""
    return [pytest.param(build, id=name) for name, build in KINDS if re.search(pattern, name)]


HIDE_SOFTMAX = "bridge-(gptj|native)$" if HAS_HOOKED else "bridge-gptj$"
"""Models on whose attention patterns hooks change nothing, so that ``gim`` refuses them."""


def hides_softmax(build: Any) -> bool:
    return build in [case.values[0] for case in models(HIDE_SOFTMAX)]


def named(pattern: str) -> list[Any]:
    """Names and builders of `models(pattern)`."""
    return [pytest.param(case.id, case.values[0], id=case.id) for case in models(pattern)]


EXACT = 1e-8
FLOAT32_NORMS = 3e-5  # Hugging Face's RMS norms (and GPT-J's rotation) compute in float32 inside a float64 model
EXACT_BRIDGES = ("gpt2", "neox", "native")


def tolerance(name: str) -> float:
    kind, family = name.split("-", 1)
    return EXACT if kind == "hooked" or family in EXACT_BRIDGES else FLOAT32_NORMS


def prompt(model: Any, n: int = 8, seed: int = 0) -> torch.Tensor:
    """Seeded ids `[1, n]` of ordinary tokens, after a <bos> where the model has a tokenizer that knows one."""
    first = len(SPECIAL)
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(first, model.cfg.d_vocab, (1, n), generator=generator)
    bos = getattr(model.tokenizer, "bos_token_id", None)
    if bos is not None:
        ids[0, 0] = bos
    return ids


# ------------------------------------------------------------------------------------ models that a test may change
NEW: dict[str, Callable[[], Any]] = {
    "gpt2": lambda: bridge.__wrapped__("gpt2"),
    "llama": lambda: bridge.__wrapped__("llama"),
    "native": lambda: native_bridge.__wrapped__(),
    **({"hooked": lambda: hooked.__wrapped__("gpt2")} if HAS_HOOKED else {}),
}
"""One of a kind, made anew by each call."""
