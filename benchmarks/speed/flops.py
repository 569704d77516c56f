"""FLOPs that runs take, counted and worked out by hand."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

import heta_lens
from benchmarks.speed.cases import Case
from benchmarks.speed.parts import ALONE, ROW, Read


def counted(run: Callable[[Read], Any]) -> Any:
    with FlopCounterMode(display=False) as counter:
        return run(lambda: float(counter.get_total_flops()))


@torch.no_grad()
def forward_flops(case: Case) -> float:
    """Of one clean run of the whole prompt, every position unembedded: a forward-equivalent."""

    def forward(read: Read) -> float:
        case.model(case.ids)
        return read()

    return counted(forward)


def suffix_flops(cfg: Any, q: int, n: int, read: int = 1) -> float:
    """A run of the last q of n positions by hand: what matrices multiply, attention over all keys as it is computed.

    Behind the last attention, only positions that are read.
    """
    heads, values = (count * cfg.d_head for count in (cfg.n_heads, getattr(cfg, "n_key_value_heads", 0) or cfg.n_heads))
    attention, mlp = 2 * (heads + values), (3 if cfg.gated_mlp else 2) * cfg.d_mlp
    columns = cfg.n_layers * q * attention + ((cfg.n_layers - 1) * q + read) * mlp + read * cfg.d_vocab
    return 2 * cfg.d_model * columns + cfg.n_layers * 4 * q * n * heads


def floors(cfg: Any, n: int, probes: int) -> dict[str, float]:
    """What these products and runs cost at the least: each over the token's own suffix alone, a start for nothing.

    A product that tokens share is over the suffix of the first of them, which is nearly all.
    """
    runs, whole = sum(suffix_flops(cfg, n - i, n) for i in range(n)), suffix_flops(cfg, n, n)
    shared = heta_lens.Heta().groups
    alone = 2 * probes * runs
    grouped = alone if shared is None or n <= shared else 2 * (shared * probes + 1) * whole
    return {"curvature": grouped, "information": runs, ALONE: alone, ROW: 2 * probes * whole}
