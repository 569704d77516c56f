"""What sharing HVPs adds to chance in longer contexts."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor

import heta_lens
from benchmarks.groups.asked import cases, found
from benchmarks.pareto import curvature
from benchmarks.speed.parts import spread

TITLE = "Longer contexts"
COLUMNS = ["model", "tokens", "compared", "L1 to each token alone", "L1 of each token alone to another seed", "ΣS, %"]
LONGER, COMPARED = (32, 128, 512), 32  # contexts, and of how many of their tokens each is probed alone
NOTE = f"""\
Gate times curvature of {COMPARED} tokens evenly over the context, from products that all tokens share, against probing
each alone with the same signs; beside it, what other signs change."""


def longer_cases() -> Iterator[tuple[str, Any]]:
    for length in LONGER:
        yield next(cases(length, ["gpt2-like"]))


def rows(name: str, prediction: Any) -> Iterator[list[str]]:
    """What sharing adds to chance, of tokens evenly over a context too long to probe them all alone."""
    tokens = spread(range(len(prediction)), COMPARED)
    gate = found(prediction, variant="transition_only").parts["gate"][tokens]
    usual = heta_lens.Heta()

    def scores(seed: int, groups: int | None) -> Tensor:
        wanted = range(len(prediction)) if groups else tokens
        found = curvature(prediction, wanted, groups=groups, probes=usual.probes, seed=seed).mean
        return gate * (found[tokens] if groups else found)

    shared, alone, other = scores(0, usual.groups), scores(0, None), scores(1, None)
    sizes = [str(len(prediction)), str(len(tokens))]
    errors = [f"{float((one / one.sum() - alone / alone.sum()).abs().sum()):.4f}" for one in (shared, other)]
    yield [name, *sizes, *errors, f"{float(shared.sum() / alone.sum() - 1) * 100:+.1f}"]
