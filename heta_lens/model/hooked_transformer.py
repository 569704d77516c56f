"""How a `HookedTransformer` (TransformerLens 3) continues from kept keys and values."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import nn

from heta_lens.model.key_values import KeyValueReuse
from heta_lens.model.model_protocol import KeysValues, Model


def is_hooked_transformer(model: Model) -> bool:
    return "past_kv_cache" in inspect.signature(cast(nn.Module, model).forward).parameters


@dataclass(frozen=True, eq=False)
class HookedTransformerReuse(KeyValueReuse):
    """Keys and values go in and come out as a TransformerLens key-value cache."""

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
