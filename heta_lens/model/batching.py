"""How much is run at once: copies of a prompt in a batch, and tokens that share the start of a run.

`choose_batches` is the only place that decides on a batch size, and `Batches.map` the only one that halves it.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from heta_lens.model.adapter import Sizes, available

logger = logging.getLogger("heta_lens")

GRAPH, PRODUCT = 3, 2  # in forward runs: building the graph of g's gradient, and then every product with H
MASKED = 1.0  # in forward runs: starting a batch of masked runs
SHORT = 32  # positions: a run of fewer takes no less time

# The largest tensor of a run on a CPU, in bytes: of what passes through a graph again and again, part stays in the
# processor's cache up to the first; freed memory goes back to the system beyond the second, and returns page by page.
GRAPH_BYTES, FORWARD_BYTES = 2**22, 2**25
ACCELERATOR_TOKENS = 2**15  # that keep an accelerator busy
MOST_COPIES_ON_CPU, MOST_COPIES = 32, 256


@runtime_checkable
class Pace(Protocol):
    def copies(self, length: int) -> int:
        """How many copies of runs of so many positions finish in the least time."""
        ...


@dataclass(frozen=True)
class InProcessorCache:
    """What a CPU computes should stay close to it: the largest tensor is limited."""

    bytes: int
    per_position: int  # bytes of the largest tensor

    def copies(self, length: int) -> int:
        return self.bytes // (self.per_position * length)


@dataclass(frozen=True)
class BusyAccelerator:
    """A GPU should have enough to do, and more is not faster: the number of tokens is limited."""

    tokens: int

    def copies(self, length: int) -> int:
        return self.tokens // length


class Batches:
    """At most ``size`` copies at once, and no more than the fastest number if a ``pace`` is given.

    When memory runs out, the size is halved for good.
    """

    def __init__(self, size: int, pace: Pace | None = None) -> None:
        self.size = size
        self.pace = pace

    def of(self, length: int) -> int:
        """How many copies of runs of so many positions to do at once."""
        return self.size if self.pace is None else max(1, min(self.size, self.pace.copies(length)))

    def map(self, run: Callable[[Tensor], Tensor], items: Tensor, length: int) -> Tensor:
        """``run``, of so many positions, on a batch of items at a time; concatenated along the first dimension."""
        results: list[Tensor] = []
        done = 0
        while done < len(items):
            batch = items[done : done + self.of(length)]
            try:
                results.append(run(batch))
                done += len(batch)
                continue
            except RuntimeError as error:
                if len(batch) == 1 or not out_of_memory(error):
                    raise
            self._halve(len(batch))  # here the error is gone, and with it the tensors that its frames held
        return results[0] if len(results) == 1 else torch.cat(results)

    def _halve(self, copies: int) -> None:
        self.size = (copies + 1) // 2
        logger.info("out of memory with %d copies at once: continuing with %d", copies, self.size)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def choose_batches(
    wanted: int | Literal["auto"],
    sizes: Sizes,
    device: torch.device,
    queries: int,
    keys: int,
    *,
    products: bool,
    checkpoint: bool = False,
    read: int,
    free: int | None = None,
) -> Batches:
    """How many copies of runs of so many ``queries`` on so many ``keys`` to run at once.

    "auto" takes as many as fit into the ``free`` memory (by default half of what is unused), and no more than are
    fastest.
    """
    if wanted != "auto":
        batches = Batches(int(wanted))
    else:
        room = available(device) // 2 if free is None else free
        if products:
            room -= sizes.graph(queries, keys, checkpoint=checkpoint)
            copy = sizes.product(queries, keys, checkpoint=checkpoint)
        else:
            copy = sizes.forward(queries, keys, read)
        most = MOST_COPIES_ON_CPU if device.type == "cpu" else MOST_COPIES
        copies = max(1, min(most, room // copy))
        batches = Batches(copies, _pace(sizes, device, keys, products))
    logger.debug("at most %d copies of %d positions at once, on %s", batches.of(queries), queries, device)
    return batches


def _pace(sizes: Sizes, device: torch.device, keys: int, products: bool) -> Pace:
    if device.type == "cpu":
        return InProcessorCache(GRAPH_BYTES if products else FORWARD_BYTES, sizes.widest(1, keys))
    return BusyAccelerator(ACCELERATOR_TOKENS)


def out_of_memory(error: RuntimeError) -> bool:
    """Whether there was too little memory; not every device has an error type of its own for it."""
    messages = ("DefaultCPUAllocator", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
    return isinstance(error, torch.OutOfMemoryError) or any(message in str(error) for message in messages)


def per_product(probes: float | int) -> float:
    """The cost of building a graph relative to that of the products of one token."""
    return GRAPH / (PRODUCT * probes)


def shared_starts(positions: Sequence[int], stop: int, start_cost: float | int) -> list[list[int]]:
    """Neighbours that should share the start of their runs, which all end at ``stop``.

    A token that joins an earlier one runs the positions between them in vain; one that does not pays for another
    start, ``start_cost`` times a run from there. A run of few positions takes as long as one of `SHORT`. Tokens join
    until they have spent as much as the start they share.
    """
    together: list[list[int]] = []
    spent = budget = shared = 0.0
    for position in positions:
        alone = max(stop - position, SHORT)
        spent += shared - alone
        if not together or spent > budget:
            together.append([])
            spent, budget, shared = 0.0, start_cost * alone, alone
        together[-1].append(position)
    return together
