"""Batch sizes: copies of a prompt that run at once, and tokens that share the start of a run.

`choose_batches` alone decides on a batch size, and `Batches.map` alone halves a batch size.
"""

import logging
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import psutil
import torch
from torch import Tensor

logger = logging.getLogger("heta_lens")

GRAPH, PRODUCT = 3, 2  # in forward runs: building the graph of g's gradient, and then every product with H
FIRST_ORDER = 0.3  # of such a graph: the graph of a gradient that is not differentiated again
MASKED = 1.0  # in forward runs: starting a batch of masked runs
GIB = 2**30
SHORT = 32  # positions: shorter runs take no less time

# Limits for the largest tensor of a run on a CPU, in bytes. Up to the first, tensors that pass through a graph many
# times stay in the processor's cache; beyond the second, freed memory returns to the system, page by page.
GRAPH_BYTES, FORWARD_BYTES = 2**22, 2**25
ACCELERATOR_TOKENS = 2**15  # enough to keep an accelerator busy
MOST_COPIES_ON_CPU, MOST_COPIES = 32, 256


class Sizes(NamedTuple):
    """The sizes of a model that determine the memory use."""

    layers: int
    d_model: int
    d_mlp: int
    heads: int
    vocabulary: int
    itemsize: int
    d_values: int  # of all value vectors of a position, of the heads that have their own

    @classmethod
    def of(cls, config: Any, itemsize: int) -> "Sizes":
        """Read the sizes that determine memory from a configuration of transformers."""
        text = config.get_text_config()
        d, heads = text.hidden_size, text.num_attention_heads
        own = getattr(text, "num_key_value_heads", None) or heads
        d_head = getattr(text, "head_dim", None) or d // heads
        d_mlp = getattr(text, "intermediate_size", None) or getattr(text, "n_inner", None) or 4 * d
        return cls(text.num_hidden_layers, d, d_mlp, heads, text.vocab_size, itemsize, own * d_head)

    def cache(self, tokens: int) -> int:
        """Bytes of a lean cache: the embeddings, the last states, and the values of every layer."""
        return self.itemsize * tokens * (2 * self.d_model + self.layers * self.d_values)

    def patterns(self, tokens: int) -> int:
        """Bytes of the attention patterns of every layer."""
        return self.itemsize * self.layers * self.heads * tokens**2

    def forward(self, queries: int, keys: int, read: int = 1) -> int:
        """Bytes of a forward run without a graph: the activations of a layer, and the keys and values kept before."""
        patterns = 2.25 if self.itemsize >= 4 else 6  # half precision has softmaxes in float32
        layer = queries * (6 * self.d_model + 3 * self.d_mlp + patterns * self.heads * keys)
        kept = 4 * self.layers * keys * self.d_values if queries < keys else 0  # joined with those of the run
        return round(self.itemsize * (layer + kept + 4 * read * self.vocabulary))

    def gradient(self, queries: int, keys: int, *, checkpoint: bool = False) -> int:
        """Bytes of a gradient that is not differentiated again; with ``checkpoint``, of one layer's graph, in full."""
        graph = self.graph(queries, keys, checkpoint=checkpoint)
        return graph if checkpoint else round(FIRST_ORDER * graph)

    def graph(self, queries: int, keys: int, *, checkpoint: bool = False) -> int:
        """Bytes of the graph of g's gradient; with ``checkpoint``, of one layer's graph and the layers' ends."""
        patterns = 4.25 if self.itemsize >= 4 else 6
        layer = round(self.itemsize * queries * (20 * self.d_model + 10 * self.d_mlp + patterns * self.heads * keys))
        return layer + 2 * self._streams(queries) if checkpoint else self.layers * layer

    def product(self, queries: int, keys: int, *, checkpoint: bool = False) -> int:
        """Bytes of a Hessian-vector product without its graph, up through the layers and down again."""
        patterns = 2.8 if self.itemsize >= 4 else 4
        layer = round(self.itemsize * queries * (8 * self.d_model + 3 * self.d_mlp + patterns * self.heads * keys))
        within = self.itemsize * queries * (10 * self.d_model + 6 * self.d_mlp + 6 * self.heads * keys)  # of a block
        return within + self._streams(queries) if checkpoint else self.layers * layer

    def _streams(self, queries: int) -> int:
        """Bytes of every layer's input, in float32."""
        return 4 * self.layers * queries * self.d_model


def available(device: torch.device) -> int:
    """Return the number of free bytes on a device."""
    if device.type == "cuda":
        reserved = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # for new tensors
        return torch.cuda.mem_get_info(device)[0] + reserved
    return psutil.virtual_memory().available


@dataclass(eq=False)
class Batches:
    """A limit of ``size`` copies at once and, with ``fastest``, of the positions that run fastest together.

    When memory runs out, the size is halved for good.
    """

    size: int
    fastest: int | None = None

    def of(self, length: int) -> int:
        """Return how many copies of a run of ``length`` positions to run at once."""
        return self.size if self.fastest is None else max(1, min(self.size, self.fastest // length))

    def map(self, run: Callable[[Tensor], Tensor], items: Tensor, length: int) -> Tensor:
        """Apply ``run``, of ``length`` positions, to a batch of items at a time, and concatenate the results."""
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
            self.size = (len(batch) + 1) // 2  # here the error and the tensors of its frames are gone
            logger.info("out of memory with %d copies at once: continuing with %d", len(batch), self.size)
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
        return results[0] if len(results) == 1 else torch.cat(results)


def choose_batches(
    wanted: int | Literal["auto"],
    sizes: Sizes,
    device: torch.device,
    queries: int,
    keys: int,
    *,
    products: bool = False,
    checkpoint: bool = False,
    read: int = 1,
    free: int | None = None,
) -> Batches:
    """Choose how many copies of a run of ``queries`` positions on ``keys`` positions to run at once.

    "auto" takes as many copies as fit into the ``free`` memory (by default half of the unused memory), and no more
    than run fastest.
    """
    if wanted != "auto":
        return Batches(int(wanted))
    room = available(device) // 2 if free is None else free
    if products:
        room -= sizes.graph(queries, keys, checkpoint=checkpoint)
        copy = sizes.product(queries, keys, checkpoint=checkpoint)
    else:
        copy = sizes.forward(queries, keys, read)
    most, fastest = MOST_COPIES, ACCELERATOR_TOKENS
    if device.type == "cpu":  # its cache limits the largest tensor of a layer
        widest = sizes.itemsize * max(sizes.heads * keys, sizes.d_mlp)  # bytes for a position
        most, fastest = MOST_COPIES_ON_CPU, (GRAPH_BYTES if products else FORWARD_BYTES) // widest
    return Batches(max(1, min(most, room // copy)), fastest)


def check_graph_fits(
    sizes: Sizes, queries: int, keys: int, free: int, *, checkpoint: bool = False, twice: bool = False
) -> None:
    """Refuse a gradient (differentiated ``twice`` for HVPs) whose graph is larger than the free memory."""
    size = partial(sizes.graph if twice else sizes.gradient, checkpoint=checkpoint)
    if (needed := size(queries, keys)) > free:
        fitting = bisect_right(range(1, keys), free, key=lambda n: size(n, n))
        way = "; without hooks on the model, fast, gradient_norm and the like hold one block's graph at a time, and so "
        raise ValueError(
            f"the gradient of {keys:,} tokens takes about {needed / GIB:.1f} GiB, and {free / GIB:.1f} GiB are free: "
            f"up to {fitting:,} tokens fit" + f"{way}does HETA with checkpoint=True" * (not checkpoint)
        )


def out_of_memory(error: RuntimeError) -> bool:
    """Return whether memory ran out; several devices have no error type for running out of memory."""
    messages = ("DefaultCPUAllocator", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
    return isinstance(error, torch.OutOfMemoryError) or any(message in str(error) for message in messages)


def per_product(probes: float | int) -> float:
    """Return the cost of building a graph relative to the cost of a token's products."""
    return GRAPH / (PRODUCT * probes)


def shared_starts(positions: Sequence[int], stop: int, start_cost: float | int) -> list[list[int]]:
    """Group neighbours whose runs should share a start; every run ends at ``stop``.

    A token that joins an earlier token runs the positions between the two in vain; a token that does not join pays for
    another start, ``start_cost`` times a run. Runs of few positions take as long as runs of `SHORT` positions. Tokens
    join until the group has spent as much as the shared start costs.
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
