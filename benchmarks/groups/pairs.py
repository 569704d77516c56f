"""How near the sizes of pairs of tokens are."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.groups.asked import MANY, SEED, SEEDS, found
from heta_lens._util.numerics import student_t

TITLE = "Pairs of tokens"
COLUMNS = [
    "model",
    "groups",
    "HVPs",
    "error of the 20 largest, %",
    "of these found",
    "L1 of all, %",
    "held, %",
]
LARGEST = 20
NOTE = f"""\
The mean relative error of the {LARGEST} largest sizes; how many of these are among the {LARGEST} largest found; the
error of all, relative to their sum; how often ± t standard errors (t of 10 samples) hold."""


def rows(name: str, prediction: Any) -> Iterator[list[str]]:
    """How near the sizes of pairs are, where tokens share HVPs and where they do not."""
    pairs = partial(found, prediction, interactions=True, gamma=0)
    upper = torch.triu_indices(len(prediction), len(prediction), 1).unbind()
    expected = whole(pairs(groups=None, probes=MANY, seed=SEED).interactions)[upper]
    largest = expected.argsort(descending=True)[:LARGEST]
    for groups in (None, 16, 32):
        results = [pairs(groups=groups, seed=seed) for seed in range(SEEDS)]
        sizes = torch.stack([whole(result.interactions)[upper] for result in results])
        errors = torch.stack([whole(result.standard_errors["interactions"])[upper] for result in results])
        off = (sizes - expected).abs()
        held = off <= student_t(torch.tensor([results[0].options["probes"]])) * errors
        first = sizes.argsort(descending=True)[:, :LARGEST]
        shown = [
            f"{float((off / expected)[:, largest].mean()) * 100:.0f}",
            f"{float(torch.isin(first, largest).double().sum(1).mean()):.1f}",
            f"{float(off.sum(1).mean() / expected.sum()) * 100:.0f}",
            f"{float(held.double().mean()) * 100:.0f}",
        ]
        yield [name, str(groups), str(results[0].diagnostics["hvps"]), *shown]


def whole(found: Tensor | None) -> Tensor:
    assert found is not None
    return found
