"""Models that are no decoders, or unusual ones."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
import transformers
from transformer_lens.config import TransformerBridgeConfig
from transformer_lens.model_bridge import TransformerBridge

from helpers import zoo


def boot(config: transformers.PreTrainedConfig, model: type) -> Any:
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrapped = model(config).eval()
        return TransformerBridge.boot_transformers(
            "zoo/other", hf_model=wrapped, tokenizer=zoo.tokenizer(), dtype=torch.float32, device="cpu"
        ).eval()


SIZES = {"d_model": 8, "d_head": 2, "n_heads": 4, "n_layers": 2, "n_ctx": 16, "d_mlp": 16, "d_vocab": 121}


def bert(attention: str = "eager") -> Any:
    config = transformers.BertConfig(
        vocab_size=121, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16,
        attn_implementation=attention,
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
