"""Traces of prompts of the zoo."""

from typing import Any

from torch import Tensor

from helpers.asking import cache_of
from heta_lens.causal import Grid, trace

N, LAYERS, TARGET, OTHER = 4, 4, 7, 9
WAYS: list[dict[str, Any]] = [
    {"what": "resid_post"},
    {"what": "mlp_out"},
    {"what": "attn_out"},
    {"what": "mlp_out", "window": 3},
    {"what": "attn_out", "window": 3},
]


def traced(model: Any, ids: Tensor, target: Any = TARGET, **options: Any) -> Grid:
    return trace(cache_of(model, ids), target, tokens=ids, **{"samples": 2, **options})
