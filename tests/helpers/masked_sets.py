"""What masking sets of tokens does."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from helpers import variant_oracles as variants
from helpers.asking import explain, plain_embeddings, plain_log_probs
from heta_lens.methods.heta.diagnostics import SUBSETS, subsets

TARGET, N = 7, 6


def found(model: Any, ids: Tensor, target: Any = TARGET, **options: Any) -> Any:
    return explain(model, ids, target, **{"probes": 2} | options)


def objective(model: Any, ids: Tensor, target: Any = TARGET) -> Any:
    log_probs = plain_log_probs(model, ids)

    @torch.no_grad()
    def g(e: Tensor) -> Tensor:
        found = log_probs(e)
        return found[target[0]] - found[target[1]] if isinstance(target, tuple) else found[target]

    return g


def check_audit(attribution: Any, model: Any, ids: Tensor, vector: Tensor | None = None, target: Any = TARGET) -> None:
    """Every set of tokens masked by the oracle; the scale fitted on one half of them, and evaluated on the other."""
    at, g = plain_embeddings(model, ids), objective(model, ids, target)
    vector = torch.zeros_like(at[0]) if vector is None else vector
    generator = np.random.default_rng([attribution.options["seed"], *ids[0].tolist()])
    members = subsets(generator, len(at))
    order = generator.permutation(len(members))
    drops = torch.stack([variants.drop(g, at, vector, row.nonzero().flatten().tolist()) for row in members])
    sums = torch.stack([attribution.scores[row].sum() for row in members])
    half = len(order) // 2
    fitted, evaluated = order[:half], order[half:]
    scale = variants.best_scale(drops[fitted], sums[fitted])
    left = variants.faithfulness_errors(drops[evaluated], scale * sums[evaluated])
    expected = {
        "raw": float(variants.faithfulness_errors(drops, sums).mean()),
        "calibrated": float(left.mean()),
        "calibrated_standard_error": float(left.std() / len(evaluated) ** 0.5),
        "nothing": float(drops[evaluated].abs().mean()),
        "scale": float(scale),
        "subsets": len(drops),
    }
    assert attribution.diagnostics["faithfulness"] == pytest.approx(expected, rel=1e-6)
    assert attribution.diagnostics["audit"] == len(drops) == len(at) + SUBSETS
