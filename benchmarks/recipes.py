"""How much memory the paper's four models would take, with the options that its tables name: predicted, not measured.

`python -m benchmarks.recipes` writes RECIPES.md. No weights are needed, but the largest model takes minutes a row.
"""

import sys
from pathlib import Path
from typing import Any, NamedTuple

from transformers import GPTJConfig, LlamaConfig, Phi3Config, PretrainedConfig, Qwen2Config

from benchmarks.report import markdown
from heta_lens import estimate_memory
from heta_lens._util.options import written
from heta_lens.methods.memory import MemoryEstimate

PAGE = Path(__file__).with_name("RECIPES.md")
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
    """A model, the length of the prompt, and how many of its last layers the paper's approximations take."""

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
    """The rows of the paper's tables, and ours that take less."""
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
    sizes = [predicted.weights, *(predicted.steps.get(step, 0) for step in ("gate", "information", "curvature"))]
    in_gib = [f"{size / GIB:.1f}" for size in sizes]
    copies = str(predicted.batches["curvature"])
    fits = "yes" if predicted.fits else "no"
    return [model, f"{predicted.tokens:,}", named, *in_gib, copies, f"{predicted.needed / GIB:.1f}", fits]


def main(*names: str) -> None:
    rows = []
    for name in names or MODELS:
        shape = MODELS[name]
        for options in recipes(shape.layers):
            predicted = estimate_memory(shape.config, shape.tokens, memory=A100, dtype="bfloat16", **options)
            rows.append(row(name, options, predicted))
            print(rows[-1], flush=True)  # noqa: T201
    said = "Predicted GiB in bfloat16, for one card of 80 GiB, with the batches that `attribute` would choose there.\n"
    PAGE.write_text(f"{said}\n{markdown(COLUMNS, rows)}\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
