"""Attributions made by hand, attributions of batches of prompts, and comparisons of two."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor

import heta_lens
from helpers import zoo
from helpers.asking import cache_of, relative
from heta_lens import Attribution, attribute, attribute_batch, plots
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
    candidates = ((" down", -0.25), (" up", -1.75))
    diagnostics = {"standard_errors": errors, "probes": 3, "sink_mass": 0.47, "balanced": double(SCORES) / 7}
    diagnostics["candidates"] = candidates
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


def printed(attribution: Attribution, **options: object) -> tuple[str, str]:
    """As a terminal shows it, and the text alone."""
    coloured = Console(file=StringIO(), force_terminal=True, color_system="truecolor", width=100)
    plain = Console(file=StringIO(), width=100, no_color=True)
    for console in (coloured, plain):
        console.print(plots.terminal(attribution, **options))  # type: ignore[arg-type]
    return tuple(console.file.getvalue() for console in (coloured, plain))  # type: ignore[return-value]


def same(found: Any, expected: Any) -> bool:
    """Equal, of the same types, and bit for bit in every tensor."""
    if isinstance(expected, Tensor):
        return isinstance(found, Tensor) and found.dtype == expected.dtype and torch.equal(found, expected)
    if type(found) is not type(expected):
        return False
    if isinstance(expected, Mapping):
        return list(found) == list(expected) and all(same(found[key], item) for key, item in expected.items())
    if isinstance(expected, list | tuple):
        return len(found) == len(expected) and all(map(same, found, expected))
    return found == expected


LENGTHS = (5, 8, 3)
PAD = 2  # the tokenizer's
CHEAP: dict[str, Any] = {"variant": "kl_only"}


def prompts(model: Any, lengths: Sequence[int] = LENGTHS) -> list[Tensor]:
    """None of them like another, ``[1, n]`` each."""
    return [zoo.prompt(model, n, seed=seed) for seed, n in enumerate(lengths)]


def padded(alone: Sequence[Tensor], side: str, pad: int = PAD) -> tuple[Tensor, Tensor]:
    """One batch of prompts, and the mask that tells them from padding."""
    length = max(ids.shape[1] for ids in alone)
    rows, mask = torch.full((len(alone), length), pad), torch.zeros(len(alone), length, dtype=torch.long)
    for row, real, ids in zip(rows, mask, alone, strict=True):
        place = slice(length - ids.shape[1], None) if side == "left" else slice(ids.shape[1])
        row[place], real[place] = ids[0], 1
    return rows, mask


def run(model: Any, rows: Tensor, mask: Tensor | None = None, full: bool = False) -> Any:
    how: dict[str, Any] = {} if mask is None else {"attention_mask": mask}
    return model.run_with_cache(rows, names_filter=None if full else heta_lens.names_filter, **how)[1]


class Batch:
    """Prompts of one model, run together and alone."""

    def __init__(self, model: Any, side: str = "right", lengths: Sequence[int] = LENGTHS, full: bool = False) -> None:
        self.model, self.alone = model, prompts(model, lengths)
        self.rows, self.mask = padded(self.alone, side)
        self.cache = run(model, self.rows, self.mask, full)

    def explain(self, targets: Any = None, **options: Any) -> list[Attribution]:
        how = {"attention_mask": self.mask, **CHEAP} | options
        return attribute_batch(self.cache, targets, **how)

    def single(self, number: int, target: Any = None, **options: Any) -> Attribution:
        ids = self.alone[number]
        return attribute(cache_of(self.model, ids), target, **{"tokens": ids, **CHEAP} | options)


N, START = 11, 7  # a context ends at the end of a chunk, others on either side of it


def alone(cache: Any, ids: Tensor, places: Any, targets: Any = None, **options: Any) -> list[Any]:
    """Every target's own attribution."""
    targets = targets or [None] * len(places)
    return [
        attribute(cache, target, position=place, tokens=ids, **options)
        for place, target in zip(places, targets, strict=True)
    ]


PER_TOKEN = ("drop", "envelope", "balanced")  # among the diagnostics


def alike(found: Attribution, expected: Attribution, tolerance: float = 1e-5) -> None:
    """Two answers to one question."""
    assert (found.target, found.target_text, found.tokens) == (expected.target, expected.target_text, expected.tokens)
    assert found.positions.tolist() == list(range(len(expected)))
    assert torch.equal(found.ids, expected.ids)
    assert found.parts.keys() == expected.parts.keys()
    assert relative(found.scores, expected.scores) < tolerance
    for name, part in expected.parts.items():
        assert relative(found.parts[name], part) < tolerance, name
    for name in PER_TOKEN:
        assert (name in found.diagnostics) == (name in expected.diagnostics)
        if name in expected.diagnostics:
            own, other = found.diagnostics[name], expected.diagnostics[name]
            assert torch.equal(own, other) or relative(own, other) < 10 * tolerance, name  # or both are 0
    for name, error in expected.standard_errors.items():
        other = found.standard_errors[name]
        assert (other is None) == (error is None)
        assert error is None or other is None or relative(other, error) < 100 * tolerance, name
    for name in ("additivity_gap", "target_log_prob", "target_rank"):
        assert found.diagnostics[name] == pytest.approx(expected.diagnostics[name], rel=100 * tolerance, abs=tolerance)
    assert (found.interactions is None) == (expected.interactions is None)
    if found.interactions is not None and expected.interactions is not None:
        assert relative(found.interactions, expected.interactions) < tolerance
