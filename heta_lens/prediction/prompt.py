"""Prompt: tokens, and a live model that was checked to do with them what was cached.

Everything that is computed later runs through `Prompt.logits_from`: what the model predicts next, as a function of the
states of some positions, everything else as it was. Where the model can continue from kept keys and values, only
those positions are run that can change.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from typing import Any, Literal, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from heta_lens._util.short_repr import short_repr
from heta_lens._util.work_counting import counting
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.batching import Batches, choose_batches, shared_starts
from heta_lens.model.hook_sites import EMBED, READ, names_filter, pattern_names, values_names
from heta_lens.model.hooking import Places, note
from heta_lens.model.model_protocol import KeysValues
from heta_lens.prediction.cache_check import check_causal, replay
from heta_lens.prediction.cached_activations import Activations
from heta_lens.prediction.cached_tokens import Tokens, Vocabulary, cached_tokens
from heta_lens.prediction.chat_prompt import ChatPrompt
from heta_lens.prediction.live_activations import LivePatterns, live
from heta_lens.prediction.readout import log_softmax
from heta_lens.prediction.rerun_from_prefix import Part, Runner

Logits: TypeAlias = Callable[[Float[Tensor, "batch pos d"]], Float[Tensor, "batch read vocab"]]

TAIL = 16  # positions before the prediction that are recomputed with every window


@dataclass(frozen=True, eq=False)
class Prompt:
    """``log_probs`` are the clean predictions after contexts of these lengths, ``embeddings`` in float32 or better.

    ``ids`` end with the longest of the contexts, unless the user's hooks must see the prompt as they know it.
    """

    def __repr__(self) -> str:
        return short_repr(self)

    adapter: ModelAdapter
    cached: Activations
    ids: Int[Tensor, "pos"]
    embeddings: Float[Tensor, "pos d"]
    log_probs: Mapping[int, Float[Tensor, "vocab"]]
    user_hooks: tuple[Any, ...]
    mismatch: float
    checks: dict[str, Counter[str]] = field(default_factory=dict)  # what each check ran
    logits: Mapping[int, Float[Tensor, "vocab"]] = field(default_factory=dict)  # clean ones, where they were to be kept
    chat: ChatPrompt | None = None  # which it begins with, if it is one

    @classmethod
    def checked(
        cls, adapter: ModelAdapter, cached: Activations, contexts: Mapping[int, bool], tokens: Tokens, *, needed: int
    ) -> "Prompt":
        """Determine the tokens, and check with one run that the model still does what was cached.

        ``needed`` ids have to be known for certain: those of the contexts, and of targets read from the prompt itself.
        ``contexts`` say whether their logits are kept, which are as large as log-probabilities.
        """
        check_causal(adapter, cached)
        ids = cached_tokens(adapter, cached[EMBED], tokens, needed)
        with counting(Counter()) as counts:
            given = not (tokens is None or isinstance(tokens, Vocabulary))
            replayed = replay(adapter, cached, ids, [n - 1 for n in contexts], given=given)
        user_hooks = tuple(adapter.user_hooks())
        end = len(ids) if user_hooks else max(needed, *contexts)
        embeddings = replayed.embeddings.to(torch.promote_types(replayed.embeddings.dtype, torch.float32))
        log_probs = dict(zip(contexts, log_softmax(replayed.logits), strict=True))
        logits = {n: row.clone() for n, row in zip(contexts, replayed.logits, strict=True) if contexts[n]}
        checks, known = {"cache": counts}, (ids[:end], embeddings[:end], log_probs, user_hooks, replayed.mismatch)
        return cls(adapter, cached, *known, checks, logits, tokens if isinstance(tokens, ChatPrompt) else None)

    def alone(self, start: int, stop: int) -> "Prompt":
        """A part of it as a prompt of its own, which begins where the part begins."""
        names = [name for name in self.cached.tensors if names_filter(name) and name != READ]
        batches: dict[str, Tensor] = {}
        with torch.no_grad():
            logits = self.adapter.run(self.ids[None, start:stop], {name: note(batches, name) for name in names})[0]
        cached = Activations({name: batch[0] for name, batch in batches.items()})
        embeddings = cached[EMBED].to(self.embeddings)
        ids, n, last = self.ids[start:stop], stop - start, logits[-1]
        known = (ids, embeddings, {n: log_softmax(last)}, (), self.mismatch, self.checks)
        return Prompt(self.adapter, cached, *known, {n: last})

    @contextmanager
    def running(self) -> Iterator[None]:
        """Gradients on for embeddings and off for parameters; the hooks must be those of when this was made."""
        with self.adapter.undisturbed():
            if tuple(self.adapter.user_hooks()) != self.user_hooks:
                raise RuntimeError("hooks were added to or removed from the model since this prediction was made")
            yield

    @cached_property
    def runner(self) -> Runner:
        return Runner(self.adapter, self.ids, self.embeddings, self.log_probs, self.user_hooks, self.checks)

    def states(self, layer: int | None) -> Float[Tensor, "pos d"]:
        """What enters a layer at every position; the embeddings, for None."""
        return self.runner.states(layer)

    @property
    def patterns(self) -> Callable[[int], Float[Tensor, "head pos pos"]]:
        """Each layer's attention pattern, as it was cached; if none were, the live model's, one layer at a time."""
        names = pattern_names(self.adapter.layers)
        if self._has_some(names):
            return lambda layer: self.cached[names[layer]]
        return LivePatterns(self.adapter, self.ids, bool(self.user_hooks))

    @property
    def values(self) -> Callable[[int], Float[Tensor, "pos group d_head"]]:
        """Each layer's value vectors, with their bias, of every key/value head; if none were cached, from one run."""
        names = values_names(self.adapter.layers)
        if self._has_some(names):
            return lambda layer: self.cached[names[layer]]
        read = cache(partial(live, self.adapter, self.ids, names, hooked=bool(self.user_hooks)))
        return lambda layer: read()[layer]

    def _has_some(self, names: Sequence[str]) -> bool:
        return not self.cached.tensors.keys().isdisjoint(names)

    def logits_of(self, ids: Int[Tensor, "batch pos"], read: Places = (-1,)) -> Float[Tensor, "batch read vocab"]:
        """Logits after other ids, as many at once; the user's hooks see them one by one."""
        return self.runner.logits_of(ids, read)

    def logits_from(
        self, start: int, *, read: Sequence[int], stop: int | None = None, layer: int | None = None
    ) -> Logits:
        """Logits at ``read``, as a function of what enters a layer (or of embeddings) at ``start:stop``.

        Without ``stop``, of all positions up to the last that is read. With it, the positions after it stay as they
        were too (their keys and values at every layer), except for a tail that ends where the prediction is read.
        """
        end = max(read) + 1
        stop = end if stop is None else stop
        site = EMBED if layer is None else self.adapter.stream_name(layer)
        return partial(self.runner.run, Part(start, stop, max(stop, end - TAIL), end, [*read], layer, site))

    def log_probs_from(
        self, start: int, *, read: Sequence[int], stop: int | None = None, layer: int | None = None
    ) -> Logits:
        """The same, as log-probabilities."""
        logits = self.logits_from(start, read=read, stop=stop, layer=layer)
        return lambda states: log_softmax(logits(states))

    def through_block(
        self, layer: int | None, start: int, end: int, states: Float[Tensor, "pos d"]
    ) -> Float[Tensor, "pos d"]:
        """What leaves a block at ``start:end``, by what enters it there; for None, the first, by embeddings."""
        site = EMBED if layer is None else self.adapter.stream_name(layer)
        return self.runner.through_block(layer or 0, start, end, states, site)

    def by_start(self, positions: Sequence[int], stop: int, start_cost: float | int) -> list[list[int]]:
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
        checkpoint: bool = False,
        read: int = 1,
        free: int | None = None,
    ) -> Batches:
        """How many copies of runs of so many positions to run at once; the user's hooks only ever see one prompt."""
        wanted, sizes, device = 1 if self.one_by_one else wanted, self.adapter.sizes, self.adapter.device
        kind = {"products": products, "checkpoint": checkpoint, "read": read}
        return choose_batches(wanted, sizes, device, queries, len(self.ids), **kind, free=free)

    @property
    def one_by_one(self) -> bool:
        """Whether a hook may index the batch, or depend on the prompt's length: it only ever sees this one, whole."""
        return self.runner.one_by_one

    @property
    def kept(self) -> KeysValues | None:
        """The clean keys and values, for runs that continue from them; None where that does not work."""
        return self.runner.kept

    @property
    def reuse(self) -> str:
        """Whether runs continued from kept keys and values, and if not, why."""
        return self.runner.reuse
