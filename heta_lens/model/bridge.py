"""How a `TransformerBridge` (TransformerLens 3 and 4) continues from kept keys and values."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from heta_lens.model.key_values import KeyValueReuse
from heta_lens.model.model_protocol import KeysValues


@dataclass(frozen=True, eq=False)
class BridgeReuse(KeyValueReuse):
    """Keys and values go in and come out as a transformers cache."""

    position_axis: ClassVar[int] = 2

    def arguments(self, prefix: KeysValues, start: int, stop: int, batch: int, device: torch.device) -> dict[str, Any]:  # noqa: ARG002
        from transformers import DynamicCache

        # A plain cache: the ones that models make for themselves may keep only their sliding window.
        cache = DynamicCache()
        for layer, (keys, values) in enumerate(prefix if start else []):
            cache.update(keys, values, layer)
        return {"past_key_values": cache}

    def grown(self, arguments: Mapping[str, Any]) -> KeysValues:
        return [(layer.keys, layer.values) for layer in arguments["past_key_values"].layers]
