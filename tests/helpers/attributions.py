"""Attributions made by hand."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from heta_lens import Attribution
from heta_lens.attribution import Messages
from heta_lens.diagnostics import Diagnostics

TOKENS = ("<bos>", "The", " cat", " s", "at", "\n")
SCORES = (6.0, 0.5, 3.0, 1.0, 2.0, 0.25)


def double(values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def attribution(tokens: Sequence[str] = TOKENS, scores: Sequence[float] = SCORES, **changes: Any) -> Attribution:
    """By hand: token i has id 10 + i; <bos>, <s> and </s> are special; the target is " down"."""
    ends = [len("".join(tokens[: i + 1])) for i in range(len(tokens))]
    made = Attribution(
        ids=torch.arange(len(tokens)) + 10,
        tokens=tuple(tokens),
        positions=torch.arange(len(tokens)),
        offsets=torch.tensor(list(zip([0, *ends], ends, strict=False))),
        special=torch.tensor([token in ("<bos>", "<s>", "</s>") for token in tokens]),
        text="".join(tokens),
        target=7,
        target_text=" down",
        method="heta",
        scores=double(scores),
    )
    return replace(made, **changes)


def uncertain(**changes: Any) -> Attribution:
    """With parts, and standard errors of some."""
    errors = {"scores": double(range(6)) / 10, "curvature": double(range(6)), "information": None}
    parts = {"curvature": double(SCORES) * 2, "information": double(SCORES) * 3}
    diagnostics = {"standard_errors": errors, "probes": 3, "sink_mass": 0.47, "balanced": double(SCORES) / 7}
    return attribution(parts=parts, **{"diagnostics": Diagnostics.of(diagnostics), **changes})


CHAT_TOKENS = ("<s>", "The", " cat", "</s>", "sat", "\n")


def of_chat(scores: Sequence[float] = SCORES, **changes: Any) -> Attribution:
    """A chat by hand: the user's "The cat", the assistant's "sat" and an empty message, in a template."""
    messages = Messages(
        roles=("user", "assistant", "user"),
        places=torch.tensor([[0, 3, 10], [1, 14, 17]]),
        owners=torch.tensor([-1, 0, 0, -1, 1, -1]),
    )
    return attribution(CHAT_TOKENS, scores, **{"messages": messages, **changes})
