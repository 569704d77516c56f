"""Prediction: what is explained — a prompt, how much of it is the context, and the target token.

A prediction is made from a cache and checked against it once, so that everything computed from it later is about the
same model, hooks and tokens. The target is never fed to the model: its log-probability is read at the last position of
the context.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from itertools import pairwise
from operator import index
from typing import Any, Literal, SupportsIndex, TypeAlias
from weakref import WeakSet

import numpy as np
import torch
from einops import einsum, rearrange
from jaxtyping import Float, Int
from torch import Tensor

from heta_lens._util.files import brief
from heta_lens._util.numerics import check_finite
from heta_lens._util.options import is_whole
from heta_lens._util.python import Lazy
from heta_lens._util.target_kinds import Target
from heta_lens._util.text import Span, probability, short_repr, single_line, tokens_of
from heta_lens._util.work import count, counting
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.batching import Batches, choose_batches, shared_starts
from heta_lens.model.hooks import EMBED, READ, KeysValues, Places, names_filter, note, pattern_names, values_names
from heta_lens.model.lock import one_at_a_time
from heta_lens.model.tokenizer import TokenizerWrapper, locate
from heta_lens.prediction.activations import Activations, LivePatterns, live
from heta_lens.prediction.chat import ChatPrompt
from heta_lens.prediction.checks import (
    Tokens,
    Vocabulary,
    cached_tokens,
    check_causal,
    check_unpadded,
    real_parts,
    replay,
)
from heta_lens.prediction.masking import Mask, mask_vector
from heta_lens.prediction.rerun import Part, Runner
from heta_lens.prediction.target import (
    TargetLike,
    TargetReading,
    called,
    check_target,
    context_length,
    is_function,
    log_softmax,
    resolve,
)

# -------------------------------------------------------------------------------------------------------- context text
# A context as text: where its tokens are, how each is written, and which tokens write a passage.


@dataclass(frozen=True, eq=False)
class ContextText:
    tokenizer: TokenizerWrapper
    ids: Sequence[int]

    @cached_property
    def located(self) -> tuple[str, list[Span]]:
        """The text, and every token's span in it."""
        return locate(self.tokenizer.decode, self.ids)

    def positions_of(self, passage: str) -> list[int]:
        """The tokens that write a passage, which must occur in the text exactly once."""
        return tokens_of(passage, *self.located)

    @property
    def written(self) -> tuple[str, ...]:
        """Every token as it is written in the text; of those that share a character only the last shows it."""
        text, spans = self.located
        shared = [span == after for span, after in pairwise([*spans, None])]
        return tuple(
            self.tokenizer.write(token) if partial else text[span.start : span.stop]
            for token, span, partial in zip(self.ids, spans, shared, strict=True)
        )


# -------------------------------------------------------------------------------------------------------------- prompt
# Prompt: tokens, and a live model that was checked to do with them what was cached.
#
# Everything that is computed later runs through `Prompt.logits_from`: what the model predicts next, as a function of
# the
# states of some positions, everything else as it was. Where the model can continue from kept keys and values, only
# those positions are run that can change.


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


@dataclass(frozen=True, eq=False)
class Prediction(TargetReading):
    """The first ``length`` tokens of a prompt, and the target that they are to explain.

    That is a token's id, a frozenset of ids, a pair of these for a contrast, or a function of the logits.
    """

    prompt: Prompt
    length: int
    target: Target
    others: tuple[int, ...] = ()  # tokens that write the same text, where the target was given as text

    def __repr__(self) -> str:
        kind = type(self.adapter.model).__name__
        plain = not callable(self.target) and not isinstance(self.target, tuple)  # else there is no p of it
        likely = f" ({probability(float(self.value))})" if plain else ""
        return f"Prediction of {single_line(self.target_words)}{likely} after {self.length} tokens, by a {kind}"

    @classmethod
    @one_at_a_time("cache")
    def from_cache(
        cls, cache: Any, target: TargetLike = None, *, position: SupportsIndex | None = None, tokens: Tokens = None
    ) -> "Prediction":
        """Determine what is explained, and check with one run that the model still does what was cached."""
        adapter = ModelAdapter.of(cache)
        with adapter.undisturbed():
            cached = Activations.of(cache)
            n = context_length(len(cached[EMBED]), position)
            return predictions(adapter, cached, {n: target}, tokens=tokens, follow=position is not None)[0]

    def __len__(self) -> int:
        return self.length

    @property
    def adapter(self) -> ModelAdapter:
        return self.prompt.adapter

    @property
    def ids(self) -> Int[Tensor, "pos"]:
        return self.prompt.ids[: self.length]

    @property
    def embeddings(self) -> Float[Tensor, "pos d"]:
        return self.prompt.embeddings[: self.length]

    @property
    def log_probs(self) -> Float[Tensor, "vocab"]:
        """The clean next-token log-probabilities."""
        return self.prompt.log_probs[self.length]

    @property
    def logits(self) -> Float[Tensor, "vocab"]:
        """The clean next-token logits, in float32 or better; from a run of the model, where they were not kept."""
        if self.length in self.prompt.logits:
            return self.prompt.logits[self.length]
        with torch.no_grad():
            return self.logits_from(self.length - 1)(self.embeddings[None, -1:])[0]

    def states(self, layer: int | None = None) -> Float[Tensor, "pos d"]:
        """What enters a layer at each position (for ``layer == layers``: what leaves the last); None: embeddings."""
        return self.prompt.states(layer)[: self.length]

    def logits_from(
        self, start: int = 0, layer: int | None = None
    ) -> Callable[[Float[Tensor, "batch pos d"]], Float[Tensor, "batch vocab"]]:
        """Next-token logits as a function of the states from a position on."""
        logits = self.prompt.logits_from(start, read=[self.length - 1], layer=layer)
        return lambda states: logits(states)[:, 0]

    def log_probs_from(
        self, start: int, stop: int | None = None, layer: int | None = None
    ) -> Callable[[Float[Tensor, "batch pos d"]], Float[Tensor, "batch vocab"]]:
        """Next-token log-probabilities as a function of the states at ``start:stop``; the rest stays clean."""
        logits = self.prompt.logits_from(start, read=[self.length - 1], stop=stop, layer=layer)
        return lambda states: log_softmax(logits(states)[:, 0])

    def objective_from(
        self, start: int, stop: int | None = None, layer: int | None = None
    ) -> Callable[[Float[Tensor, "pos d"]], Float[Tensor, ""]]:
        """g as a function of the same states."""
        logits = self.prompt.logits_from(start, read=[self.length - 1], stop=stop, layer=layer)
        return lambda states: self.objective(logits(states[None])[0, 0])

    def mask_vector(self, mask: Mask) -> Float[Tensor, "d"]:
        """The embedding that replaces a masked token's."""
        of = self.adapter
        return mask_vector(mask, self.embeddings, of.embedding_table, of.vocabulary, of.tokenizer.stand_in)

    def alone(self, start: int, stop: int) -> "Prediction":
        """The same target, explained by a part of the context as if nothing were around it."""
        return Prediction(self.prompt.alone(start, stop), stop - start, self.target)

    @property
    def patterns(self) -> Sequence[Float[Tensor, "head pos pos"]]:
        """The attention patterns among the context's positions, by layer."""
        n, patterns = len(self), self.prompt.patterns
        return _by_layer(self, lambda layer: patterns(layer)[:, :n, :n])

    @property
    def values(self) -> Sequence[Float[Tensor, "pos group d_head"]]:
        """The value vectors, with their bias, of every key/value head, by layer."""
        values = self.prompt.values
        return _by_layer(self, lambda layer: values(layer)[: len(self)])

    @property
    def output_weights(self) -> Sequence[Float[Tensor, "head d_head d"]]:
        return _by_layer(self, self.adapter.output_weights)

    @cached_property
    def text(self) -> ContextText:
        return ContextText(self.adapter.tokenizer, self.ids.tolist())

    @property
    def located(self) -> tuple[str, list[Span]]:
        """The context as text, and every token's span in it."""
        return self.text.located

    @property
    def written(self) -> tuple[str, ...]:
        """Every token as it is written in the text."""
        return self.text.written

    def positions_of(self, passage: str) -> list[int]:
        """The tokens that write a passage, which must occur in the context exactly once."""
        return self.text.positions_of(passage)

    def spell(self, text: str) -> list[int]:
        """The tokens that write a text after the context; if there are none, those that differ only in white space."""
        return self.adapter.tokenizer.spell(text, self.ids.tolist(), self.log_probs.tolist())

    @property
    def begins(self) -> bool:
        """Whether the first token only marks the beginning of the text."""
        return int(self.ids[0]) == self.adapter.tokenizer.bos

    def running(self) -> AbstractContextManager[None]:
        """Gradients on for embeddings and off for parameters; the hooks must be those of when this was made."""
        return self.prompt.running()

    def check_finite(self, component: str, values: Float[Tensor, "pos"]) -> None:
        """Refuse a NaN or an infinity where it arises, naming its token and the component."""
        if not values.isfinite().all():
            ids, write = self.ids, self.adapter.tokenizer.write
            check_finite(
                values, lambda at, value: f"{component} is {value} at position {at}, token {write(int(ids[at]))!r}"
            )


def prompt_generator(seed: int, ids: Int[Tensor, "pos"], *numbers: int) -> np.random.Generator:
    """Create the random generator of a prompt: the same in every process, and another one for other ids or numbers.

    With generators of the seed alone, the errors of different prompts would be correlated, and their mean less certain
    than its interval.
    """
    return np.random.default_rng([seed, *numbers, *ids.tolist()])


def _by_layer(prediction: Prediction, of: Callable[[int], Tensor]) -> Sequence[Tensor]:
    return Lazy(prediction.adapter.layers, lambda layer: of(layer).to(prediction.embeddings))


def predictions(
    adapter: ModelAdapter,
    cached: Activations,
    targets: Mapping[int, TargetLike],
    *,
    tokens: Tokens,
    follow: bool,
    needed: int = 0,
) -> list[Prediction]:
    """A prediction for each context length and its target, of a prompt that is checked once.

    A target that is left out is the token that comes next: in the prompt (``follow``), else the model's most likely.
    At least ``needed`` ids of the prompt are determined.
    """
    known = [n + (follow and target is None) for n, target in targets.items()]
    contexts = {n: is_function(target) for n, target in targets.items()}
    prompt = Prompt.checked(adapter, cached, contexts, tokens, needed=max(*known, needed))
    explained = []
    for n, target in targets.items():
        log_probs = prompt.log_probs[n]
        if target is None:
            target = int(prompt.ids[n] if follow else log_probs.argmax())
        resolved = resolve(adapter, prompt.ids[:n], target, log_probs)
        check_target(adapter, log_probs, resolved.target)
        if callable(resolved.target):
            called(resolved.target, prompt.logits[n])
        explained.append(Prediction(prompt, n, *resolved))
    return explained


# ------------------------------------------------------------------------------------------------------ gradient check
# Whether gradients pass through quantised layers: some of their kernels drop them without an error.


DIRECTIONS = 8
STEPS = (0.02, 0.04, 0.08, 0.16)  # of the embeddings' size: small ones drown in the rounding of activations
LONGEST = 64  # positions that are moved
WRONG, DOUBTS = 0.3, 3  # a relative error this large, and so many times what two step sizes differ by, is no rounding
WAY_OUT = (
    "use a method without gradients (variant='kl_only', leave_one_out, kernel_shap …), or a quantisation whose "
    "gradients are right, such as 8 bits of bitsandbytes or torchao's Int8WeightOnlyConfig"
)

Objective: TypeAlias = Callable[[Float[Tensor, "copy pos d"]], Float[Tensor, "copy"]]
_passed: WeakSet[Any] = WeakSet()  # models whose gradients were found right


def check_gradients(prediction: Prediction) -> None:
    """Refuse a quantised model whose gradient is not how its logits change; each model is checked once."""
    adapter = prediction.adapter
    if not adapter.quantised or prediction.prompt.user_hooks or adapter.model in _passed:
        return
    with counting(Counter()) as counts, prediction.running(), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of kernels without gradients: that is what is measured here
        error = gradient_error(prediction)
    if error is not None:
        raise ValueError(
            f"the gradients of this model's quantised layers ({adapter.quantised} …) are not how its logits change "
            f"(off by {error:.0%}): {WAY_OUT}"
        )
    _passed.add(adapter.model)
    prediction.prompt.checks["gradients"] = counts


def gradient_error(prediction: Prediction) -> float | None:
    """How far the gradient is off; None if no further than finite differences can tell."""
    start = max(0, len(prediction) - LONGEST)
    objective, states = _margin(prediction, start), prediction.embeddings[start:]
    directions = _directions(states)
    slopes = einsum(_gradient(objective, states), directions, "pos d, direction pos d -> direction")
    batches = prediction.prompt.batches("auto", len(states))
    measured = [
        batches.map(lambda steps: _slopes(objective, states, steps), directions * size, len(states)) / size
        for size in STEPS
    ]
    near, far = min(pairwise(measured), key=lambda pair: float((pair[0] - pair[1]).norm()))
    scale = torch.maximum(near.norm(), slopes.norm())
    error, doubt = (near - slopes).norm() / scale, (near - far).norm() / scale
    return float(error) if error > max(WRONG, DOUBTS * doubt) else None


def _margin(prediction: Prediction, start: int) -> Objective:
    """By how much the most likely token's logit is above the next one's: it has a slope where p is nearly 1, too."""
    first, second = prediction.log_probs.topk(2).indices.tolist()
    logits = prediction.logits_from(start)

    def margin(copies: Float[Tensor, "copy pos d"]) -> Float[Tensor, "copy"]:
        values = logits(copies)
        return values[:, first] - values[:, second]

    return margin


def _gradient(objective: Objective, states: Float[Tensor, "pos d"]) -> Float[Tensor, "pos d"]:
    """The gradient as autograd says; 0 where it knows of none."""
    leaf = states.clone().requires_grad_()
    value = objective(leaf[None])[0]
    count("backwards", 1)
    return torch.autograd.grad(value, leaf)[0] if value.requires_grad else torch.zeros_like(states)


def _directions(states: Float[Tensor, "pos d"]) -> Float[Tensor, "direction pos d"]:
    """Random ones, of the states' size."""
    signs = torch.randint(0, 2, (DIRECTIONS, *states.shape), generator=torch.Generator().manual_seed(0)) * 2 - 1
    return signs.to(states) * states.square().mean().sqrt()


@torch.no_grad()
def _slopes(
    objective: Objective, states: Float[Tensor, "pos d"], steps: Float[Tensor, "direction pos d"]
) -> Float[Tensor, "direction"]:
    """How much the objective rises from one end of a step to the other, halved."""
    ends = rearrange(torch.stack([steps, -steps]) + states, "side direction pos d -> (side direction) pos d")
    after, before = rearrange(objective(ends), "(side direction) -> side direction", side=2)
    return (after - before) / 2


# ------------------------------------------------------------------------------------------------------ span and batch
# The predictions of a span that a model wrote, and those of a batch of prompts, from a cache.


def span_predictions(
    cache: Any,
    start: SupportsIndex,
    stop: SupportsIndex | None,
    targets: TargetLike | list[TargetLike],
    through: Sequence[SupportsIndex] | None,
    tokens: Tokens,
) -> tuple[list[Prediction], list[Prediction]]:
    """The tokens of the reasoning, and those of the answer, to be explained."""
    adapter = ModelAdapter.of(cache)
    with adapter.undisturbed():
        cached = Activations.of(cache)
        first, last = span_of(len(cached[EMBED]), start, stop)
        reasoning = range(0) if through is None else reasoning_of(len(cached[EMBED]), through, first)
        each_target = one_each("targets", targets, last - first, "position")
        by_position = dict.fromkeys(reasoning) | dict(zip(range(first, last), each_target, strict=True))
        prepared = predictions(adapter, cached, by_position, tokens=tokens, follow=True, needed=last)
    return prepared[: len(reasoning)], prepared[len(reasoning) :]


def batch_predictions(
    cache: Any,
    targets: TargetLike | list[TargetLike],
    positions: SupportsIndex | list[SupportsIndex | None] | None,
    tokens: Any,
    attention_mask: Any,
    check: Callable[[Prediction], None],
) -> list[Prediction]:
    """One of each prompt; ``check`` refuses what cannot be explained."""
    adapter, prepared = ModelAdapter.of(cache), []
    with adapter.undisturbed():
        rows = Activations.of_each(cache)
        count, length = len(rows), len(rows[0][EMBED])
        mask = torch.ones(count, length) if attention_mask is None else attention_mask
        by_prompt = [
            real_parts(mask, count, length),
            one_each("targets", targets, count, "prompt"),
            one_each("positions", positions, count, "prompt"),
        ]
        ids = None if tokens is None else batch_tokens(tokens, (count, length))
        known = ids or Vocabulary.of(adapter, [row[EMBED] for row in rows])
        if attention_mask is None:
            whole = recovered(known, rows) if isinstance(known, Vocabulary) else known
            check_unpadded(whole, adapter.tokenizer.pad, adapter.tokenizer.bos)
        for number, (part, target, position) in enumerate(zip(*by_prompt, strict=True)):
            with about(f"prompt {number} of the batch"):
                cached = rows[number].part(part)
                n = context_length(len(cached[EMBED]), position)
                own = known if isinstance(known, Vocabulary) else known[number][part]
                prepared += predictions(adapter, cached, {n: target}, tokens=own, follow=position is not None)
                check(prepared[-1])
    return prepared


def span_of(cached: int, start: Any, stop: Any) -> tuple[int, int]:
    """The positions to be explained, counted from the front."""
    for name, place in (("start", start), ("stop", stop)):
        if not (is_whole(place) or (name == "stop" and place is None)):
            raise TypeError(f"{name}={place!r} must be a whole number: a place in the cached prompt")
    first, last = index(start), cached if stop is None else index(stop)
    first, last = (place + cached if place < 0 else place for place in (first, last))
    if not 0 <= first <= cached or not 0 <= last <= cached:
        raise ValueError(
            f"the span {start}:{'' if stop is None else stop} is beyond the cached prompt of {cached} tokens"
        )
    if first >= last:
        raise ValueError(f"the span {start}:{'' if stop is None else stop} is empty: it has no token to explain")
    if first == 0:
        raise ValueError("the span begins with the first token, which has no context: nothing comes before it")
    return first, last


def reasoning_of(cached: int, through: Any, answer: int) -> range:
    """The positions of the reasoning, counted from the front, which end where the answer begins or before."""
    if not (isinstance(through, tuple | list) and len(through) == 2 and all(map(is_whole, through))):
        raise TypeError(f"through={brief(through)} must be a pair (a, b): the reasoning is at a:b of the cached prompt")
    start, stop = (index(place) + cached if index(place) < 0 else index(place) for place in through)
    where = f"through=({through[0]}, {through[1]})"
    if start >= stop:
        raise ValueError(f"{where} is empty: it has no token to follow the answer through")
    if start == 0:
        raise ValueError(f"{where} begins with the first token, which has no context: nothing comes before it")
    if start < 0 or stop > answer:
        raise ValueError(f"{where} must lie before the answer, which begins at {answer}, and after the first token")
    return range(start, stop)


def batch_tokens(tokens: Any, shape: tuple[int, int]) -> list[list[int]]:
    """The given ids of every prompt, padding included."""
    if isinstance(tokens, ChatPrompt):
        raise TypeError("attribute_batch takes no chat: give each chat to attribute, or the ids that were cached")
    try:
        ids = torch.as_tensor(tokens)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"tokens= takes the ids the model was run on, {shape[0]} rows of {shape[1]}") from None
    ids = ids[None] if ids.ndim == 1 and shape[0] == 1 else ids
    if ids.shape != shape:
        raise ValueError(f"tokens= must be the ids of the cached prompts, of shape {shape}; got {tuple(ids.shape)}")
    return ids.tolist()


def recovered(vocabulary: Vocabulary, rows: Sequence[Activations]) -> list[list[int]]:
    """Every prompt's ids, read off the cached embeddings."""
    ids = []
    for number, row in enumerate(rows):
        with about(f"prompt {number} of the batch"):
            ids.append(vocabulary.tokens(row[EMBED], needed=0))
    return ids


def one_each(name: str, given: Any, count: int, of: str) -> list[Any]:
    """A list's entries, one for each; anything else is meant for all."""
    given = given.tolist() if isinstance(given, Tensor | np.ndarray) else given
    if not isinstance(given, list):
        return [given] * count
    if len(given) != count:
        raise ValueError(f"{name}= has {len(given)} entries for {count} {of}s: a list has one for each")
    return given


@contextmanager
def about(what: str) -> Iterator[None]:
    """Say what an error is about."""
    try:
        yield
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError  # a subclass may want other arguments
        raise kind(f"{what}: {error}") from error
