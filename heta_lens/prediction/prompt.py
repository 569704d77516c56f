"""A prompt that was checked against its cache: its tokens, its clean run, and the ways in which the model can run."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from heta_lens._util.numerics import distance
from heta_lens._util.options import Batch
from heta_lens._util.work import count, counting
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.batching import Batches, choose_batches, out_of_memory
from heta_lens.model.hooks import (
    EMBED,
    READ,
    BatchHook,
    Hook,
    KeysValues,
    names_filter,
    note,
    pattern_name,
    put,
    stream_name,
)
from heta_lens.model.lock import one_at_a_time
from heta_lens.model.weights import identity
from heta_lens.prediction.cache import (
    Activations,
    CleanRun,
    Rules,
    Tokens,
    cached_tokens,
    check_attends_back,
    check_causal,
    live,
    replay,
)
from heta_lens.prediction.chat import ChatPrompt
from heta_lens.prediction.target import log_softmax

LIKELY = 10  # nats below the most likely token, within which log-probabilities are compared
TRIED = 4  # tokens with which blocks are tried


class Prefix(NamedTuple):
    """The keys and values from which runs of a prompt continue, or None; and a note for the diagnostics."""

    kept: KeysValues | None
    note: str


@dataclass(eq=False, repr=False)
class Prompt:
    """Tokens, and a live model that computes from them what was cached.

    ``logits`` are the clean predictions after contexts of these lengths, in float32 or better. ``ids`` end with the
    token after the longest context, unless the user's hooks must see the prompt as it was cached.
    """

    adapter: ModelAdapter
    cached: Activations
    ids: Int[Tensor, "pos"]
    embeddings: Float[Tensor, "pos d"]  # in float32 or better
    logits: Mapping[int, Float[Tensor, "vocab"]]
    user_hooks: tuple[Any, ...]
    clean_run: CleanRun | None = None  # the check run with its graph, until a gradient is taken
    checks: dict[str, Counter[str]] = field(default_factory=dict)  # runs that each check took
    chat: ChatPrompt | None = None  # the chat that the prompt begins with
    known_prefix: Prefix | None = None
    known_blocks: str | None = None
    clean_streams: dict[int, Tensor] = field(default_factory=dict)

    @cached_property
    def model_facts(self) -> dict[str, Any]:
        """The model's identity, and how its weights were processed."""
        return self.adapter.weight_processing | identity(self.adapter.model)

    @classmethod
    def checked(
        cls,
        adapter: ModelAdapter,
        cached: Activations,
        contexts: Sequence[int],
        tokens: Tokens,
        rules: Rules | None = None,
    ) -> "Prompt":
        """Determine the tokens, and check with one run that the model still computes what was cached.

        ``contexts`` are the lengths of contexts. ``rules`` are those of the gradient that will be taken at the
        embeddings, for which the run keeps its graph.
        """
        check_causal(adapter, cached)
        ids, limit = cached_tokens(adapter, cached[EMBED], tokens), adapter.rotary_limit
        if limit is not None and min(contexts) <= limit < len(ids):
            raise ValueError(f"positions change in runs of more than {limit} tokens: cache up to the explained token")
        with counting(Counter()) as counts:
            replayed = replay(adapter, cached, ids, [n - 1 for n in contexts], rules)
        end = len(ids) if replayed.user_hooks else max(contexts) + 1
        return cls(
            adapter,
            cached,
            ids[:end],
            replayed.embeddings[:end],
            logits=dict(zip(contexts, replayed.logits, strict=True)),
            user_hooks=replayed.user_hooks,
            clean_run=replayed.clean_run,
            checks={"cache": counts},
            chat=tokens if isinstance(tokens, ChatPrompt) else None,
        )

    def excerpt(self, start: int, stop: int) -> "Prompt":
        """Run the tokens at ``start:stop`` as a prompt of their own."""
        names = [name for name in self.cached.tensors if names_filter(name) and name != READ]
        batches: dict[str, Tensor] = {}
        with torch.no_grad():
            logits = self.adapter.run(self.ids[None, start:stop], {name: note(batches, name) for name in names})[0, -1]
        cached = Activations({name: batch[0] for name, batch in batches.items()})
        return Prompt(
            self.adapter,
            cached,
            self.ids[start:stop],
            cached[EMBED].to(self.embeddings),
            logits={stop - start: logits},
            user_hooks=(),
            checks=self.checks,
        )

    def holds(self, names: Sequence[str]) -> bool:
        """Tell if the activations of all these names are in the cache."""
        return self.cached.tensors.keys() >= {*names}

    # ------------------------------------------------------------------------------------------------- clean states
    def states(self, layer: int | None) -> Float[Tensor, "pos d"]:
        """Return the states that enter a layer; for None, the embeddings."""
        return self.embeddings if layer is None else self.streams([layer])[layer]

    @torch.no_grad()
    def streams(self, layers: Sequence[int]) -> Mapping[int, Float[Tensor, "pos d"]]:
        """Return the inputs of these layers, from one run, at the first request."""
        if missing := [layer for layer in layers if layer not in self.clean_streams]:
            streams = self.adapter.streams(self.ids[None], missing, whole=bool(self.user_hooks))
            self.clean_streams.update({layer: states[0].to(self.embeddings) for layer, states in streams.items()})
        return {layer: self.clean_streams[layer] for layer in layers}

    # ----------------------------------------------------------------------------------------- how the model can run
    @cached_property
    def one_by_one(self) -> bool:
        """Whether every run must be of this one prompt, whole: a user's hook may depend on its batch or its length."""
        return not all(isinstance(hook, BatchHook) for hook in self.user_hooks)

    # Fields, not cached properties: before Python 3.12 the lock of those would wait for the model's, and the other way.
    @one_at_a_time("self")
    def prefix(self) -> Prefix:
        """The clean keys and values that runs continue from, if this model can continue; measured when first needed."""
        if self.known_prefix is None:
            with counting(self.checks.setdefault("prefix_reuse", Counter())):
                self.known_prefix = reusable_prefix(self)
        return self.known_prefix

    @property
    def reuse(self) -> str:
        """A sentence on prefix reuse for the diagnostics: on, or off and the reason."""
        return self.prefix().note if self.user_hooks or self.known_prefix else "not needed"

    @one_at_a_time("self")
    def why_not_alone(self) -> str:
        """The reason why blocks cannot run without the others, or ""; measured when first needed."""
        if self.user_hooks:
            return "hooks on the model may carry something from block to block"
        if self.known_blocks is None:
            with counting(self.checks.setdefault("blocks_alone", Counter())):
                self.known_blocks = why_not_alone(self.adapter, self.ids)
        return self.known_blocks

    def batches(self, wanted: Batch, queries: int, **how: Any) -> Batches:
        """Choose how many copies of a run of ``queries`` positions to run at once, as `choose_batches` does."""
        wanted, keys = 1 if self.one_by_one else wanted, len(self.ids)
        return choose_batches(wanted, self.adapter.sizes, self.adapter.device, queries, keys, **how)


@dataclass(frozen=True, eq=False)
class LivePatterns:
    """The patterns of a prompt by layer, in any order, with a single pattern in memory at a time.

    A pattern has heads · positions² entries, the input of a layer positions · width. So one run of the model notes the
    input of every layer and the first pattern, and a block alone then computes each other pattern: in all, about two
    runs. Where blocks cannot run alone, every pattern takes a run of the whole model.
    """

    prompt: Prompt
    inputs: dict[int, Float[Tensor, "1 pos d"]] = field(default_factory=dict)  # the states that enter every layer
    asked: list[int] = field(default_factory=list)  # layers, in the order of their patterns

    @torch.no_grad()
    def __call__(self, layer: int) -> Float[Tensor, "head pos pos"]:
        prompt, name = self.prompt, pattern_name(layer)
        if prompt.adapter.layers > 1 and not prompt.why_not_alone():
            patterns: dict[str, Tensor] = {}
            hooks: dict[str, Hook] = {name: note(patterns, name)}
            if not self.inputs:
                self.inputs.update(prompt.adapter.streams(prompt.ids[None], range(prompt.adapter.layers), hooks))
            else:
                count("forwards", int(len(self.asked) % prompt.adapter.layers == 1))  # for all that will run alone
                hooks[prompt.adapter.stream_name(layer)] = put(self.inputs[layer])
                prompt.adapter.run(prompt.ids[None], hooks, only=layer)
            self.asked.append(layer)
            pattern = patterns[name][0]
        else:
            (pattern,) = live(prompt.adapter, prompt.ids, [name], hooked=bool(prompt.user_hooks))
        check_attends_back(prompt.adapter, layer, pattern)
        return pattern


# --------------------------------------------------------------------------------------------------- trials of a model
def reusable_prefix(prompt: Prompt) -> Prefix:
    """Try to continue a run of the prompt from the middle, because several models ignore kept keys and values."""
    adapter, n = prompt.adapter, max(prompt.logits)
    if prompt.user_hooks:
        return Prefix(None, "off: hooks on the model may depend on positions, so every run is full length")
    if n < 2:
        return Prefix(None, "off: the context is a single token")
    if n > (adapter.rotary_limit or n):
        return Prefix(None, "off: this model's rotary positions depend on the length of a run")
    ids, start = prompt.ids[None, :n], n // 2
    try:
        kept = adapter.keys_values(ids)
        with torch.no_grad():
            past = adapter.reuse.resume(kept, start, n, 1)
            hooks = {EMBED: put(prompt.embeddings[None, start:n])}
            logits = adapter.run(ids[:, start:], hooks, past=past)[0, 0]
        grown = adapter.reuse.grown(past)
    except Exception as error:  # a model may raise anything in an unsupported run
        return Prefix(None, f"off: this model cannot continue from kept keys and values ({error!r})")
    if len(kept) < adapter.layers:
        return Prefix(None, f"off: only {len(kept)} of this model's {adapter.layers} layers keep keys and values")
    allowed, clean = 2 * adapter.rounding, prompt.logits[n]
    if adapter.reads:
        gap, allowed_gap = distance(logits, clean, allowed)
    else:
        clean, allowed_gap = log_softmax(clean), allowed
        gap = float((log_softmax(logits) - clean)[clean > clean.max() - LIKELY].abs().max())
    changed = _changed(kept, grown, allowed) or ("" if gap <= allowed_gap else f"the prediction by {gap:.1e} nats")
    if changed:
        return Prefix(None, f"off: continuing from kept keys and values changes {changed}")
    return Prefix(kept, "on")


def _changed(kept: KeysValues, grown: KeysValues, least: float) -> str:
    """Name the first layer with different keys and values, which a nearly certain prediction would hide."""
    for layer, pairs in enumerate(zip(kept, grown, strict=True)):
        for before, after in zip(*pairs, strict=True):
            off, allowed = distance(after, before, least)
            if not off <= allowed:
                return f"those of layer {layer} (off by {off:.1e})"
    return ""


@torch.no_grad()
def why_not_alone(adapter: ModelAdapter, ids: Int[Tensor, "pos"]) -> str:
    """Compare the output of each block in a run of the model with the output of the block alone, on a few tokens.

    The result is empty if they are equal. Blocks of some architectures pass more to later blocks than the residual
    stream. A run of other tokens first replaces what is left of it in the model, and blocks are tried from the last
    down, so that no block below adds to it again.
    """
    few = ids[None, :TRIED]
    streams = adapter.streams(few, range(adapter.layers + 1))
    adapter.run((few + 1) % adapter.vocabulary)
    count("forwards", len(few))  # for all blocks together
    for layer in reversed(range(adapter.layers)):
        left: dict[int, Tensor] = {}
        leaving = stream_name(layer + 1, layer + 1)  # the output of the layer, even if the next layer does not run
        try:
            hooks = {adapter.stream_name(layer): put(streams[layer]), leaving: note(left, layer)}
            adapter.run(few, hooks, only=layer)
            off, allowed = distance(left[layer], streams[layer + 1])
        except Exception as error:  # a model may raise anything in an unsupported run
            if isinstance(error, RuntimeError) and out_of_memory(error):
                raise
            return f"block {layer} cannot run alone ({error!r})"
        if off > allowed:
            return f"block {layer} does something else when it runs alone (off by {off:.1e})"
    return ""
