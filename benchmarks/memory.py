"""The memory that a model of 1.1 billion parameters takes, loaded and explained, against the prediction.

The model is Llama-shaped, with random weights. Each way of loading and explaining it is a process of its own, whose
highest resident size is measured, beyond the size after the imports.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformer_lens.model_bridge import TransformerBridge
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

import heta_lens
import heta_lens.api
from benchmarks import pages
from heta_lens.model.loading import DEMO

TOKENS = 16
OPTIONS: dict[str, Any] = {"probes": 1, "groups": 2, "batch": 1}
CONFIG = LlamaConfig(
    hidden_size=2048, intermediate_size=5632, num_hidden_layers=22, num_attention_heads=32, num_key_value_heads=4,
    vocab_size=32_000, dtype="bfloat16",
)  # fmt: skip
COLUMNS = ["how", "cache", "predicted, GiB", "measured, GiB", "predicted / measured"]
GIB = 2**30


WAYS: dict[str, tuple[Callable[[str], Any], bool]] = {
    "load_model(dtype='bfloat16')": (partial(heta_lens.load_model, dtype="bfloat16"), True),
    "boot_transformers(folder)": (lambda folder: TransformerBridge.boot_transformers(folder).eval(), False),
}
"""The function that loads the model, and whether the cache is lean."""


def measure(name: str, folder: str) -> None:
    """Print the bytes that this process came to hold at most, beyond the imports."""
    load, lean = WAYS[name]
    before = _most()
    model = load(folder)
    ids = torch.randint(5, 300, (1, TOKENS), generator=torch.Generator().manual_seed(0))
    _, cache = model.run_with_cache(ids, names_filter=heta_lens.lean_names_filter if lean else None)
    heta_lens.attribute(cache, 7, tokens=ids, **OPTIONS)
    print(json.dumps(_most() - before))  # noqa: T201


def _most() -> int:
    """Return the highest resident size of this process; ``ru_maxrss`` includes the parent's."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def compared(measured: int, lean: bool) -> list[str]:
    """Return the cells of prediction and measurement; a full cache has no prediction."""
    if not lean:
        return ["–", f"{measured / GIB:.2f}", "–"]
    predicted = heta_lens.estimate_memory(CONFIG, TOKENS, memory=2**40, **OPTIONS).needed
    return [f"{predicted / GIB:.2f}", f"{measured / GIB:.2f}", f"{predicted / measured:.2f}"]


def write() -> None:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        model: Any = LlamaForCausalLM(CONFIG)
        model.bfloat16().save_pretrained(folder)
        AutoTokenizer.from_pretrained(DEMO).save_pretrained(folder)
        for name, (_, lean) in WAYS.items():
            command = [sys.executable, "-m", "benchmarks.memory", name, folder]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            measured = int(done.stdout.splitlines()[-1])
            rows.append([f"`{name}`", "lean" if lean else "all", *compared(measured, lean)])
    pages.write("memory", [pages.Table("", COLUMNS, rows)])


if __name__ == "__main__":
    measure(*sys.argv[1:])
