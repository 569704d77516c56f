"""Greedy continuations by llama.cpp, which reads the GGUF files of `make real-models` with code of its own.

`make oracles` writes llama_cpp_continuations.json anew, in an environment of its own (which has llama.cpp, built, and
no heta_lens). A file is run twice: as it is, where llama.cpp rounds activations to 8 bits before it multiplies them by
quantised weights; and with its weights written out in float32, where nothing is rounded.
"""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import Request, urlopen

SAVED = Path(__file__).parent / "llama_cpp_continuations.json"
STEPS = 12
FACTS = " ".join(f"The number of house {house} is {house * 37 % 101}." for house in range(1, 61))
PROMPTS = (
    "The capital of France is",
    "Monday, Tuesday, Wednesday,",
    "When John and Mary went to the store, Mary gave a drink to John. Then John gave a drink to",
    "Café list:\n- 2 eggs\n- 100 g flour\n\nStep 1: Don't mix the eggs with the",
    "In 2024, 100,000 people",
    "a  5 apples\n 5 pears\n\n\n10 plums\n  15",
    "def add(a, b):\n    return a + b\n\n\ndef subtract(a, b):\n    return",
    "<table><tr><td>1</td><td>2</td></tr></table></b></i>\n<ul>\n<li>",
    "🦩 👩‍🚀 Größe, naïve, señor, Ελλάδα, Москва, 東京. The capital of Spain is",
    "x² + y² = r², so y =",
    "ALL CAPITALS, then lower case; then a question?",
    "I can't, you won't, she'll, they'VE",
    "one\ttwo\t\tthree\t",
    "The keys to the cabinet",
    "The Eiffel Tower is in Paris. The Colosseum is in",
    "Q: What is 12 + 30?\nA:",
    "Once upon a time, there was a little girl named",
    "Water boils at 100 degrees Celsius and freezes at",
    "Dear Sir or Madam,\r\n\r\nI am writing to",
    FACTS + " The number of house 3 is",  # longer than the local window of Gemma 3
)


def continuations(file: Path) -> list[dict[str, Any]]:
    import xllamacpp

    options = xllamacpp.CommonParams()
    options.model.path = str(file)
    options.n_ctx, options.n_parallel, options.cpuparams.n_threads = 2048, 1, 1
    options.cache_type_k = options.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    options.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    server = xllamacpp.Server(options)
    return [_continued(server, prompt) for prompt in PROMPTS]


def _continued(server: Any, prompt: str) -> dict[str, Any]:
    asked = {"content": prompt, "add_special": True, "parse_special": True}
    request = Request(f"{server.listening_address}/tokenize", json.dumps(asked).encode())
    with urlopen(request) as answer:
        ids = json.load(answer)["tokens"]
    greedy = {"n_predict": STEPS, "temperature": 0, "top_k": 1, "ignore_eos": False, "cache_prompt": False}
    written = server.handle_completions({"prompt": prompt, "logprobs": 2, "n_probs": 2, **greedy})
    steps = [step["top_logprobs"] for step in written["choices"][0]["logprobs"]["content"]]
    return {
        "ids": ids,
        "written": [best["id"] for best, _ in steps],
        "log_probs": [round(best["logprob"], 4) for best, _ in steps],
        "margins": [round(best["logprob"] - second["logprob"], 4) for best, second in steps],
    }


@contextmanager
def in_float32(file: Path) -> Iterator[Path]:
    """The same file with its weights written out."""
    from gguf import GGUFReader, GGUFValueType, GGUFWriter, dequantize

    read = GGUFReader(file)
    with TemporaryDirectory() as folder:
        written = Path(folder) / file.name
        writer = GGUFWriter(written, read.fields["general.architecture"].contents())
        for name, field in read.fields.items():
            if not name.startswith("GGUF.") and name != "general.architecture":
                kind, inner = field.types[0], field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
                writer.add_key_value(name, field.contents(), kind, sub_type=inner)
        for tensor in read.tensors:
            writer.add_tensor(tensor.name, dequantize(tensor.data, tensor.tensor_type))
        for write in ("header", "kv_data", "tensors"):
            getattr(writer, f"write_{write}_to_file")()
        writer.close()
        yield written


if __name__ == "__main__":
    saved: dict[str, Any] = {"xllamacpp": version("xllamacpp")}
    for given in sorted(Path(sys.argv[1]).glob("*.gguf")):
        with in_float32(given) as plain:
            ways = {"quantised": continuations(given), "float32": continuations(plain)}
        ids, _ = ([case.pop("ids") for case in cases] for cases in ways.values())
        saved[given.name] = {"ids": ids, **ways}
    SAVED.write_text(json.dumps(saved).replace('{"written"', '\n{"written"') + "\n", encoding="utf-8")
