"""Batches of prompts with and without padding, spans, and whether two attributions are the same."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import heta_lens
from helpers import zoo
from helpers.asking import cache_of, relative
from heta_lens import Attribution, attribute, attribute_batch

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


def alike(found: Any, expected: Attribution, tolerance: float = 1e-5) -> None:
    assert (found.target, found.target_text, found.tokens) == (expected.target, expected.target_text, expected.tokens)
    assert found.positions.tolist() == list(range(len(expected)))
    assert torch.equal(found.ids, expected.ids)
    assert found.parts.keys() == expected.parts.keys()
    assert relative(found.scores, expected.scores) < tolerance
    for name, part in expected.parts.items():
        assert relative(found.parts[name], part) < tolerance, name
