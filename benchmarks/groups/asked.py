"""What is explained, and how: a prompt of each model, many probes of every token alone, scores of any curvature."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

import heta_lens
from benchmarks import stories3m
from benchmarks.pareto import combined, scored
from benchmarks.speed.models import MODELS, SIZES, prompt, random_model

SMALL = {"n_layers": 3, "d_model": 48, "n_heads": 3, "d_head": 16, "d_vocab": 500, "n_ctx": 256}
RANDOM = {
    "gpt2-like, small": {**SIZES["gpt2-like"], **SMALL, "d_mlp": 192},
    "llama-like, small": {**SIZES["llama-like"], **SMALL, "d_mlp": 128, "n_key_value_heads": 1},
}
NAMES = ("stories3M", "demo", *RANDOM)
LENGTH = 64  # tokens of the prompts
MANY, SEED = 400, 10**6  # probes of the expectation, and their seed
SEEDS = 5  # draws


class Scores(NamedTuple):
    """The score with a curvature, as `Heta` combines it with the other parts."""

    whole: heta_lens.Attribution

    def of(self, curvature: Float[Tensor, "pos"]) -> Float[Tensor, "pos"]:
        score = combined(self.whole, curvature)
        return score / score.sum()


def cases(length: int, names: Iterable[str] = NAMES) -> Iterator[tuple[str, Any]]:
    """Models by name, each with a prediction."""
    for name in names:
        if name == "stories3M" and not stories3m.MODEL.is_dir():
            continue
        model = random_model(RANDOM[name]) if name in RANDOM else MODELS[name]()
        ids = prompt(name, model, length)
        _, cache = model.run_with_cache(ids, names_filter=heta_lens.names_filter)
        yield name, heta_lens.Prediction.from_cache(cache, tokens=ids)


def found(prediction: Any, **options: Any) -> heta_lens.Attribution:
    return scored(prediction, options)


def expectation(prediction: Any, probes: int = MANY) -> heta_lens.Attribution:
    return found(prediction, groups=None, probes=probes, seed=SEED)


def cross_talk(result: heta_lens.Attribution) -> Float[Tensor, "pos"]:
    """What was taken out of the curvature."""
    taken = result.diagnostics.cross_talk
    return torch.zeros_like(result.scores) if taken is None else taken
