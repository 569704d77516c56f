"""Predictions that weights are fitted to."""

from typing import Any

import numpy as np
import torch

from helpers import variant_oracles as variants
from heta_lens import Heta, Prediction
from heta_lens.methods.heta.fit_weights import measured

Array = np.ndarray


def method(**options: Any) -> Heta:
    return Heta(**{"support": "row", "probes": 2} | options)


def tables(predictions: list[Prediction], how: Heta, seed: int = 0) -> dict[str, Array]:
    """The rows that `fit_weights` fits to."""
    found = [measured(how, prediction, number, seed) for number, prediction in enumerate(predictions)]
    return {name: np.concatenate([table[name] for table in found]) for name in found[0]}


def enumerated(table: Any, features: Any, rows: Any = slice(None)) -> list[float]:
    """The oracle's weights, of two features; of one, its best scale."""
    columns = [torch.tensor(table[name][rows]) for name in features]
    drops = torch.tensor(table["drop"][rows])
    if len(columns) == 1:
        return [float(variants.best_scale(drops, columns[0]))]
    return [*variants.nnls_by_enumeration(torch.stack(columns, 1), drops)]
