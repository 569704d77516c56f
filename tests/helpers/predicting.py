"""What tests of predictions share: a model to change, a token by its text, and whether two answers are the same."""

from typing import Any

import torch

import heta_lens
from helpers import zoo


def gpt2() -> Any:
    """A model of one's own, to change."""
    return zoo.bridge.__wrapped__("gpt2")


def token(text: str) -> int:
    (only,) = zoo.tokenizer().encode(text)
    return only


def same(one: heta_lens.Attribution, other: heta_lens.Attribution) -> bool:
    """Bit for bit."""
    return torch.equal(one.scores, other.scores) and all(
        torch.equal(part, other.parts[name]) for name, part in one.parts.items()
    )
