"""The models that are measured, the prompts of the speed tables, and what many measurements share.

Two models do not come with this repository: stories3M, a folder with a `load.py` at models/stories3M, and SmolLM2,
which `make real-models` fetches.
"""

import re
import runpy
import warnings
from collections.abc import Callable
from functools import cache
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode
from transformer_lens.model_bridge import TransformerBridge

import heta_lens
from heta_lens.data.recall import Story, stories

FOLDERS = Path(__file__).parents[1] / "models"
STORIES3M, SMOLLM2 = FOLDERS / "stories3M", FOLDERS / "SmolLM2-135M-Instruct"
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


@cache
def load_stories3m() -> Any:
    return runpy.run_path(str(STORIES3M / "load.py"))["load_hooked"](str(STORIES3M))


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


MODELS: dict[str, Callable[[], Any]] = {
    **{name: lambda sizes=sizes: random_model(sizes) for name, sizes in SIZES.items()},
    "demo": heta_lens.load_demo_model,
    "stories3M": load_stories3m,
    "SmolLM2": lambda: heta_lens.load_model(SMOLLM2),
}


def available(names: list[str]) -> list[str]:
    """Return the models that are present: stories3M and SmolLM2 may be absent."""
    folders = {"stories3M": STORIES3M, "SmolLM2": SMOLLM2}
    return [name for name in names if name not in folders or folders[name].is_dir()]


def prompt(name: str, model: Any, n: int) -> Int[Tensor, "1 pos"]:
    """Return ``n`` tokens of the model's training distribution, or random tokens for random weights."""
    if name == "demo":
        sequences = (model.to_tokens(story.text)[0].tolist() for story in stories("test"))
    elif name == "stories3M":
        from benchmarks.copied_words import prompts

        sequences = (prompt["ids"] for prompt in prompts())
    elif name == "SmolLM2":
        sequences = iter([model.to_tokens(TEXT)[0].tolist()])
    else:
        return torch.randint(model.cfg.d_vocab, (1, n), generator=torch.Generator().manual_seed(SEED))
    first = next(sequences)  # only the first sequence begins the text
    return torch.tensor([[*islice(chain(first, *(ids[1:] for ids in islice(sequences, n))), n)]])


def predicted(model: Any, ids: Int[Tensor, "1 pos"], target: Any = None) -> heta_lens.Prediction:
    """Return the prediction after a context; without a target, the model's own next token is explained."""
    _, cache = model.run_with_cache(ids, names_filter=heta_lens.names_filter)
    return heta_lens.Prediction.from_cache(cache, target, tokens=ids)


def told(model: Any, story: Story) -> heta_lens.Prediction:
    """Return the prediction of a story's answer."""
    return predicted(model, model.to_tokens(story.text), story.answer)


def counted_flops(run: Callable[[], Any]) -> float:
    with FlopCounterMode(display=False) as counter:
        run()
    return float(counter.get_total_flops())
