"""The memory that the paper's four models would take with the options of its tables: predicted, not measured.

No weights are needed, but the largest model takes minutes a row.
"""

from typing import Any, NamedTuple

from transformers import GPTJConfig, LlamaConfig, Phi3Config, PretrainedConfig, Qwen2Config

from benchmarks import pages
from heta_lens import estimate_memory
from heta_lens._util.options import written
from heta_lens.methods.cost import MemoryEstimate

GIB = 2**30
A100 = 80 * GIB
COLUMNS = [
    "model",
    "tokens",
    "options",
    "weights",
    "gate",
    "masked copies",
    "curvature",
    "HVPs at once",
    "in all",
    "fits",
]


class Shape(NamedTuple):
    """A model, the length of the prompt, and the number of last layers in the paper's approximations."""

    config: PretrainedConfig
    tokens: int
    layers: int


def sized(kind: type[PretrainedConfig], width: int, mlp: int, layers: int, heads: int, **more: Any) -> PretrainedConfig:
    sizes = {"hidden_size": width, "intermediate_size": mlp, "num_hidden_layers": layers, "num_attention_heads": heads}
    return kind(**sizes, **more)


QWEN = sized(Qwen2Config, 2048, 11_008, 36, 16, num_key_value_heads=2, vocab_size=151_936, tie_word_embeddings=True)
PHI = sized(Phi3Config, 5120, 17_920, 40, 40, num_key_value_heads=10, vocab_size=32_064, pad_token_id=None)
LLAMA = sized(LlamaConfig, 8192, 28_672, 80, 64, num_key_value_heads=8, vocab_size=128_256)
MODELS = {
    "Qwen2.5 3B": Shape(QWEN, 1024, 4),
    "GPT-J 6B": Shape(GPTJConfig(), 1024, 4),
    "Phi-3 14B": Shape(PHI, 1024, 4),
    "Llama-3.1 70B": Shape(LLAMA, 2048, 6),
}


def recipes(layers: int) -> list[dict[str, Any]]:
    """Return the options of the paper's tables, and an option that takes less."""
    return [
        {},
        {"variant": "lr", "rank": 64},
        {"variant": "ls", "layers": layers},
        {"variant": "win", "window": 512},
        {"variant": "lr+win", "rank": 64, "window": 512},
        {"variant": "ls+win", "layers": layers, "window": 512},
        {"checkpoint": True},
    ]


def row(model: str, options: dict[str, Any], predicted: MemoryEstimate) -> list[str]:
    named = f"`{written(options)}`" if options else "default options"
    steps = [predicted.steps[name].needed for name in ("gate", "information", "curvature")]
    sizes = [predicted.weights, *steps]
    in_gib = [f"{size / GIB:.1f}" for size in sizes]
    copies = str(predicted.steps["curvature"].copies)
    fits = "yes" if predicted.fits else "no"
    return [model, f"{predicted.tokens:,}", named, *in_gib, copies, f"{predicted.needed / GIB:.1f}", fits]


def write() -> None:
    rows = [
        row(name, options, estimate_memory(model.config, model.tokens, memory=A100, dtype="bfloat16", **options))
        for name, model in MODELS.items()
        for options in recipes(model.layers)
    ]
    pages.write("recipes", [pages.Table("", COLUMNS, rows)])
