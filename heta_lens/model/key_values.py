"""Runs that continue from kept keys and values, which kinds of models take and return in different forms."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from heta_lens.model.hooks import KeysValues, Model, bare, wrapped

NOTHING = torch.empty(0)  # the keys of a layer that did not run


@dataclass(frozen=True, eq=False)
class KeyValueReuse(ABC):
    """How a kind of model continues from the keys and values of a prefix."""

    model: Model
    position_axis: ClassVar[int]  # of keys and values, as this kind of model keeps them

    @abstractmethod
    def arguments(self, prefix: KeysValues, start: int, stop: int, batch: int, device: torch.device) -> dict[str, Any]:
        """Arguments with which a run of positions ``start:stop`` continues these keys and values."""

    @abstractmethod
    def grown(self, arguments: Mapping[str, Any]) -> KeysValues:
        """The keys and values that a run with these arguments continued and those it added, per layer."""

    def resume(
        self, keys_values: KeysValues, start: int, stop: int, batch: int, device: torch.device
    ) -> dict[str, Any]:
        """Arguments with which a run of positions ``start:stop`` continues the first ``start``, unchanged.

        Built anew for every run, because the run appends to them: `grown` reads the result.
        """
        first = partial(_first_positions, self.position_axis, start, batch)
        prefix = [(first(keys), first(values)) for keys, values in keys_values]
        return self.arguments(prefix, start, stop, batch, device)

    def joined(self, before: KeysValues, clean: KeysValues, stop: int, first: int = 0) -> KeysValues:
        """Keys and values ``before``, followed by the ``clean`` ones of the positions up to ``stop``.

        Layers below the ``first`` did not run: theirs are clean.
        """
        join, clip = partial(_join, self.position_axis, stop), partial(_first_positions, self.position_axis, stop, 1)
        lower = [(clip(keys), clip(values)) for keys, values in clean[:first]]
        upper = [
            (join(keys, clean_keys), join(values, clean_values))
            for (keys, values), (clean_keys, clean_values) in zip(before[first:], clean[first:], strict=True)
        ]
        return lower + upper


@dataclass(frozen=True, eq=False)
class BridgeReuse(KeyValueReuse):
    """A `TransformerBridge` (TransformerLens 3 and 4): they go in and come out as a transformers cache."""

    position_axis: ClassVar[int] = 2

    def arguments(self, prefix: KeysValues, start: int, stop: int, batch: int, device: torch.device) -> dict[str, Any]:  # noqa: ARG002
        from transformers import DynamicCache

        # A plain cache: the ones that models make for themselves may keep only their sliding window.
        cache = DynamicCache()
        for layer, (keys, values) in enumerate(prefix if start else []):
            cache.update(keys, values, layer)
        return dict.fromkeys(self._names, cache) | {"use_cache": True}  # which TransformerLens turns off otherwise

    def grown(self, arguments: Mapping[str, Any]) -> KeysValues:
        layers = arguments[self._names[0]].layers
        return [(NOTHING, NOTHING) if layer.keys is None else (layer.keys, layer.values) for layer in layers]

    @cached_property
    def _names(self) -> list[str]:
        """What the cache is called, by the model and, where transformers gives it another name, by TransformerLens.

        Since transformers 5.24 it is ``cache``, which the attention of TransformerLens 4.3 does not know.
        """
        if "cache" not in _parameters(wrapped(self.model)):
            return ["past_key_values"]
        block = bare(cast(Any, self.model).blocks[0])
        return ["cache", "layer_past"] if "cache" in _parameters(block) else ["cache"]


@dataclass(frozen=True, eq=False)
class HookedTransformerReuse(KeyValueReuse):
    """A `HookedTransformer` (TransformerLens 3): they go in and come out as a TransformerLens key-value cache."""

    position_axis: ClassVar[int] = 1

    def arguments(self, prefix: KeysValues, start: int, stop: int, batch: int, device: torch.device) -> dict[str, Any]:
        from transformer_lens import TransformerLensKeyValueCache, TransformerLensKeyValueCacheEntry

        empty = TransformerLensKeyValueCache.init_cache(self.model.cfg, device, batch)
        entries = [TransformerLensKeyValueCacheEntry(keys, values) for keys, values in prefix] or empty.entries
        attend = torch.ones(batch, stop, dtype=torch.int, device=device)
        return {
            "past_kv_cache": TransformerLensKeyValueCache(entries, attend[:, :start]),
            "attention_mask": attend[:, start:],
        }

    def grown(self, arguments: Mapping[str, Any]) -> KeysValues:
        return [(entry.past_keys, entry.past_values) for entry in arguments["past_kv_cache"].entries]


def key_value_reuse(model: Model) -> KeyValueReuse:
    """How this kind of model continues from kept keys and values."""
    return (HookedTransformerReuse if is_hooked_transformer(model) else BridgeReuse)(model)


def is_hooked_transformer(model: Model) -> bool:
    return "past_kv_cache" in _parameters(cast(nn.Module, model))


def _parameters(module: nn.Module) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(module.forward).parameters


def _first_positions(axis: int, count: int, batch: int, kept: Tensor) -> Tensor:
    return kept.narrow(axis, 0, count).expand(batch, -1, -1, -1)


def _join(axis: int, stop: int, head: Tensor, clean: Tensor) -> Tensor:
    start = head.shape[axis]
    tail = clean.narrow(axis, start, stop - start)
    return torch.cat([head, tail.expand(len(head), -1, -1, -1)], axis)
