"""AttnLRP next to that of its authors' library, which needs an environment of its own: ``make oracles``.

Their library patches a model's code for good, so each comparison is a process of its own, which is run by the
interpreter given as an argument and knows nothing of heta_lens or TransformerLens: weights go in, relevances come out.
"""

import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor

N, TARGET, TOLERANCE = 9, 7, 1e-4  # their root mean square norm is in float32, and its gradient with it


def ours(family: str, rule: Any, folder: Path) -> Tensor:
    """Leaves the model and the prompt for the other side."""
    from helpers import zoo
    from helpers.asking import plain_embeddings, predict
    from heta_lens.methods.relevance import AttnLrp

    model, source = zoo.bridge(family), zoo.huggingface(family)
    ids = zoo.prompt(model, N)
    kept = {"config": source.config.to_dict(), "weights": source.state_dict(), "e": plain_embeddings(model, ids)}
    torch.save(kept, folder / "asked")
    return AttnLrp(rule=rule)(predict(model, ids, TARGET)).scores


def theirs(family: str, rule: str, folder: Path) -> None:
    images = {"vision_transformer": None, "cp_LRP": None}  # without these it would need torchvision
    sys.modules["lxt.efficient.models.vit_torch"] = cast(ModuleType, SimpleNamespace(**images))
    import lxt.efficient
    import lxt.efficient.models as models
    from transformers.models.gpt2 import modeling_gpt2
    from transformers.models.llama import modeling_llama

    code, kind = {
        "gpt2": (modeling_gpt2, modeling_gpt2.GPT2LMHeadModel),
        "llama": (modeling_llama, modeling_llama.LlamaForCausalLM),
    }[family]
    rules = getattr(getattr(models, family), {"attn_lrp": "attnLRP", "cp_lrp": "cp_LRP"}[rule])
    lxt.efficient.monkey_patch(code, rules)
    asked = torch.load(folder / "asked")
    config = kind.config_class(**{name: value for name, value in asked["config"].items() if name != "dtype"})
    config._attn_implementation = "eager"
    model = kind(config).double().eval()
    model.load_state_dict(asked["weights"])
    e = asked["e"][None].requires_grad_()
    model(inputs_embeds=e, use_cache=False).logits[0, -1, TARGET].backward()
    torch.save((e * e.grad).sum(-1)[0].detach(), folder / "found")


def compare(python: str) -> bool:
    close = True
    for family in ("gpt2", "llama"):
        for rule in ("attn_lrp", "cp_lrp"):
            with tempfile.TemporaryDirectory() as place:
                found = ours(family, rule, Path(place))
                subprocess.run([python, "-W", "ignore", __file__, family, rule, place], check=True)
                wanted = torch.load(Path(place, "found"))
            gap = float((found - wanted).abs().max() / wanted.abs().max())
            sys.stdout.write(f"{family} {rule}: differs by {gap:.1e} of the largest relevance\n")
            close &= gap < TOLERANCE
    return close


if __name__ == "__main__":
    first, *others = sys.argv[1:]
    if others:
        theirs(first, others[0], Path(others[1]))
    else:
        sys.exit(not compare(first))
