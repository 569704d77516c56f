"""Grids and searches of patches on prompts of the zoo, and one plain run per patch."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from helpers import zoo
from helpers.asking import cache_of
from heta_lens.causal import Grid, Search, patch, patch_in_order

N, TARGET, OTHER = 5, 7, 9


def prompts(model: Any, n: int = N) -> tuple[Tensor, Tensor]:
    return zoo.prompt(model, n), zoo.prompt(model, n, seed=1)


def patched(model: Any, target: Any = TARGET, n: int = N, **options: Any) -> Grid:
    clean, corrupted = prompts(model, n)
    ids = {"tokens": clean, "corrupted_tokens": corrupted}
    return patch(cache_of(model, clean), cache_of(model, corrupted), target, **ids, **options)


def searched(model: Any, attribution: Any, n: int = N, **options: Any) -> Search:
    clean, corrupted = prompts(model, n)
    ids = {"tokens": clean, "corrupted_tokens": corrupted}
    return patch_in_order(cache_of(model, clean), cache_of(model, corrupted), attribution, **ids, **options)


def log_prob(logits: Tensor) -> Tensor:
    return logits[0, -1].double().log_softmax(-1)[TARGET]


@torch.no_grad()
def run(model: Any, ids: Tensor, *hooks: tuple[str, Any]) -> Tensor:
    return log_prob(model.run_with_hooks(ids, fwd_hooks=[*hooks]))


def note(model: Any, ids: Tensor, name: str) -> Tensor:
    """What a run of its own shows there."""
    seen: list[Tensor] = []
    run(model, ids, (name, lambda live, hook: seen.append(live[0].clone())))  # noqa: ARG005
    return seen[0]


def one_run(model: Any, name: str, handed: Tensor, positions: Sequence[int], head: int | None = None) -> Tensor:
    """The corrupted run, with what the clean one handed on at these positions (by one head)."""

    def put(live: Tensor, hook: Any) -> Tensor:  # noqa: ARG001
        live = live.clone()
        for place in positions:
            if head is None:
                live[0, place] = handed[place]
            else:
                live[0, place, head] = handed[place, head]
        return live

    return run(model, prompts(model)[1], (name, put))


def copies(ran: list[Any]) -> list[tuple[int, int]]:
    """How many prompts at once, and how many tokens of each."""
    return [tuple(args[0].shape) for args in ran]
