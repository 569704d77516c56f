"""Reruns of a prompt with changed states.

Everything that is computed from a prediction goes through a `Rerun`: logits as a function of the states at some
positions, while all other states stay clean. A rerun takes the shortest of three ways:

- from the first changed position on, where the model continues from kept keys and values;
- the same up to a window's end, and again from the tail on: between them all stays clean;
- from the first token on, with clean states put back where they enter every layer, where the model cannot continue.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from einops import repeat
from jaxtyping import Float, Int
from torch import Tensor

from heta_lens.model.hooks import EMBED, Hook, note, put, put_positions, stream_name
from heta_lens.prediction.prompt import Prompt
from heta_lens.prediction.target import log_softmax

TAIL = 16  # positions before the prediction that are recomputed with every window


@dataclass(frozen=True, eq=False)
class Rerun:
    """A prediction as a function of the states at ``start:stop``: embeddings, or the input of a ``layer``.

    Without ``stop``, all positions from ``start`` to ``end`` are given. With it, the positions after ``stop`` keep
    their keys and values at every layer, except for the last ones (`TAIL`), which react.
    """

    prompt: Prompt
    objective: Callable[[Float[Tensor, "*batch vocab"]], Float[Tensor, "*batch"]]  # g, of logits
    start: int
    stop: int
    end: int
    layer: int | None
    read: tuple[int, ...] | None  # where logits are read; None: at the last position, without an axis for it

    @property
    def site(self) -> str:
        """The hook point at which the states are put in."""
        return EMBED if self.layer is None else self.prompt.adapter.stream_name(self.layer)

    def states(self) -> Float[Tensor, "pos d"]:
        """Return the clean states at ``start:stop``."""
        return self.prompt.states(self.layer)[self.start : self.stop]

    @property
    def tail(self) -> int:
        """The first position after ``stop`` that reacts; equal to ``stop`` if no position between keeps its state."""
        return max(self.stop, self.end - TAIL)

    def log_probs(self, states: Float[Tensor, "batch pos d"]) -> Float[Tensor, "batch *read vocab"]:
        """Return the log-probabilities with these states."""
        return log_softmax(self.logits(states))

    def g(self, states: Float[Tensor, "batch pos d"]) -> Float[Tensor, "batch *read"]:
        """Return the value of the target with these states: its log-probability, or what its function gives."""
        return self.objective(self.logits(states))

    def logits(self, states: Float[Tensor, "batch pos d"]) -> Float[Tensor, "batch *read vocab"]:
        """Return the logits with these states, in float32 or better."""
        prompt, adapter, batch = self.prompt, self.prompt.adapter, len(states)
        if prompt.one_by_one and batch > 1:
            return torch.cat([self.logits(copy[None]) for copy in states])
        gap = self.stop < self.tail  # positions that stay clean between a window and the tail
        kept = prompt.prefix().kept if self.start or gap else None
        hooks: dict[str, Hook] = {}
        if kept is None:
            begin, states = 0, self._whole(states)
            if gap:  # whose positions become clean again at every layer
                for layer, clean in prompt.streams(range((self.layer or 0) + 1, adapter.layers)).items():
                    hooks[adapter.stream_name(layer)] = put_positions(clean, self.stop, self.tail)
        elif gap:
            past = adapter.reuse.resume(kept, self.start, self.stop, batch)
            adapter.run(self._ids(self.start, self.stop, batch), {self.site: put(states)}, past=past, first=self._first)
            kept = adapter.reuse.joined(adapter.reuse.grown(past), kept, self.tail, self._first)
            begin, states = self.tail, self._clean(self.tail, self.end, batch)
        else:
            begin, states = self.start, torch.cat([states, self._clean(self.stop, self.end, batch)], 1)
        ids = self._ids(begin, begin + states.shape[1], batch)
        logits = adapter.run(
            ids,
            {self.site: put(states), **hooks},
            read=[position - begin for position in self.read or (self.end - 1,)],
            past=None if kept is None else adapter.reuse.resume(kept, begin, self.end, batch),
            first=self._first,
            whole=prompt.one_by_one,
        )
        return logits if self.read else logits[:, 0]

    def _whole(self, states: Float[Tensor, "batch pos d"]) -> Float[Tensor, "batch all d"]:
        """Return the states of the whole prompt, clean where none are given."""
        end = len(self.prompt.ids) if self.prompt.one_by_one else self.end
        before, after = (self._clean(*span, len(states)) for span in ((0, self.start), (self.stop, end)))
        return torch.cat([before, states, after], 1)

    def through_block(self, states: Float[Tensor, "pos d"]) -> Float[Tensor, "pos d"]:
        """Return what leaves the layer's block (the first, for embeddings) at ``start:end``, with these states."""
        adapter, layer = self.prompt.adapter, self.layer or 0
        kept = self.prompt.prefix().kept if self.start else None
        begin = self.start if kept else 0
        past = adapter.reuse.resume(kept, self.start, self.end, 1) if kept else None
        left = dict[int, Tensor]()
        hooks = {self.site: put(torch.cat([self._clean(begin, self.start, 1), states[None]], 1))}
        hooks[stream_name(layer + 1, layer + 1)] = note(left, layer)
        adapter.run(self._ids(begin, self.end, 1), hooks, past=past, only=layer)
        return left[layer][0, self.start - begin :].to(states)

    @property
    def _first(self) -> int:
        """The first block that has to run: the blocks below the layer are skipped, where blocks can run alone."""
        layer, adapter = self.layer or 0, self.prompt.adapter
        if adapter.reads and layer > adapter.first_read:  # which has to run, too
            return 0
        layer = min(layer, adapter.layers - 1)
        return layer if layer and not self.prompt.why_not_alone() else 0

    def _ids(self, start: int, stop: int, batch: int) -> Int[Tensor, "batch pos"]:
        return repeat(self.prompt.ids[start:stop], "pos -> batch pos", batch=batch)

    def _clean(self, start: int, stop: int, batch: int) -> Float[Tensor, "batch pos d"]:
        states = self.prompt.embeddings if start == stop else self.prompt.states(self.layer)  # which may take a run
        return repeat(states[start:stop], "pos d -> batch pos d", batch=batch)
