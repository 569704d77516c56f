"""Models that are no decoders, unusual, very sure, or in somebody's work; blocks that run alone; odd tokenizers."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models
from transformer_lens.config import TransformerBridgeConfig
from transformer_lens.model_bridge import TransformerBridge

from helpers import zoo
from heta_lens.model.tokenizer import Decode


def boot(config: transformers.PreTrainedConfig, model: type) -> Any:
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrapped = model(config).eval()
        return TransformerBridge.boot_transformers(
            "zoo/other", hf_model=wrapped, tokenizer=zoo.tokenizer(), dtype=torch.float32, device="cpu"
        ).eval()


SIZES = {"d_model": 8, "d_head": 2, "n_heads": 4, "n_layers": 2, "n_ctx": 16, "d_mlp": 16, "d_vocab": 121}


def bert() -> Any:
    config = transformers.BertConfig(
        vocab_size=121, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16,
        attn_implementation="eager",
    )  # fmt: skip
    return boot(config, transformers.BertForMaskedLM)


def t5() -> Any:
    config = transformers.T5Config(
        vocab_size=121, d_model=8, d_kv=4, d_ff=16, num_layers=2, num_heads=2, decoder_start_token_id=0
    )
    return boot(config, transformers.T5ForConditionalGeneration)


def mamba() -> Any:
    config = transformers.MambaConfig(vocab_size=121, hidden_size=8, state_size=4, num_hidden_layers=2)
    return boot(config, transformers.MambaForCausalLM)


def bidirectional() -> Any:
    config = TransformerBridgeConfig(**SIZES, act_fn="gelu_new", device="cpu", attention_dir="bidirectional")
    with torch.random.fork_rng(devices=[]):
        return TransformerBridge.boot_native(config, tokenizer=zoo.tokenizer(), device="cpu").eval()


def hooked(kind: str, **options: Any) -> Any:
    import transformer_lens

    config = transformer_lens.HookedTransformerConfig(**{**SIZES, "act_fn": "relu", "device": "cpu", **options})
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return getattr(transformer_lens, kind)(config, tokenizer=zoo.tokenizer()).eval()


NO_DECODERS: dict[str, Callable[[], Any]] = {
    "bert": bert,
    "t5": t5,
    "bidirectional": bidirectional,
}

T5 = {"relative_attention_max_distance": 8, "relative_attention_num_buckets": 8, "tie_word_embeddings": False}

if zoo.HAS_HOOKED:
    NO_DECODERS |= {
        "HookedEncoder": lambda: hooked("HookedEncoder", attention_dir="bidirectional"),
        "HookedEncoderDecoder": lambda: hooked("HookedEncoderDecoder", decoder_start_token_id=0, **T5),
        "HookedTransformer": lambda: hooked("HookedTransformer", attention_dir="bidirectional"),
    }


def sure(family: str, dtype: torch.dtype, certainty: float) -> Any:
    """A model whose last norm is turned up, so that it is nearly certain of what comes next."""
    model = zoo.bridge.__wrapped__(family, dtype)
    wrapped: Any = model.original_model
    norm = wrapped.transformer.ln_f if family == "gpt2" else wrapped.gpt_neox.final_layer_norm
    for parameter in norm.parameters():
        parameter.data *= certainty
    return model


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


def counting(decode: Decode) -> tuple[Decode, list[int]]:
    """``decode``, and the list of how many tokens each call was given."""
    calls: list[int] = []

    def counted(ids: Sequence[int]) -> str:
        calls.append(len(ids))
        return decode(ids)

    return counted, calls


OWN_KINDS: dict[str, Callable[[], Any]] = {
    "gpt2": lambda: zoo.bridge.__wrapped__("gpt2"),
    "native": lambda: zoo.native_bridge.__wrapped__(),
    **({"hooked": lambda: zoo.hooked.__wrapped__("llama")} if zoo.HAS_HOOKED else {}),
}

N = 12  # tokens of a prompt: more than share a prefix
TWO_KINDS = list(OWN_KINDS)[:: len(OWN_KINDS) - 1]


def noted(seen: list[Any]) -> Callable[..., None]:
    return lambda activation, hook: seen.append((activation.shape, hook.name))


class Failure(Exception):
    """Like no other."""


def with_side_channel(*, last: bool = False) -> Any:
    """A new model in which the first block scales what the second attends to, by how large it is (``last``: was)."""
    model, told = zoo.NEW["gpt2"](), list[Any]()
    first, second = (block.attn for block in model.blocks)
    plain, changed = first.forward, second.forward

    def tell(hidden_states: Any, *args: Any, **kwargs: Any) -> Any:
        told[:] = [hidden_states.detach().abs().mean()]
        return plain(hidden_states, *args, **kwargs)

    def hear(hidden_states: Any, *args: Any, **kwargs: Any) -> Any:
        scale = told[0] if told else 1.0
        told[:] = told if last else []
        return changed(hidden_states * scale, *args, **kwargs)

    vars(first)["forward"], vars(second)["forward"] = tell, hear
    return model
