"""Whether the blocks of a model can run alone: tried on the first tokens of each prompt, where it costs least."""

from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from heta_lens._util.tolerance import distance
from heta_lens._util.work_counting import count
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.batching import out_of_memory
from heta_lens.model.hook_sites import stream_name
from heta_lens.model.hooking import note

TRIED = 4  # tokens


class BlocksAlone(NamedTuple):
    """Whether every block does the same alone as in the model; and if not, why."""

    same: bool
    why: str = ""


@torch.no_grad()
def blocks_alone(adapter: ModelAdapter, ids: Int[Tensor, "pos"]) -> BlocksAlone:
    """Compare what leaves each block in a run of the model with what leaves it when it is all that runs.

    Blocks of some architectures hand each other more than the residual stream. What is left of that in the model is
    changed first, by a run of other tokens; and blocks are tried from the last down, so that none has it from below.
    """
    few = ids[None, :TRIED]
    streams = adapter.streams(few, range(adapter.layers + 1))
    adapter.run((few + 1) % adapter.vocabulary)
    count("forwards", len(few))  # for all blocks together
    for layer in reversed(range(adapter.layers)):
        left: dict[int, Tensor] = {}
        leaving = stream_name(layer + 1, layer + 1)  # also where the next block does not run
        try:
            adapter.run_block(layer, few, streams[layer], {leaving: note(left, layer)})
            off, allowed = distance(left[layer], streams[layer + 1])
        except Exception as error:  # whatever a model raises when it is run in a way it was not made for
            if isinstance(error, RuntimeError) and out_of_memory(error):
                raise
            return BlocksAlone(False, f"block {layer} cannot run alone ({type(error).__name__}: {error})")
        if off > allowed:
            return BlocksAlone(False, f"block {layer} does something else when it runs alone (off by {off:.1e})")
    return BlocksAlone(True)
