"""Windows of prompts, and their oracles."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers import oracles, zoo
from helpers import variant_oracles as variants
from helpers.asking import explain, plain_embeddings, signs
from heta_lens.methods.heta.windows import Window

TARGET, N, PROBES, D = 7, 8, 2, 8
WINDOW, STRIDE_2 = 3, [(0, 3), (2, 5), (4, 7), (5, 8)]  # half of 3 is rounded to 2


def windowed(model: Any, ids: Tensor, target: Any = TARGET, **options: Any) -> Any:
    drawn = {"probes": PROBES} if options.get("beta") != 0 else {}
    return explain(model, ids, target, **{"variant": "win", "window": WINDOW} | drawn | options)


def frozen(model: Any, ids: Tensor, window: tuple[int, int], layer: int | None = None) -> tuple[Any, Tensor]:
    """The oracle's prediction with a tail of two tokens, and the states it is asked at."""
    states = plain_embeddings(model, ids) if layer is None else variants.stream(model, ids, layer)
    start, stop = window
    log_probs = variants.frozen_window(model, ids, start, stop, ids.shape[1] - 2, layer)
    return log_probs, states[start:stop].clone()


def dense(log_probs: Callable[[Tensor], Tensor], at: Tensor, target: Any = TARGET) -> oracles.Hessian:
    def g(e: Tensor) -> Tensor:
        found = log_probs(e)
        return found[target[0]] - found[target[1]] if isinstance(target, tuple) else found[target]

    return oracles.dense_hessian(g, at, functional=True)


def own_signs(start: int, stop: int, seed: int = 0) -> Tensor:
    """A token has the same probes in every window."""
    return signs(seed, PROBES, stop, D)[:, start:]


@torch.no_grad()
def oracle_information(log_probs: Any, at: Tensor) -> Tensor:
    return oracles.information(log_probs, at, torch.zeros_like(at[0]), "orig_masked")


def oracle_gate(model: Any, ids: Tensor) -> Tensor:
    _, cache = model.run_with_cache(ids)
    layers = range(model.cfg.n_layers)
    patterns, values = ([cache[name, layer][0].double() for layer in layers] for name in ("pattern", "v"))
    outputs = [model.blocks[layer].attn.W_O.detach().double() for layer in layers]
    return oracles.gate_by_paths(patterns, values, outputs, p=1, flow="suffix")


def also(hows: list[Any], first: str, second: str) -> list[Any]:
    """Models to be asked in the first way, and fewer in the second."""
    patterns = zip(hows, (first, second), strict=True)
    return [
        pytest.param(*case.values, how, id=f"{case.id}-{how}") for how, only in patterns for case in zoo.named(only)
    ]


def pairs(spans: list[Window]) -> list[tuple[int, int]]:
    return [(start, stop) for start, stop in spans]
