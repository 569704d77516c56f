"""The models that are measured, their prompts, and predictions of these: random weights, and SmolLM2."""

import re
import warnings
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

import heta_lens

SMOLLM2 = Path(__file__).parents[1] / "models" / "SmolLM2-135M-Instruct"  # from `make real-models`
TEXT = (  # a text that every measurement of speed on SmolLM2 begins with
    "Café list:\n- 2 eggs\n- 100 g flour\n- 1 litre of milk\n\nStep 1: Mix the flour with the milk. Step 2: Don't mix "
    "the eggs with the"
)
SEED = 0
WIDE = {"n_layers": 8, "d_model": 512, "n_heads": 8, "d_head": 64, "d_vocab": 20_000, "n_ctx": 4096}
SIZES: dict[str, dict[str, Any]] = {
    "gpt2-like": {**WIDE, "d_mlp": 2048, "act_fn": "gelu_new", "normalization_type": "LN"},
    "llama-like": {
        **WIDE, "d_mlp": 1408, "act_fn": "silu", "gated_mlp": True, "n_key_value_heads": 2,
        "positional_embedding_type": "rotary", "normalization_type": "RMS", "final_rms": True,
    },
}  # fmt: skip


def random_model(sizes: dict[str, Any]) -> Any:
    """Return a model with random weights whose predictions are neither flat nor certain."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            from transformer_lens import HookedTransformer, HookedTransformerConfig
        except ImportError:  # since TransformerLens 4
            model = TransformerBridge.boot_native(sizes, device="cpu")
        else:
            model = HookedTransformer(HookedTransformerConfig.from_dict({**sizes, "device": "cpu"}))
    generator = torch.Generator().manual_seed(SEED)
    scale = sizes["d_model"] ** -0.5
    for name, weights in model.named_parameters():
        if weights.ndim > 1 and not re.search(r"\bb_|_b_|bias", name):
            size = 4 * scale if re.search("unembed|head", name) else 0.5 if "embed" in name else scale
            weights.data.normal_(std=size, generator=generator)
    return model.eval()


def random_tokens(model: Any, n: int) -> Int[Tensor, "1 pos"]:
    return torch.randint(model.cfg.d_vocab, (1, n), generator=torch.Generator().manual_seed(SEED))


def predicted(model: Any, ids: Int[Tensor, "1 pos"]) -> heta_lens.Prediction:
    """Return the prediction of the model's own next token."""
    _, cache = model.run_with_cache(ids, names_filter=heta_lens.names_filter)
    return heta_lens.Prediction.from_cache(cache, tokens=ids)
