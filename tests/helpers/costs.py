"""Estimates of cost on prompts of the zoo."""

from typing import Any

from torch import Tensor

import heta_lens
from helpers.asking import cache_of


def estimate(model: Any, ids: Tensor, **options: Any) -> Any:
    return heta_lens.estimate(cache_of(model, ids), tokens=ids, **options)
