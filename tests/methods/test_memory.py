"""The predicted memory is within 25 % of the measured peak on models that are there."""

from typing import Any

import pytest
import torch
from transformer_lens.model_bridge import TransformerBridge
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, Phi3Config

import heta_lens
from helpers import zoo
from heta_lens import METHODS, estimate_memory
from heta_lens._util.work import Allocations
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.batching import Sizes
from heta_lens.model.hooks import lean_names_filter

SIZES: dict[str, Any] = {"hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 4, "num_attention_heads": 4}
LLAMA = LlamaConfig(**SIZES, num_key_value_heads=2, vocab_size=2000)
PHI3 = Phi3Config(**SIZES, vocab_size=2000, pad_token_id=0)
GPT2 = GPT2Config(n_embd=128, n_layer=4, n_head=4, vocab_size=2000)
QUICK_POINTS: list[tuple[Any, str, int, str, dict[str, Any]]] = [
    (LLAMA, "float32", 128, "leave_one_out", {"batch": 4}),
    (GPT2, "bfloat16", 128, "attn_lrp", {}),
]
POINTS: list[tuple[Any, str, int, str, dict[str, Any]]] = [
    (LLAMA, "float32", 96, "depass", {}),
    (PHI3, "bfloat16", 96, "heta", {"variant": "kl_only", "batch": 4}),
    (LLAMA, "float32", 96, "heta", {"variant": "ls", "layers": 1, "batch": 4, "probes": 2}),
    (LLAMA, "float32", 96, "heta", {"checkpoint": True, "batch": 4, "probes": 2}),
    (LLAMA, "float32", 128, "integrated_gradients", {"batch": 4, "steps": 4}),
    (GPT2, "float32", 96, "heta", {"batch": 4, "probes": 2}),
    (PHI3, "bfloat16", 96, "heta", {"batch": 4, "probes": 2}),
    (LLAMA, "float32", 192, "heta", {"batch": 4, "probes": 2}),
]


def model_of(config: Any, dtype: str) -> Any:
    torch.manual_seed(0)
    there = AutoModelForCausalLM.from_config(config, attn_implementation="eager").to(getattr(torch, dtype))
    return TransformerBridge.boot_transformers(
        "there", hf_model=there, tokenizer=zoo.tokenizer(), device="cpu", dtype=there.dtype
    ).eval()


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("config", "dtype", "tokens", "method", "options"),
    [*QUICK_POINTS, *(pytest.param(*point, marks=pytest.mark.thorough) for point in POINTS)],
)
def test_the_prediction_is_near_the_measured_peak(
    config: Any, dtype: str, tokens: int, method: str, options: dict[str, Any]
) -> None:
    predicted = estimate_memory(config, tokens, memory=2**40, method=method, dtype=dtype, **options)
    ids = torch.randint(5, 90, (1, tokens))
    model = model_of(config, dtype)
    with Allocations() as held:
        cache = ModelAdapter(model).cache(ids, lean_names_filter)
        assert predicted.cache == held.now
        heta_lens.attribute(cache, 7, tokens=ids, method=METHODS[method](**options))
    assert predicted.needed - predicted.weights == pytest.approx(held.most, rel=0.25)


def test_sizes_of_a_configuration_are_those_of_its_model() -> None:
    for config in (LLAMA, PHI3, GPT2):
        assert Sizes.of(config, 4) == ModelAdapter(model_of(config, "float32")).sizes


def test_what_takes_less_is_proposed_where_memory_is_short() -> None:
    enough = estimate_memory(LLAMA, 64, memory=2**40, batch=1)
    assert enough.fits and enough.smaller == () and "too much" not in repr(enough)
    tight = estimate_memory(LLAMA, 64, memory=enough.needed - 1, batch=1)
    assert not tight.fits and "too much" in repr(tight)
    sizes = [other.needed for other in tight.smaller]
    assert sizes == sorted(sizes, reverse=True) and max(sizes) < tight.needed
    assert {"checkpoint": True, "batch": 1} in [other.options for other in tight.smaller]
