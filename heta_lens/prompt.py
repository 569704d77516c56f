"""Prompt: tokens, and a live model that was seen to do with them what was cached.

Everything that is computed later runs through `Prompt.logits_from`: what the model says next, as a function of the
states of some positions, everything else as it was. Where the model can continue from kept keys and values, only
those positions are run that can change.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Literal, TypeAlias

import torch
from einops import repeat
from jaxtyping import Float, Int
from torch import Tensor

from heta_lens.batches import Batches, shared_starts
from heta_lens.cached import Activations, Tokens, Vocabulary, cached_tokens, check_causal, replay, tolerance
from heta_lens.lens import (
    EMBED,
    READ,
    BatchHook,
    Hook,
    KeysValues,
    Lens,
    Places,
    names_filter,
    pattern_name,
    put,
    values_name,
)
from heta_lens.memory import available
from heta_lens.progress import counting
from heta_lens.scales import log_softmax
from heta_lens.text import brief
from heta_lens.turns import one_at_a_time

Logits: TypeAlias = Callable[[Float[Tensor, "batch pos d"]], Float[Tensor, "batch read vocab"]]

TAIL = 16  # positions before the prediction that are recomputed with every window
# Bytes of the largest tensor in a run on a CPU: of what passes through a graph again and again, some stays in a cache
# up to the first; freed memory goes back to the system beyond the second, and comes again page by page.
NEAR, AT_HAND = 2**23, 2**25


@dataclass(frozen=True, eq=False)
class Prompt:
    """``log_probs`` are the clean predictions after contexts of these lengths, ``embeddings`` in float32 or better.

    ``ids`` end with the longest of the contexts, unless hooks of the user's must find the prompt as they know it.
    """

    def __repr__(self) -> str:
        return brief(self)

    lens: Lens
    cached: Activations
    ids: Int[Tensor, "pos"]
    embeddings: Float[Tensor, "pos d"]
    log_probs: Mapping[int, Float[Tensor, "vocab"]]
    user_hooks: tuple[Any, ...]
    mismatch: float
    checks: dict[str, Counter[str]] = field(default_factory=dict)  # what each check ran
    _seen: dict[int, Tensor] = field(default_factory=dict)

    @classmethod
    def checked(
        cls, lens: Lens, cached: Activations, contexts: Sequence[int], tokens: Tokens = None, *, needed: int
    ) -> "Prompt":
        """Settle the tokens, and check with one forward that the model still does what was cached.

        ``needed`` ids have to be known for sure: those of the contexts, and of targets read from the prompt itself.
        """
        check_causal(lens, cached)
        ids = cached_tokens(lens, cached[EMBED], tokens, needed)
        with counting(Counter()) as ran:
            given = not (tokens is None or isinstance(tokens, Vocabulary))
            seen = replay(lens, cached, ids, [n - 1 for n in contexts], given=given)
        user_hooks = tuple(lens.user_hooks())
        end = len(ids) if user_hooks else max(needed, *contexts)
        embeddings = seen.embeddings.to(torch.promote_types(seen.embeddings.dtype, torch.float32))
        log_probs = dict(zip(contexts, log_softmax(seen.logits), strict=True))
        checks = {"cache": ran}
        return cls(lens, cached, ids[:end], embeddings[:end], log_probs, user_hooks, seen.mismatch, checks)

    def alone(self, start: int, stop: int) -> "Prompt":
        """A part of it as a prompt of its own, which begins where the part begins."""
        seen: dict[str, Tensor] = {}
        watch: dict[str, Hook] = {
            name: lambda live, name=name: seen.update({name: live[0]})
            for name in self.cached.tensors
            if names_filter(name) and name != READ
        }
        with torch.no_grad():
            logits = self.lens.run(self.ids[None, start:stop], watch)[0]
        embeddings = seen[EMBED].to(self.embeddings)
        log_probs = {stop - start: log_softmax(logits[-1])}
        ids, cached = self.ids[start:stop], Activations(seen)
        return Prompt(self.lens, cached, ids, embeddings, log_probs, (), self.mismatch, self.checks)

    def states(self, layer: int | None) -> Float[Tensor, "pos d"]:
        """What enters a layer at every position; the embeddings, for None."""
        return self.embeddings if layer is None else self._streams([layer])[layer]

    def pattern(self, layer: int) -> Float[Tensor, "head pos pos"]:
        """The attention pattern that was cached; of a cache without any, the live model's, one layer at a time."""
        return self._cached_or_live(pattern_name, layer)

    def values(self, layer: int) -> Float[Tensor, "pos group d_head"]:
        """The value vectors, with their bias, of every key/value head, found like the patterns."""
        return self._cached_or_live(values_name, layer)

    def _cached_or_live(self, name_of: Callable[[int], str], layer: int) -> Tensor:
        name = name_of(layer)
        if any(name_of(other) in self.cached for other in range(self.lens.layers)):
            return self.cached[name]
        seen: list[Tensor] = []
        with torch.no_grad():
            self.lens.run(self.ids[None], {name: lambda live: seen.append(live[0])}, whole=bool(self.user_hooks))
        return seen[0]

    def logits_of(self, ids: Int[Tensor, "batch pos"], read: Places = (-1,)) -> Float[Tensor, "batch read vocab"]:
        """Logits after other ids, as many at once; hooks of the user's see them one by one."""
        if not self.one_by_one:
            return self.lens.run(ids, read=read)
        places = read.split(1) if isinstance(read, Tensor) else [read] * len(ids)
        return torch.cat(
            [self.lens.run(one, read=place, whole=True) for one, place in zip(ids.split(1), places, strict=True)]
        )

    def logits_from(
        self, start: int, *, read: Sequence[int], stop: int | None = None, layer: int | None = None
    ) -> Logits:
        """Logits at ``read``, as a function of what enters a layer (or of embeddings) at ``start:stop``.

        Without ``stop``, of all positions up to the last that is read. With it, the positions after it stay as they
        were too (their keys and values at every layer), but for a tail that ends where the prediction is read.
        """
        end = max(read) + 1
        stop = end if stop is None else stop
        site = EMBED if layer is None else self.lens.stream_name(layer)
        return partial(self._run, Part(start, stop, max(stop, end - TAIL), end, [*read], layer, site))

    def log_probs_from(
        self, start: int, *, read: Sequence[int], stop: int | None = None, layer: int | None = None
    ) -> Logits:
        """The same, as log-probabilities."""
        logits = self.logits_from(start, read=read, stop=stop, layer=layer)
        return lambda states: log_softmax(logits(states))

    def groups(self, positions: Sequence[int], stop: int, start_cost: float | int) -> list[list[int]]:
        """Which tokens' runs should start together: all of them, where a later start saves nothing."""
        if not positions:
            return []
        return [list(positions)] if self.kept is None else shared_starts(positions, stop, start_cost)

    def batches(
        self,
        wanted: int | Literal["auto"],
        queries: int,
        *,
        products: bool = False,
        read: int = 1,
        free: int | None = None,
    ) -> Batches:
        """How many copies of runs of so many positions to run at once; hooks only ever see one prompt.

        "auto" takes as many as fit into what is ``free`` (half of what nobody uses), and of these what is fastest: a
        GPU is to be kept busy, but what a CPU computes should stay near it.
        """
        if self.one_by_one:
            return Batches(1)
        if wanted != "auto":
            return Batches(int(wanted))
        sizes, keys, device = self.lens.sizes, len(self.ids), self.lens.device
        one = sizes.product(queries, keys) if products else sizes.forward(queries, keys, read)
        free = available(device) // 2 if free is None else free
        left = free - (sizes.graph(queries, keys) if products else 0)
        if device.type == "cpu":
            room = NEAR if products else AT_HAND
            return Batches(max(1, min(32, left // one)), lambda length: room // sizes.widest(length, keys))
        return Batches(max(1, min(256, left // one)), lambda length: 2**15 // length)

    @cached_property
    def one_by_one(self) -> bool:
        """Whether a hook may index the batch, or know how long the prompt is: it only ever sees this one, whole."""
        return not all(isinstance(hook, BatchHook) for hook in self.user_hooks)

    @property
    @one_at_a_time("self")  # before the lock that `cached_property` has until Python 3.12, or two threads wait for ever
    def kept(self) -> KeysValues | None:
        """The clean keys and values, for runs that continue from them; None where that does not work."""
        return self._reuse[0]

    @property
    def reuse(self) -> str:
        """Whether runs continued from them, and if not, why."""
        if "_reuse" not in vars(self) and not self.user_hooks:
            return "not needed"
        return self._reuse[1] or "on"

    @cached_property
    def _reuse(self) -> tuple[KeysValues | None, str]:
        length = max(self.log_probs)
        ids, embeddings, log_probs = self.ids[:length], self.embeddings[:length], self.log_probs[length]
        with counting(self.checks.setdefault("prefix_reuse", Counter())):
            return reusable_prefix(self.lens, ids, embeddings, log_probs, bool(self.user_hooks))

    # ------------------------------------------------------------------------------------------ three ways to run it
    def _run(self, part: "Part", states: Float[Tensor, "batch pos d"]) -> Float[Tensor, "batch read vocab"]:
        if self.one_by_one and len(states) > 1:
            return torch.cat([self._run(part, one[None]) for one in states])
        if (part.start == 0 and not part.gap) or self.kept is None:
            return self._full_run(part, states)
        run = self._window_run if part.gap else self._suffix_run
        return run(part, states, self.kept)

    def _suffix_run(self, part: "Part", states: Tensor, kept: KeysValues) -> Tensor:
        """Continue the clean prefix."""
        batch = len(states)
        past = self.lens.resume(kept, part.start, part.end, batch)
        every = torch.cat([states, self._clean(part.stop, part.end, batch, part.layer)], 1)
        ids, read = self._ids(part.start, part.end, batch), [place - part.start for place in part.read]
        return self.lens.run(ids, {part.site: put(every)}, read=read, past=past)

    def _window_run(self, part: "Part", states: Tensor, kept: KeysValues) -> Tensor:
        """Continue the clean prefix to the window's end, and from the tail on: between them all stays clean."""
        batch = len(states)
        past = self.lens.resume(kept, part.start, part.stop, batch)
        self.lens.run(self._ids(part.start, part.stop, batch), {part.site: put(states)}, past=past)
        joined = self.lens.joined(self.lens.grown(past), kept, part.tail)
        past = self.lens.resume(joined, part.tail, part.end, batch)
        ids, read = self._ids(part.tail, part.end, batch), [place - part.tail for place in part.read]
        return self.lens.run(ids, read=read, past=past)

    def _full_run(self, part: "Part", states: Tensor) -> Tensor:
        """From the first token; what has to stay as it was is put back where it enters each layer."""
        batch, last = len(states), len(self.ids) if self.one_by_one else part.end
        before, after = (self._clean(*gap, batch, part.layer) for gap in ((0, part.start), (part.stop, last)))
        hooks = {part.site: put(torch.cat([before, states, after], 1))}
        if part.gap:
            above = range(1 if part.layer is None else part.layer + 1, self.lens.layers)
            for layer, clean in self._streams(above).items():
                hooks[self.lens.stream_name(layer)] = _put_rows(clean, part.stop, part.tail)
        return self.lens.run(self._ids(0, last, batch), hooks, read=part.read, whole=self.one_by_one)

    def _ids(self, start: int, stop: int, batch: int) -> Int[Tensor, "batch pos"]:
        return repeat(self.ids[start:stop], "pos -> batch pos", batch=batch)

    def _clean(self, start: int, stop: int, batch: int, layer: int | None) -> Float[Tensor, "batch pos d"]:
        states = self.embeddings if start == stop else self.states(layer)  # which may have to be run for
        return repeat(states[start:stop], "pos d -> batch pos d", batch=batch)

    @torch.no_grad()
    def _streams(self, layers: Sequence[int]) -> Mapping[int, Float[Tensor, "pos d"]]:
        """What enters these layers, from one run that is done once."""
        wanted = [layer for layer in layers if layer not in self._seen]
        if wanted:
            seen = self.lens.streams(self.ids[None], wanted, whole=bool(self.user_hooks))
            self._seen.update({layer: states[0].to(self.embeddings) for layer, states in seen.items()})
        return {layer: self._seen[layer] for layer in layers}


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
    site: str  # the hook where the states are put in

    @property
    def gap(self) -> bool:
        return self.stop < self.tail


def _put_rows(clean: Float[Tensor, "pos d"], start: int, stop: int) -> Hook:
    """Let the clean states of some positions stand in for what a run computes there."""

    def hook(live: Tensor) -> Tensor:
        rows = repeat(clean[start:stop], "pos d -> batch pos d", batch=len(live)).to(live)
        return torch.cat([live[:, :start], rows, live[:, stop:]], 1)

    return hook


def reusable_prefix(
    lens: Lens, ids: Tensor, embeddings: Tensor, log_probs: Tensor, hooked: bool
) -> tuple[KeysValues | None, str]:
    """Keys and values that later runs can start from, or None and why not.

    Whether a model really continues from them is not asked of its kind but measured, with one run from the middle:
    some models ignore them without a word.
    """
    if hooked:
        return None, "off: hooks on the model may depend on positions, so every run is full length"
    if len(ids) < 2:
        return None, "off: the context is a single token"
    try:
        kept = lens.keys_values(ids[None])
        start = len(ids) // 2
        with torch.no_grad():
            past = lens.resume(kept, start, len(ids), 1)
            resumed = lens.run(ids[None, start:], {EMBED: put(embeddings[None, start:])}, past=past)[0, 0]
    except Exception as error:  # whatever a model does when asked for something it was not made for
        return None, f"off: this model cannot continue from kept keys and values ({type(error).__name__}: {error})"
    gap = float((resumed.log_softmax(-1) - log_probs).abs()[log_probs > log_probs.max() - 10].max())
    if gap > 2 * tolerance(lens.token_weights):
        return None, f"off: continuing from kept keys and values changes the prediction by {gap:.1e} nats"
    return kept, ""
