"""Activations of a prompt: read from a cache, or computed again by the live model."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from einops import einsum
from jaxtyping import Float, Int
from torch import Tensor

from heta_lens._util.numerics import distance
from heta_lens._util.work import count
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.batching import out_of_memory
from heta_lens.model.hooks import EMBED, OUT, READ, note, pattern_name, pattern_names, put, values_names

logger = logging.getLogger("heta_lens")


@dataclass(frozen=True, eq=False, repr=False)
class Activations:
    """The activations of a single prompt by hook point, without a batch dimension."""

    tensors: Mapping[str, Tensor]

    @classmethod
    def of(cls, cache: Any) -> "Activations":
        """Read a cache of a single prompt; refuse a cache of several prompts."""
        prompts = cls.of_each(cache)
        if len(prompts) > 1:
            raise ValueError(
                f"the cache holds {len(prompts)} prompts and this is about one: cache it alone, or explain all of "
                "them with heta_lens.attribute_batch"
            )
        return prompts[0]

    @classmethod
    def of_each(cls, cache: Any) -> "list[Activations]":
        """Read the activations of every prompt in a cache, padding included.

        A bridge may have stored an activation under the bridge's name of a hook point.
        """
        layers, points, tensors = len(cache.model.blocks), cache.model.hook_dict, dict[str, Tensor]()
        for name in (EMBED, *pattern_names(layers), *values_names(layers), READ, OUT):
            for key in {name, points[name].name} & cache.cache_dict.keys():
                tensors[name] = cache.cache_dict[key]
                if tensors[name].is_meta:
                    raise ValueError(
                        "the cache is on the meta device, which keeps no values: take it again, on cpu or cuda"
                    )
        if EMBED in tensors and tensors[EMBED].ndim < 3:
            tensors = {name: activation[None] for name, activation in tensors.items()}
        prompts = []
        for row in range(len(tensors[EMBED]) if EMBED in tensors else 1):
            prompts.append(cls({name: batch[row] for name, batch in tensors.items()}))
        return prompts

    def part(self, positions: slice) -> "Activations":
        """Return the activations at a range of positions."""
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


# --------------------------------------------------------------------------------------------------- live activations
def check_attends_back(adapter: ModelAdapter, layer: int, pattern: Float[Tensor, "head query key"]) -> None:
    """Refuse a model in which tokens attend to later tokens.

    Only the last two tokens are checked, because earlier padding may attend to everything. Patterns of
    `estimate_memory`, on the meta device, have no values to check.
    """
    if not pattern.is_meta and (pattern[:, -2:-1, -1] > 0).any():
        raise ValueError(
            f"{type(adapter.model).__name__} is not a decoder-only language model: "
            f"its layer {layer} attends to later tokens"
        )


@torch.no_grad()
def live(adapter: ModelAdapter, ids: Int[Tensor, "pos"], names: Sequence[str], *, hooked: bool) -> list[Tensor]:
    """Return activations of a prompt from a single run, with (``hooked``) or without hooks of the user."""
    batches: dict[str, Tensor] = {}
    adapter.run(ids[None], {name: note(batches, name) for name in names}, whole=hooked)
    return [batches[name][0] for name in names]


@dataclass(eq=False, repr=False)
class LivePatterns:
    """The patterns of a prompt by layer, in any order, with a single pattern in memory at a time.

    A pattern has heads · positions² entries, the input of a layer positions · width. So a first run of the whole model
    notes the input of every layer, and a block alone then computes its pattern again: in all, about one run more. (The
    gate begins with the last layer, so patterns cannot be used in the order of a run. Queries and keys would take more
    memory, and every architecture masks, caps, biases or sinks their products differently.)

    A pattern computed again is compared with the first run's pattern, by the sum over queries. If the two differ, or
    if the user's hooks may carry something from layer to layer, every pattern takes a run of the whole model.
    """

    adapter: ModelAdapter
    ids: Int[Tensor, "pos"]
    hooked: bool
    streams: dict[int, Float[Tensor, "1 pos d"]] | None = None  # every layer's input in the first run
    sums: dict[int, Float[Tensor, "head key"]] = field(default_factory=dict)  # of its patterns, over queries
    again: bool = False  # a block ran alone
    separate: bool = False  # every pattern takes a run of the whole model

    @torch.no_grad()
    def __call__(self, layer: int) -> Float[Tensor, "head pos pos"]:
        pattern = None
        if not self.separate and not self.hooked:
            pattern = self._read_first(layer) if self.streams is None else self._computed_again(layer, self.streams)
        if pattern is None:
            self.streams, self.separate = None, True
            (pattern,) = live(self.adapter, self.ids, [pattern_name(layer)], hooked=self.hooked)
        check_attends_back(self.adapter, layer, pattern)
        return pattern

    def _read_first(self, layer: int) -> Tensor:
        """Return a pattern, and note for the other layers in the same run."""
        patterns = dict[int, Tensor]()

        def look(at: int, pattern: Tensor) -> None:
            self.sums[at] = _sum(pattern)
            if at == layer:
                patterns[at] = pattern[0]

        hooks = {name: partial(look, at) for at, name in enumerate(pattern_names(self.adapter.layers))}
        self.streams = self.adapter.streams(self.ids[None], range(self.adapter.layers), hooks)
        return patterns[layer]

    def _computed_again(self, layer: int, streams: dict[int, Float[Tensor, "1 pos d"]]) -> Tensor | None:
        """Return the pattern of a block alone; None if the pattern is not the first run's."""
        if not self.again:
            count("forwards", 1)  # for all the blocks that run alone
            self.again = True
        patterns: dict[int, Tensor] = {}
        hooks = {self.adapter.stream_name(layer): put(streams[layer]), pattern_name(layer): note(patterns, layer)}
        try:
            self.adapter.run(self.ids[None], hooks, only=layer)
            off, allowed = distance(_sum(patterns[layer]), self.sums[layer])
        except Exception as error:  # a model may raise anything in an unsupported run
            if isinstance(error, RuntimeError) and out_of_memory(error):
                raise
            off, allowed = torch.inf, 0.0
        if off <= allowed:
            return patterns[layer][0]
        logger.info("block %d does not run alone as it does in the model: every pattern takes a whole run", layer)
        return None


def _sum(pattern: Float[Tensor, "batch head query key"]) -> Float[Tensor, "head key"]:
    """Sum over queries with random weights, so that two different patterns hardly ever have equal sums."""
    weights = torch.randn(pattern.shape[2], generator=torch.Generator().manual_seed(0)).to(pattern)
    return einsum(weights, pattern[0], "query, head query key -> head key")
