"""Contexts with some tokens masked or removed, by one plain run each."""

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

import heta_lens
from helpers import zoo
from helpers.asking import plain_embeddings, plain_log_probs, predict, relative
from heta_lens.methods.base import Method

N, TARGET, FOIL = 6, 7, 12
TEXT = "The cat sat on the mat. Is the dog in Rome? No, the tower is in Rome! The cat."


def ids_of(text: str = TEXT, *, bos: bool = True) -> Tensor:
    tokenizer = zoo.tokenizer()
    return torch.tensor([[tokenizer.bos_token_id] * bos + tokenizer.encode(text, add_special_tokens=False)])


def found(model: Any, method: Method, ids: Tensor | None = None, target: Any = TARGET) -> heta_lens.Attribution:
    return method(predict(model, zoo.prompt(model, N) if ids is None else ids, target))


def read(log_probs: Tensor, scale: str, target: Any = TARGET) -> float:
    """The target's likelihood, its odds by those of all the other tokens together."""
    if isinstance(target, tuple):
        return read(log_probs, scale, target[0]) - read(log_probs, scale, target[1])
    own = log_probs[target]
    others = torch.cat([log_probs[:target], log_probs[target + 1 :]])
    return float({"log_prob": own, "prob": own.exp(), "log_odds": own - others.logsumexp(0)}[scale])


def worth(model: Any, ids: Tensor, mask: Tensor | float = 0.0, scale: str = "log_prob", target: Any = TARGET) -> Any:
    """The target's likelihood where only some tokens are themselves."""
    clean, log_probs = plain_embeddings(model, ids), plain_log_probs(model, ids)

    @lru_cache
    @torch.no_grad()
    def of(present: frozenset[int]) -> float:
        states = torch.zeros_like(clean) + mask
        for position in present:
            states[position] = clean[position]
        return read(log_probs(states), scale, target)

    return lambda present: of(frozenset(present))


def close(name: str, scores: Any, expected: Any, loosened: float = 1) -> None:
    expected = torch.as_tensor(np.asarray(expected), dtype=torch.float64)
    assert relative(torch.as_tensor(scores), expected) < loosened * zoo.tolerance(name)
