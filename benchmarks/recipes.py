"""The memory that the paper's four models would take with the options of its tables: predicted, not measured.

No weights are needed, but the largest model takes minutes a row.
"""

from typing import Any, NamedTuple

from transformers import GPTJConfig, LlamaConfig, Phi3Config, PretrainedConfig, Qwen2Config

from benchmarks import pages
from heta_lens import estimate_memory
from heta_lens._util.options import written

GIB = 2**30
A100 = 80 * GIB
STEPS = {"gate": "gate", "information": "masked copies", "curvature": "curvature"}
COLUMNS = ["model", "tokens", "options", "weights", *STEPS.values(), "HVPs at once", "in all", "fits"]


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


def row(name: str, model: Shape, options: dict[str, Any]) -> list[str]:
    foreseen = estimate_memory(model.config, model.tokens, memory=A100, dtype="bfloat16", **options)
    named = f"`{written(options)}`" if options else "default options"
    sizes = [foreseen.weights, *(foreseen.steps[step].needed for step in STEPS), foreseen.needed]
    *parts, whole = (f"{size / GIB:.1f}" for size in sizes)
    copies, fits = foreseen.steps["curvature"].copies, "yes" if foreseen.fits else "no"
    return [name, f"{foreseen.tokens:,}", named, *parts, str(copies), whole, fits]


def write() -> None:
    rows = [row(name, model, options) for name, model in MODELS.items() for options in recipes(model.layers)]
    pages.write("recipes", [pages.Table("", COLUMNS, rows)])
