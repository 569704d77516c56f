"""AttnLRP next to that of its authors' library, which needs an environment of its own: ``make oracles``.

Their library patches a model's code for good, so each comparison is a process of its own, which is run by the
interpreter given as an argument and knows nothing of heta_lens or TransformerLens: models go in, relevances come out.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor

N, TARGET, TOLERANCE = 9, 7, 1e-4  # their root mean square norm is in float32, and its gradient with it
CLASSES = {"gpt2": "GPT2LMHeadModel", "llama": "LlamaForCausalLM", "gemma3": "Gemma3ForCausalLM"}
RULES = {"attn_lrp": "attnLRP", "cp_lrp": "cp_LRP"}
GEMMA = Path(__file__).parents[2] / "models" / "gemma-3-270m"  # made by ``make real-models``
PROMPTS = [
    "When Mary and John went to the store, John gave a drink to",
    "The capital of France is Paris. The capital of Italy is",
    "The red key opens the gate. The blue key opens the door. To open the gate, take the",
    "Alice lives in Oslo. Bob lives in Madrid. Carol lives in Cairo. The city where Bob lives is",
    "def add(a, b):\n    return a +",
]


def models(place: Path) -> Iterator[tuple[str, Path, Any, list[tuple[Tensor, int]]]]:
    """Kinds of models with their folders and their prompts' tokens and targets."""
    import heta_lens
    from helpers import zoo

    for family in ("gpt2", "llama"):
        zoo.huggingface(family).save_pretrained(place / family)
        model = zoo.bridge(family)
        yield family, place / family, model, [(zoo.prompt(model, N), TARGET)]
    if GEMMA.exists():
        model = heta_lens.load_model(GEMMA, dtype="float64")
        prompts = [model.to_tokens(text) for text in PROMPTS]
        yield "gemma3", GEMMA, model, [(ids, int(model(ids)[0, -1].argmax())) for ids in prompts]


def theirs(family: str, rule: str, folder: str, place: Path) -> None:
    images = {"vision_transformer": None, "cp_LRP": None}  # without these it would need torchvision
    sys.modules["lxt.efficient.models.vit_torch"] = cast(ModuleType, SimpleNamespace(**images))
    import lxt.efficient
    import lxt.efficient.models as patches

    code = import_module(f"transformers.models.{family}.modeling_{family}")
    lxt.efficient.monkey_patch(code, getattr(getattr(patches, family), RULES[rule]))
    kind = getattr(code, CLASSES[family])
    model = kind.from_pretrained(folder, torch_dtype=torch.float64, attn_implementation="eager").eval()
    model.requires_grad_(False)
    found = []
    for embeddings, target in torch.load(place / "asked"):
        e = embeddings[None].requires_grad_()
        model(inputs_embeds=e, use_cache=False).logits[0, -1, target].backward()
        found.append((e * e.grad).sum(-1)[0].detach())
    torch.save(found, place / "found")


def compare(python: str) -> bool:
    from helpers.asking import plain_embeddings, predict, relative
    from heta_lens.methods.relevance import AttnLrp

    close = True
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        for family, folder, model, prompts in models(place):
            torch.save([(plain_embeddings(model, ids), target) for ids, target in prompts], place / "asked")
            for rule in RULES:
                subprocess.run([python, "-W", "ignore", __file__, family, rule, folder, place], check=True)
                found = [AttnLrp(rule=cast(Any, rule))(predict(model, *asked)).scores for asked in prompts]
                gap = max(map(relative, found, torch.load(place / "found")))
                sys.stdout.write(f"{family} {rule}: differs by {gap:.1e} of the largest relevance\n")
                close &= gap < TOLERANCE
    return close


if __name__ == "__main__":
    first, *others = sys.argv[1:]
    if others:
        theirs(first, others[0], others[1], Path(others[2]))
    else:
        sys.exit(not compare(first))
