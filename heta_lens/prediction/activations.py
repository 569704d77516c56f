"""The activations that heta_lens reads from a cache, without a batch dimension."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from einops import einsum
from jaxtyping import Float, Int
from torch import Tensor

from heta_lens._util.numerics import distance
from heta_lens._util.text import short_repr
from heta_lens._util.work import count
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.batching import out_of_memory
from heta_lens.model.hooks import EMBED, OUT, READ, note, pattern_name, pattern_names, put, values_names


@dataclass(frozen=True, eq=False)
class Activations:
    """What heta_lens reads from a cache about a single prompt, as it was when it was read."""

    def __repr__(self) -> str:
        return short_repr(self)

    tensors: Mapping[str, Tensor]

    @classmethod
    def of(cls, cache: Any) -> "Activations":
        """From a cache of a single prompt; refused for several."""
        cached = _cached(cache)
        if cached.prompts > 1:
            raise ValueError(
                f"the cache holds {cached.prompts} prompts and this is about one: cache it alone, or explain all of "
                "them with heta_lens.attribute_batch"
            )
        return cls({name: activation[0] for name, activation in cached.tensors.items()})

    @classmethod
    def of_each(cls, cache: Any) -> "list[Activations]":
        """Of every prompt in a cache, padding included."""
        cached = _cached(cache)
        return [cls({name: batch[row] for name, batch in cached.tensors.items()}) for row in range(cached.prompts)]

    def part(self, positions: slice) -> "Activations":
        """The same activations at some positions only."""
        both = {name: (slice(None), positions, positions) for name in self.tensors if name.endswith("pattern")}
        return Activations({name: tensor[both.get(name, positions)] for name, tensor in self.tensors.items()})

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.tensors:
            raise ValueError(
                f"the cache has no {name!r}; take it with "
                "model.run_with_cache(tokens, names_filter=heta_lens.names_filter), or without a filter"
            )
        return self.tensors[name]


class Cached(NamedTuple):
    """Activations by hook point, with a batch dimension; and how many prompts they belong to."""

    tensors: dict[str, Tensor]
    prompts: int


def _cached(cache: Any) -> Cached:
    """What there is in a cache. A bridge may have stored an activation under its own name for a hook point."""
    layers = len(cache.model.blocks)
    names = [EMBED, *pattern_names(layers), *values_names(layers), READ, OUT]
    points = cache.model.hook_dict
    keys = {name: {name, points[name].name} & cache.cache_dict.keys() for name in names}
    tensors = {name: cache.cache_dict[key] for name, stored in keys.items() for key in stored}
    if any(activation.is_meta for activation in tensors.values()):
        raise ValueError("the cache is on the meta device, which keeps no values: take it again, on cpu or cuda")
    if EMBED not in tensors:
        return Cached(tensors, 1)
    if tensors[EMBED].ndim < 3:
        tensors = {name: activation[None] for name, activation in tensors.items()}
    return Cached(tensors, len(tensors[EMBED]))


# ---------------------------------------------------------------------------------------------------- live activations
# Patterns and values of a prompt whose cache has none, read from the live model: patterns one layer at a time.


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
        hooks = {self.adapter.stream_name(layer): put(first.streams[layer]), pattern_name(layer): note(patterns, layer)}
        try:
            self.adapter.run(self.ids[None], hooks, only=layer)
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
