"""How much is run at once: copies of a prompt in one batch, and tokens that share the start of a run."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

GRAPH, PRODUCT = 3, 2  # forward runs that g's gradient with its graph costs, and then every product with H
MASKED = 1.0  # what it costs to start a batch of masked runs, in runs


class Batches:
    """At most ``size`` copies at once; fewer from then on, when the memory does not hold so many.

    ``fastest`` says how many copies of runs of so many positions are done in the least time.
    """

    def __init__(self, size: int, fastest: Callable[[int], int] | None = None) -> None:
        self.size = size
        self.fastest = fastest

    def of(self, length: int) -> int:
        """How many copies of runs of so many positions to do at once."""
        return self.size if self.fastest is None else max(1, min(self.size, self.fastest(length)))

    def map(self, run: Callable[[Tensor], Tensor], items: Tensor, length: int) -> Tensor:
        """``run``, of so many positions, on some of the items at a time; put together along the first dimension."""
        found: list[Tensor] = []
        at = 0
        while at < len(items):
            some = items[at : at + self.of(length)]
            try:
                found.append(run(some))
            except RuntimeError as error:
                if len(some) == 1 or not out_of_memory(error):
                    raise
            else:
                at += len(some)
                continue
            self.size = (len(some) + 1) // 2  # the error is gone, and with it what its frames held
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
        return found[0] if len(found) == 1 else torch.cat(found)


def out_of_memory(error: RuntimeError) -> bool:
    """Whether there was too little memory; not every device has an error of its own for it."""
    told = ("DefaultCPUAllocator", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
    return isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in told)


def per_product(probes: float | int) -> float:
    """What building a graph costs beside the products of one token, as a share of them."""
    return GRAPH / (PRODUCT * probes)


def shared_starts(positions: Sequence[int], stop: int, start_cost: float | int) -> list[list[int]]:
    """Neighbours that should share the start of their runs, which all end at ``stop``.

    Whoever joins an earlier token runs the positions between them in vain; whoever does not pays for another start,
    ``start_cost`` times a run from there. Tokens join until they have spent as much as the start they share.
    """
    groups: list[list[int]] = []
    spent = budget = 0.0
    for position in positions:
        spent += position - groups[-1][0] if groups else 0
        if not groups or spent > budget:
            groups.append([])
            spent, budget = 0.0, start_cost * (stop - position)
        groups[-1].append(position)
    return groups
