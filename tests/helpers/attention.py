"""Scores of attention methods, and attention patterns read with plain hooks."""

from typing import Any

import torch
from torch import Tensor

from helpers import zoo
from helpers.asking import predict

N, TARGET = 6, 7


def score(model: Any, method: Any, ids: Tensor | None = None, target: Any = TARGET) -> Tensor:
    return method(predict(model, zoo.prompt(model, N) if ids is None else ids, target)).scores


@torch.no_grad()
def plain_patterns(model: Any, ids: Tensor) -> list[Tensor]:
    _, cache = model.run_with_cache(ids)
    return [cache[f"blocks.{layer}.attn.hook_pattern"][0] for layer in range(model.cfg.n_layers)]


def last_row_of_product(maps: list[Tensor]) -> Tensor:
    """Of whole matrices, which the library never makes."""
    product = torch.eye(len(maps[0]), dtype=maps[0].dtype)
    for one in maps:
        product = one @ product
    return product[-1]
