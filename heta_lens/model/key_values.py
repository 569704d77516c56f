"""Runs continued from kept keys and values, in the formats of both kinds of models."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from inspect import signature
from itertools import starmap
from operator import attrgetter
from typing import Any, ClassVar

import torch

from heta_lens.model.hooks import KeysValues, bare, wrapped

NOTHING = torch.empty(0)  # stands for the keys of a layer that did not run


@dataclass(frozen=True, eq=False)
class KeyValueReuse(ABC):
    """Continue runs from the keys and values of a prefix, for one kind of model."""

    model: Any
    layers: int  # that run
    position_axis: ClassVar[int]  # of kept keys and values

    @abstractmethod
    def resume(self, keys_values: KeysValues, start: int, stop: int, batch: int) -> dict[str, Any]:
        """Return arguments with which a run of positions ``start:stop`` continues the first ``start`` positions.

        Every run needs new arguments, because the run appends its keys and values; `grown` reads the result.
        """

    @abstractmethod
    def grown(self, arguments: Mapping[str, Any]) -> KeysValues:
        """Return the keys and values of the layers that run after a run, both continued and added."""

    def joined(self, before: KeysValues, clean: KeysValues, stop: int, first: int = 0) -> KeysValues:
        """Return keys and values ``before``, followed by the ``clean`` ones of the positions up to ``stop``.

        Layers below the ``first`` did not run: their keys and values are clean.
        """
        axis = self.position_axis
        joined = self._part(clean[:first], 0, stop, 1)
        for head, pair in zip(before[first:], clean[first:], strict=True):
            [tail] = self._part([pair], head[0].shape[axis], stop, len(head[0]))
            joined.append((torch.cat([head[0], tail[0]], axis), torch.cat([head[1], tail[1]], axis)))
        return joined

    def _part(self, keys_values: KeysValues, start: int, stop: int, batch: int) -> KeysValues:
        """Return the keys and values of positions ``start:stop``, for every run of a batch."""
        place = (self.position_axis, start, stop - start)
        return [
            (keys.narrow(*place).expand(batch, -1, -1, -1), values.narrow(*place).expand(batch, -1, -1, -1))
            for keys, values in keys_values
        ]


@dataclass(frozen=True, eq=False)
class BridgeReuse(KeyValueReuse):
    """Continue runs of a `TransformerBridge` (TransformerLens 3 and 4), with a cache of transformers."""

    position_axis: ClassVar[int] = 2

    def resume(self, keys_values: KeysValues, start: int, stop: int, batch: int) -> dict[str, Any]:  # noqa: ARG002
        from transformers import DynamicCache

        # A plain cache, because the caches that models create may keep only a sliding window.
        cache = DynamicCache()
        for layer, (keys, values) in enumerate(self._part(keys_values, 0, start, batch) if start else []):
            cache.update(keys, values, layer)
        return dict.fromkeys(self._names, cache) | {"use_cache": True}  # TransformerLens turns the cache off by default

    def grown(self, arguments: Mapping[str, Any]) -> KeysValues:
        layers = arguments[self._names[0]].layers[: self.layers]
        return [(NOTHING, NOTHING) if layer.keys is None else (layer.keys, layer.values) for layer in layers]

    @cached_property
    def _names(self) -> list[str]:
        """The argument names of the cache, of the model and of the attention.

        Since transformers 5.24 the model's name is ``cache``, which the attention of TransformerLens 4.3 lacks.
        """
        if "cache" not in signature(wrapped(self.model).forward).parameters:
            return ["past_key_values"]
        block = bare(self.model.blocks[0])
        return ["cache", "layer_past"] if "cache" in signature(block.forward).parameters else ["cache"]


@dataclass(frozen=True, eq=False)
class HookedTransformerReuse(KeyValueReuse):
    """Continue runs of a `HookedTransformer` (TransformerLens 3), with a key-value cache of TransformerLens."""

    position_axis: ClassVar[int] = 1

    def resume(self, keys_values: KeysValues, start: int, stop: int, batch: int) -> dict[str, Any]:
        from transformer_lens import TransformerLensKeyValueCache, TransformerLensKeyValueCacheEntry

        device, prefix = self.model.embed.W_E.device, self._part(keys_values, 0, start, batch)
        empty = TransformerLensKeyValueCache.init_cache(self.model.cfg, device, batch)
        entries = [*starmap(TransformerLensKeyValueCacheEntry, prefix), *empty.entries[len(prefix) :]]
        attend = torch.ones(batch, stop, dtype=torch.int, device=device)
        return {
            "past_kv_cache": TransformerLensKeyValueCache(entries, attend[:, :start]),
            "attention_mask": attend[:, start:],
        }

    def grown(self, arguments: Mapping[str, Any]) -> KeysValues:
        entries = arguments["past_kv_cache"].entries[: self.layers]
        return list(map(attrgetter("past_keys", "past_values"), entries))
