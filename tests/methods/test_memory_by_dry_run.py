"""The predicted memory is within 20 % of what is measured on a model that is there, for every kind of variant."""

from typing import Any

import pytest
import torch
from transformer_lens.model_bridge import TransformerBridge
from transformers import AutoModelForCausalLM, GPT2Config, GptOssConfig, LlamaConfig, Phi3Config, Qwen2Config

import heta_lens
from helpers import zoo
from heta_lens import Heta, estimate_memory
from heta_lens._util.work import Allocations
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.hooks import lean_names_filter

SIZES: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 4}
LLAMA = LlamaConfig(**SIZES, num_key_value_heads=2, vocab_size=90)
QWEN2 = Qwen2Config(**SIZES, num_key_value_heads=2, vocab_size=90)
PHI3 = Phi3Config(**SIZES, vocab_size=90, pad_token_id=0)
GPT2 = GPT2Config(n_embd=32, n_layer=3, n_head=4, vocab_size=90)
POINTS: list[tuple[Any, str, int, dict[str, Any]]] = [
    (LLAMA, "float32", 48, {}),
    (LLAMA, "bfloat16", 48, {}),
    (GPT2, "float32", 96, {}),
    (PHI3, "bfloat16", 96, {}),
    (GPT2, "bfloat16", 48, {"checkpoint": True}),
    (LLAMA, "float32", 96, {"checkpoint": True}),
    (LLAMA, "float32", 96, {"variant": "ls", "layers": 1}),
    (QWEN2, "float32", 48, {"variant": "lr", "rank": 4}),
    (LLAMA, "float32", 48, {"variant": "gn"}),
    (PHI3, "bfloat16", 96, {"variant": "kl_only"}),
    (LLAMA, "float32", 96, {"variant": "gs"}),
    (QWEN2, "float32", 96, {"variant": "win", "window": 32}),
    (QWEN2, "float32", 96, {"variant": "ls+win", "layers": 2, "window": 32}),
    (LLAMA, "float32", 128, {"variant": "win", "window": 16, "probes": 1}),
    (LLAMA, "float32", 96, {"variant": "lr+win", "window": 32, "rank": 4, "probes": 2}),
    (LLAMA, "bfloat16", 96, {"variant": "lr+win", "window": 32, "rank": 4, "probes": 2}),
]


def measured(config: Any, dtype: str, tokens: int, method: Heta) -> int:
    """The most bytes held while a cache is taken and explained, beside the model."""
    torch.manual_seed(0)
    there = AutoModelForCausalLM.from_config(config, attn_implementation="eager").to(getattr(torch, dtype))
    model = TransformerBridge.boot_transformers(
        "there", hf_model=there, tokenizer=zoo.tokenizer(), device="cpu", dtype=there.dtype
    ).eval()
    ids = torch.randint(5, 90, (1, tokens))
    with Allocations() as held:
        cache = ModelAdapter(model).cache(ids, lean_names_filter)
        heta_lens.attribute(cache, 7, tokens=ids, method=method)
    return held.most


@pytest.mark.slow
@pytest.mark.sample(quick=0, test=4)
@pytest.mark.usefixtures("unchecked")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("config", "dtype", "tokens", "options"), POINTS)
def test_the_prediction_is_near_what_is_measured(config: Any, dtype: str, tokens: int, options: dict[str, Any]) -> None:
    options = {**options, "batch": 4}
    predicted = estimate_memory(config, tokens, memory=2**40, dtype=dtype, **options)
    expected = measured(config, dtype, tokens, Heta(**options))
    assert predicted.needed - predicted.weights == pytest.approx(expected, rel=0.2)


@pytest.mark.slow
def test_what_takes_less_is_proposed_where_it_is_too_much() -> None:
    enough = estimate_memory(LLAMA, 64, memory=2**40, batch=1)
    assert enough.fits and enough.smaller == () and "too much" not in repr(enough)
    tight = estimate_memory(LLAMA, 64, memory=enough.needed - 1, batch=1)
    assert not tight.fits and "too much" in repr(tight)
    sizes = [other.needed for other in tight.smaller]
    assert sizes == sorted(sizes, reverse=True) and max(sizes) < tight.needed
    assert {"checkpoint": True, "batch": 1} in [other.options for other in tight.smaller]


@pytest.mark.slow
def test_what_cannot_run_without_data_is_refused() -> None:
    """The experts of GPT-OSS, which PyTorch plans in bfloat16 only."""
    sizes: dict[str, Any] = {**SIZES, "num_key_value_heads": 2, "head_dim": 8, "num_local_experts": 4}
    config = GptOssConfig(**sizes, num_experts_per_tok=2, vocab_size=90)
    assert estimate_memory(config, 20, memory=2**30, dtype="bfloat16").fits
    with pytest.raises(ValueError, match=r"cannot run without data in float32 \(.*: try another dtype"):
        estimate_memory(config, 20, memory=2**30, dtype="float32")
