"""Three ways to run a prompt with other states at some positions, while everything else stays as it was.

- from the first changed position to the end, where the clean keys and values before it can be continued (suffix);
- the same, but leaving out the positions between a window and the tail, which stay clean (window);
- from the first token on, putting back what has to stay clean (full), where nothing can be continued.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from einops import repeat
from jaxtyping import Float, Int
from torch import Tensor

from heta_lens._util.work import counting
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.hooks import EMBED, BatchHook, KeysValues, Places, note, put, put_positions, stream_name
from heta_lens.model.lock import one_at_a_time
from heta_lens.prediction.checks import BlocksAlone, blocks_alone, reusable_prefix


@dataclass(frozen=True)
class Part:
    """A part of a prompt whose states can change, and what of the rest is run again.

    States at ``start:stop`` are given; positions from there to ``tail`` keep what they had at every layer, those from
    ``tail`` to ``end`` react.
    """

    start: int
    stop: int
    tail: int
    end: int
    read: list[int]
    layer: int | None
    site: str  # the hook point where the states are put in

    @property
    def gap(self) -> bool:
        return self.stop < self.tail


@dataclass(eq=False, repr=False)
class Runner:
    """Runs one prompt again and again. ``log_probs`` are its clean predictions after contexts of these lengths."""

    adapter: ModelAdapter
    ids: Int[Tensor, "pos"]
    embeddings: Float[Tensor, "pos d"]
    log_probs: Mapping[int, Float[Tensor, "vocab"]]
    user_hooks: tuple[Any, ...]
    checks: dict[str, Counter[str]]
    prefix: tuple[KeysValues | None, str] | None = None  # see `reusable_prefix`; None: not needed so far
    clean_streams: dict[int, Tensor] = field(default_factory=dict)

    @cached_property
    def one_by_one(self) -> bool:
        """Whether a hook may index the batch, or depend on the prompt's length: it only ever sees this one, whole."""
        return not all(isinstance(hook, BatchHook) for hook in self.user_hooks)

    @property
    def kept(self) -> KeysValues | None:
        """The clean keys and values, for runs that continue from them; None where that does not work."""
        return (self.prefix or self._prefix())[0]

    @property
    def reuse(self) -> str:
        """Whether runs continued from kept keys and values, and if not, why."""
        if self.prefix is None and not self.user_hooks:
            return "not needed"
        return (self.prefix or self._prefix())[1]

    @one_at_a_time("self")
    def _prefix(self) -> tuple[KeysValues | None, str]:
        """The kept keys and values, taken when they are first needed."""
        if self.prefix is None:
            length = max(self.log_probs)
            ids, embeddings, log_probs = self.ids[:length], self.embeddings[:length], self.log_probs[length]
            with counting(self.checks.setdefault("prefix_reuse", Counter())):
                self.prefix = reusable_prefix(self.adapter, ids, embeddings, log_probs, bool(self.user_hooks))
        return self.prefix

    @cached_property
    def alone(self) -> BlocksAlone:
        """Whether blocks can run without the others, which is found out when it is first needed."""
        if self.user_hooks:
            return BlocksAlone(False, "hooks on the model may carry something from block to block")
        with counting(self.checks.setdefault("blocks_alone", Counter())):
            return blocks_alone(self.adapter, self.ids)

    def first_block(self, part: Part) -> int:
        """The first that has to run: those below stay as they were, where states are put in above them."""
        layer = min(part.layer or 0, self.adapter.layers - 1)
        return layer if layer and self.alone.same else 0

    def logits_of(self, ids: Int[Tensor, "batch pos"], read: Places = (-1,)) -> Float[Tensor, "batch read vocab"]:
        """Logits after other ids, as many at once; the user's hooks see them one by one."""
        if not self.one_by_one:
            return self.adapter.run(ids, read=read)
        places = read.split(1) if isinstance(read, Tensor) else [read] * len(ids)
        return torch.cat(
            [self.adapter.run(row, read=place, whole=True) for row, place in zip(ids.split(1), places, strict=True)]
        )

    def run(self, part: Part, states: Float[Tensor, "batch pos d"]) -> Float[Tensor, "batch read vocab"]:
        """Logits with these states in the part."""
        if self.one_by_one and len(states) > 1:
            return torch.cat([self.run(part, copy[None]) for copy in states])
        if (part.start == 0 and not part.gap) or self.kept is None:
            return self.full_run(part, states)
        run = self.window_run if part.gap else self.suffix_run
        return run(part, states, self.kept)

    def suffix_run(self, part: Part, states: Tensor, kept: KeysValues) -> Tensor:
        """Continue the clean prefix."""
        batch = len(states)
        past = self.adapter.resume(kept, part.start, part.end, batch)
        suffix = torch.cat([states, self._clean(part.stop, part.end, batch, part.layer)], 1)
        ids, read = self._ids(part.start, part.end, batch), [position - part.start for position in part.read]
        return self.adapter.run(ids, {part.site: put(suffix)}, read=read, past=past, first=self.first_block(part))

    def window_run(self, part: Part, states: Tensor, kept: KeysValues) -> Tensor:
        """Continue the clean prefix to the window's end, and again from the tail on: between them all stays clean."""
        batch, first = len(states), self.first_block(part)
        past = self.adapter.resume(self._before_tail(part, states, kept), part.tail, part.end, batch)
        ids, read = self._ids(part.tail, part.end, batch), [position - part.tail for position in part.read]
        entering = {part.site: put(self._clean(part.tail, part.end, batch, part.layer))} if first else None
        return self.adapter.run(ids, entering, read=read, past=past, first=first)

    def _before_tail(self, part: Part, states: Tensor, kept: KeysValues) -> KeysValues:
        """Keys and values up to the tail: in the window as these states give them, else clean."""
        batch, first = len(states), self.first_block(part)
        past = self.adapter.resume(kept, part.start, part.stop, batch)
        self.adapter.run(self._ids(part.start, part.stop, batch), {part.site: put(states)}, past=past, first=first)
        return self.adapter.reuse.joined(self.adapter.reuse.grown(past), kept, part.tail, first)

    def full_run(self, part: Part, states: Tensor) -> Tensor:
        """From the first token; what has to stay clean is put back where it enters each layer."""
        batch, last = len(states), len(self.ids) if self.one_by_one else part.end
        before = self._clean(0, part.start, batch, part.layer)
        after = self._clean(part.stop, last, batch, part.layer)
        hooks = {part.site: put(torch.cat([before, states, after], 1))}
        if part.gap:
            above = range(1 if part.layer is None else part.layer + 1, self.adapter.layers)
            for layer, clean in self.streams(above).items():
                hooks[self.adapter.stream_name(layer)] = put_positions(clean, part.stop, part.tail)
        ids, first = self._ids(0, last, batch), self.first_block(part)
        return self.adapter.run(ids, hooks, read=part.read, whole=self.one_by_one, first=first)

    def through_block(
        self, layer: int, start: int, end: int, states: Float[Tensor, "pos d"], site: str
    ) -> Float[Tensor, "pos d"]:
        """What leaves a block at ``start:end``, if these states are put in there before it; the rest stays clean."""
        kept = self.kept if start else None
        begin = start if kept else 0
        clean = self._clean(begin, start, 1, None if site == EMBED else layer)
        past = self.adapter.resume(kept, start, end, 1) if kept else None
        left = dict[int, Tensor]()
        hooks = {stream_name(layer + 1, layer + 1): note(left, layer)}
        entering = torch.cat([clean, states[None]], 1)
        self.adapter.run_block(layer, self._ids(begin, end, 1), entering, hooks, past=past, site=site)
        return left[layer][0, start - begin :].to(states)

    def _ids(self, start: int, stop: int, batch: int) -> Int[Tensor, "batch pos"]:
        return repeat(self.ids[start:stop], "pos -> batch pos", batch=batch)

    def _clean(self, start: int, stop: int, batch: int, layer: int | None) -> Float[Tensor, "batch pos d"]:
        states = self.embeddings if start == stop else self.states(layer)  # which may take a run
        return repeat(states[start:stop], "pos d -> batch pos d", batch=batch)

    def states(self, layer: int | None) -> Float[Tensor, "pos d"]:
        """What enters a layer at every position; the embeddings, for None."""
        return self.embeddings if layer is None else self.streams([layer])[layer]

    @torch.no_grad()
    def streams(self, layers: Sequence[int]) -> Mapping[int, Float[Tensor, "pos d"]]:
        """What enters these layers, from a single run that is done once."""
        missing = [layer for layer in layers if layer not in self.clean_streams]
        if missing:
            streams = self.adapter.streams(self.ids[None], missing, whole=bool(self.user_hooks))
            self.clean_streams.update({layer: states[0].to(self.embeddings) for layer, states in streams.items()})
        return {layer: self.clean_streams[layer] for layer in layers}
