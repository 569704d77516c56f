"""Texts that models continue, slowly and plainly."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def plain(model: Any, ids: Sequence[int]) -> Tensor:
    """What comes next."""
    with torch.no_grad():
        return model(torch.tensor([list(ids)]))[0, -1].log_softmax(-1)


def plain_draw(log_probs: Tensor, draw: float, temperature: float, top_p: float) -> int:
    """Walk through the tokens, likeliest first, until the draw is used up."""
    probs = (log_probs / temperature).softmax(-1).tolist()
    order = sorted(range(len(probs)), key=lambda token: (-probs[token], token))
    nucleus: list[int] = []
    while sum(probs[token] for token in nucleus) < top_p and len(nucleus) < len(order):
        nucleus.append(order[len(nucleus)])
    left = draw * sum(probs[token] for token in nucleus)
    for token in nucleus:
        left -= probs[token]
        if left < 0:
            return token
    return nucleus[-1]
