"""Patterns and values of a prompt whose cache has none, read from the live model: patterns one layer at a time."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from einops import einsum
from jaxtyping import Float, Int
from torch import Tensor

from heta_lens._util.tolerance import distance
from heta_lens._util.work_counting import count
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.batching import out_of_memory
from heta_lens.model.hook_sites import pattern_name, pattern_names
from heta_lens.model.hooking import note

logger = logging.getLogger("heta_lens")


def check_attends_back(adapter: ModelAdapter, layer: int, pattern: Float[Tensor, "head query key"]) -> None:
    """Refuse a model whose tokens attend to later ones.

    Only the last two tokens are checked: padding before them attends to nothing, which looks like everything. In a dry
    run every condition holds, so it is one that holds for models that are right.
    """
    if not (pattern[:, -2:-1, -1] > 0).logical_not().all():
        raise ValueError(
            f"{type(adapter.model).__name__} is not a decoder-only language model: "
            f"its layer {layer} attends to later tokens"
        )


@torch.no_grad()
def live(adapter: ModelAdapter, ids: Int[Tensor, "pos"], names: Sequence[str], *, hooked: bool) -> list[Tensor]:
    """These activations of a prompt, from one run; ``hooked`` by the user or not."""
    batches: dict[str, Tensor] = {}
    adapter.run(ids[None], {name: note(batches, name) for name in names}, whole=hooked)
    return [batches[name][0] for name in names]


class First(NamedTuple):
    """What the first run notes of every layer: what enters it, and a weighted sum of its pattern over queries."""

    streams: dict[int, Float[Tensor, "1 pos d"]]
    sums: dict[int, Float[Tensor, "head key"]]


@dataclass(eq=False, repr=False)
class LivePatterns:
    """The patterns of a prompt's layers, in any order, of which it never holds more than one.

    A pattern has heads · positions² entries, and what enters a layer positions · width. So one run of the whole model
    notes what enters every layer, and a pattern is then made again by its block alone: all of them together take about
    one run more. (The gate begins with the last layer, so patterns cannot be used up in a single run as they arise.
    Queries and keys would be more to keep, and each architecture masks, caps, biases or sinks what they give.)

    Every pattern that is made again is compared with the first run's, by the sum over queries. Where they differ, and
    where the user's hooks may carry something from layer to layer, each takes a run of its own.
    """

    adapter: ModelAdapter
    ids: Int[Tensor, "pos"]
    hooked: bool
    first: First | None = None
    again: bool = False  # whether any was made again
    separate: bool = False  # whether each takes a run of its own

    def __call__(self, layer: int) -> Float[Tensor, "head pos pos"]:
        pattern = self._read(layer)
        check_attends_back(self.adapter, layer, pattern)
        return pattern

    @torch.no_grad()
    def _read(self, layer: int) -> Tensor:
        if not self.separate and not self.hooked:
            pattern = self._read_first(layer) if self.first is None else self._made_again(layer, self.first)
            if pattern is not None:
                return pattern
            self.first, self.separate = None, True
        return live(self.adapter, self.ids, [pattern_name(layer)], hooked=self.hooked)[0]

    def _read_first(self, layer: int) -> Tensor:
        """A pattern, and in the same run what is needed for the others."""
        patterns, sums = dict[int, Tensor](), dict[int, Tensor]()

        def look(at: int, pattern: Tensor) -> None:
            sums[at] = _sum(pattern)
            if at == layer:
                patterns[at] = pattern[0]

        hooks = {name: partial(look, at) for at, name in enumerate(pattern_names(self.adapter.layers))}
        streams = self.adapter.streams(self.ids[None], range(self.adapter.layers), hooks)
        self.first = First(streams, sums)
        return patterns[layer]

    def _made_again(self, layer: int, first: First) -> Tensor | None:
        """What a block attends to when it runs alone; None if that is not what it was."""
        if not self.again:
            count("forwards", 1)  # for all the blocks that run alone
            self.again = True
        patterns: dict[int, Tensor] = {}
        hooks = {pattern_name(layer): note(patterns, layer)}
        try:
            self.adapter.run_block(layer, self.ids[None], first.streams[layer], hooks)
            off, allowed = distance(_sum(patterns[layer]), first.sums[layer])
        except Exception as error:  # whatever a model raises when it is run in a way it was not made for
            if isinstance(error, RuntimeError) and out_of_memory(error):
                raise
            off, allowed = torch.inf, 0.0
        if off <= allowed:
            return patterns[layer][0]
        logger.info("block %d does not run alone as it does in the model: every pattern takes a whole run", layer)
        return None


def _sum(pattern: Float[Tensor, "batch head query key"]) -> Float[Tensor, "head key"]:
    """Over queries with random weights, so that no two that differ are likely to have the same."""
    weights = torch.randn(pattern.shape[2], generator=torch.Generator().manual_seed(0)).to(pattern)
    return einsum(weights, pattern[0], "query, head query key -> head key")
