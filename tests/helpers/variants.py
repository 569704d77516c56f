"""Every variant on a short prompt, and norms of the curvature by a dense matrix."""

from typing import Any

from torch import Tensor

from helpers.asking import (
    explain,
)

TARGET, N, PROBES, D = 7, 4, 3, 8
OWN: dict[str, dict[str, Any]] = {  # what each variant needs or should be given on a short prompt
    "full": {"probes": 2},
    "lr": {"rank": 3, "probes": 2},
    "ls": {"layers": 1, "probes": 2},
    "win": {"window": 3, "window_gate": "per_window", "probes": 2},
    "lr+win": {"window": 3, "rank": 3, "probes": 2},
    "ls+win": {"window": 3, "layers": 1, "probes": 2, "window_mode": "chunk", "window_gate": "per_window"},
    "gs": {},
    "gn": {"probes": 2},
    "transition_only": {},
    "hessian_only": {"probes": 2},
    "kl_only": {},
    "no_gate": {"probes": 2},
    "uniform_gate": {"probes": 2},
}


def found(model: Any, ids: Tensor, variant: str, target: Any = TARGET, **options: Any) -> Any:
    return explain(model, ids, target, variant=variant, **OWN[variant] | options)
