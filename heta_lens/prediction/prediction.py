"""Prediction: a prompt, how much of it is the context, and the target that the context is to explain.

A prediction is made from a cache and checked against it once, so that everything computed from it later is about the
same model, hooks and tokens. The target is never fed to the model: its log-probability is read at the last position of
the context.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any, SupportsIndex

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from heta_lens._util.numerics import check_finite
from heta_lens._util.options import Batch
from heta_lens._util.python import Lazy
from heta_lens._util.target_kinds import Activation, Target, any_of, described, function_name, members, sides
from heta_lens._util.text import Span, probability, single_line, tokens_of
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.batching import Batches, available, check_graph_fits, shared_starts
from heta_lens.model.hooks import EMBED, Hook, ReadAt, pattern_names, values_names
from heta_lens.model.lock import holding
from heta_lens.model.tokenizer import TokenizerWrapper, locate
from heta_lens.prediction.cache import Activations, Rules, Tokens, live
from heta_lens.prediction.prompt import LivePatterns, Prompt
from heta_lens.prediction.rerun import Rerun
from heta_lens.prediction.target import (
    Scale,
    TargetLike,
    as_activation,
    called,
    check_connected,
    context_length,
    joint_logit,
    log_softmax,
    on_scale,
    placed,
    position_after,
    resolve,
    values_of,
)


@dataclass(frozen=True, eq=False)
class Prediction:
    """The first ``length`` tokens of a prompt, and the target: a token's id, a frozenset of ids, a pair of these for a
    contrast, or a function of the logits."""

    prompt: Prompt
    length: int
    target: Target

    def __repr__(self) -> str:
        kind = type(self.adapter.model).__name__
        plain = not callable(self.target) and not isinstance(self.target, tuple)  # else there is no p of it
        likely = f" ({probability(float(self.value))})" if plain else ""
        return f"Prediction of {single_line(self.target_words)}{likely} after {self.length} tokens, by a {kind}"

    @classmethod
    def from_cache(
        cls,
        cache: Any,
        target: TargetLike = None,
        *,
        position: SupportsIndex | None = None,
        tokens: Tokens = None,
        rules: Rules | None = None,
    ) -> "Prediction":
        """Determine what is explained, and check with one run that the model still computes what was cached.

        With the ``rules`` of a gradient, the run serves `clean_gradients` too.
        """
        adapter = ModelAdapter.of(cache)
        with holding(adapter), adapter.undisturbed():
            cached = Activations.of(cache)
            activation = as_activation(target)
            if activation and activation.at is not None:
                if position is not None:
                    raise ValueError(f"position={position} and at={activation.at} both say where it is read: give one")
                position = position_after(activation.at, len(cached[EMBED]))
            n = context_length(len(cached[EMBED]), position)
            follow = position is not None
            return predictions(adapter, cached, {n: target}, tokens=tokens, follow=follow, rules=rules)[0]

    def __len__(self) -> int:
        return self.length

    # ------------------------------------------------------------------------------------------------------ the context
    @property
    def adapter(self) -> ModelAdapter:
        return self.prompt.adapter

    @property
    def ids(self) -> Int[Tensor, "pos"]:
        return self.prompt.ids[: self.length]

    @property
    def embeddings(self) -> Float[Tensor, "pos d"]:
        return self.prompt.embeddings[: self.length]

    def states(self, layer: int | None = None) -> Float[Tensor, "pos d"]:
        """Return the states that enter a layer (for ``layers``, that leave the last one); for None, the embeddings."""
        return self.prompt.states(layer)[: self.length]

    @property
    def patterns(self) -> Sequence[Float[Tensor, "head pos pos"]]:
        """The attention patterns among the context's positions, by layer: cached, or else from the live model."""
        prompt, n, names = self.prompt, len(self), pattern_names(self.layers)
        live_patterns, cached = LivePatterns(prompt), prompt.holds(names)

        def pattern(layer: int) -> Float[Tensor, "head pos pos"]:
            whole = prompt.cached[names[layer]] if cached else live_patterns(layer)
            return whole[:, :n, :n].to(self.embeddings)

        return Lazy(self.layers, pattern)

    @property
    def values(self) -> Sequence[Float[Tensor, "pos group d_head"]]:
        """The value vectors of every key/value head, with their bias, by layer: cached, or else from one run."""
        prompt, names = self.prompt, values_names(self.layers)
        cached = prompt.holds(names)
        read = cache(partial(live, self.adapter, prompt.ids, names, hooked=bool(prompt.user_hooks)))

        def values(layer: int) -> Float[Tensor, "pos group d_head"]:
            whole = prompt.cached[names[layer]] if cached else read()[layer]
            return whole[: len(self)].to(self.embeddings)

        return Lazy(self.layers, values)

    def pattern_runs(self, layers: int) -> int:
        """Return the number of forwards that read the patterns of so many layers: 0 with patterns in the cache.

        One run notes what enters each layer; running the other blocks alone takes about one more.
        """
        if self.prompt.holds(pattern_names(self.layers)):
            return 0
        return layers if self.prompt.why_not_alone() else min(layers, 2)

    @property
    def value_runs(self) -> int:
        """The number of forwards that read value vectors: 0 with values in the cache, else 1."""
        return int(not self.prompt.holds(values_names(self.layers)))

    @property
    def output_weights(self) -> Sequence[Float[Tensor, "head d_head d"]]:
        """W_O of every head, by layer."""
        return Lazy(self.layers, lambda layer: self.adapter.output_weights(layer).to(self.embeddings))

    @cached_property
    def located(self) -> tuple[str, list[Span]]:
        """The context as text, and the span of every token in it."""
        return locate(self.tokenizer.decode, self.ids.tolist())

    @property
    def written(self) -> tuple[str, ...]:
        """The text of every token; of tokens that share a character, only the last shows it."""
        text, spans = self.located
        written = []
        for token, span, after in zip(self.ids.tolist(), spans, [*spans[1:], None], strict=True):
            written.append(self.tokenizer.write(token) if span == after else text[span.start : span.stop])
        return tuple(written)

    def positions_of(self, passage: str) -> list[int]:
        """Return the tokens that write a passage, which must occur in the context exactly once."""
        return tokens_of(passage, *self.located)

    def spell(self, text: str) -> list[int]:
        """Return the tokens that write a text after the context, if need be with another white space."""
        return self.tokenizer.spell(text, self.ids.tolist(), self.log_probs.tolist())

    @property
    def begins(self) -> bool:
        """Whether the first token only marks the beginning of the text."""
        return int(self.ids[0]) == self.tokenizer.bos

    # ------------------------------------------------------------------------------------------------------- the model
    @property
    def model(self) -> Any:
        return self.adapter.model

    @property
    def layers(self) -> int:
        """The number of blocks whose attention comes before the target."""
        if isinstance(self.target, Activation):
            return self.adapter.blocks_attending(self.target.hook_names)
        return self.adapter.layers

    @property
    def tokenizer(self) -> TokenizerWrapper:
        return self.adapter.tokenizer

    @property
    def user_hooks(self) -> tuple[Any, ...]:
        """The hooks of the user on the model, which every run keeps."""
        return self.prompt.user_hooks

    def hooked(self, hooks: Sequence[tuple[str, Hook]]) -> AbstractContextManager[None]:
        """Put further hooks on the model, for the length of a block."""
        return self.adapter.hooked(hooks)

    def batches(self, wanted: Batch, queries: int | None = None, **how: Any) -> Batches:
        """Choose how many copies of a run of ``queries`` positions (by default, of the context) to run at once."""
        return self.prompt.batches(wanted, len(self) if queries is None else queries, **how)

    def holds_one_block(self, wanted: bool | None) -> bool:
        """Return whether gradients hold one block's graph at a time: as ``wanted``, or by itself (None) to fit."""
        if wanted is not None:
            return wanted
        return not self.adapter.graph_fits(len(self)) and not self.prompt.why_not_alone()

    def check_graph_fits(self, queries: int | None = None, *, first: int = 0, **how: bool) -> None:
        """Refuse a gradient of a run of ``queries`` positions (by default, of the context) that memory cannot hold.

        The run begins at the block ``first``.
        """
        adapter, length = self.adapter, len(self)
        sizes = adapter.sizes._replace(layers=adapter.sizes.layers - first)
        check_graph_fits(sizes, queries or length, length, available(adapter.device), **how)

    def by_start(self, positions: Sequence[int], stop: int, start_cost: float | int) -> list[list[int]]:
        """Group positions whose runs should share a start; one group where a later start saves nothing."""
        if not positions:
            return []
        return shared_starts(positions, stop, start_cost) if self.resumes else [list(positions)]

    @property
    def resumes(self) -> bool:
        """Whether runs can continue from kept keys and values; measured when first asked."""
        return self.prompt.prefix().kept is not None

    def logits_of(self, ids: Int[Tensor, "batch pos"], read: ReadAt = (-1,)) -> Float[Tensor, "batch read vocab"]:
        """Return logits after other ids; the user's hooks see one prompt at a time."""
        if not self.prompt.one_by_one:
            return self.adapter.run(ids, read=read)
        places = read.split(1) if isinstance(read, Tensor) else [read] * len(ids)
        rows = zip(ids.split(1), places, strict=True)
        return torch.cat([self.adapter.run(row, read=place, whole=True) for row, place in rows])

    @property
    def whole_ids(self) -> Int[Tensor, "pos"]:
        """The ids to run whole: the context's, or with hooks of the user on the model, the prompt's."""
        return self.prompt.ids if self.user_hooks else self.ids

    def streams(self, ids: Int[Tensor, "batch pos"], layers: Sequence[int]) -> dict[int, Float[Tensor, "batch pos d"]]:
        """Return the states that enter these layers in a single run; layer L is the last layer's output."""
        entering = self.adapter.streams(ids, layers, whole=bool(self.user_hooks))
        return {layer: states.to(self.embeddings) for layer, states in entering.items()}

    # --------------------------------------------------------------------------------------------------------- reruns
    def rerun(
        self, start: int = 0, *, stop: int | None = None, layer: int | None = None, read: Sequence[int] | None = None
    ) -> Rerun:
        """Return this prediction as a function of its states at ``start:stop``.

        The rerun has ``.logits(states)``, ``.log_probs(states)`` and ``.g(states)``, the value of the target.

        ``states`` are embeddings, or with ``layer`` the layer's input. ``stop`` keeps the positions after it as they
        were, except for the last few; ``read`` reads logits at other positions than the last.
        """
        end = self.length if read is None else max(read) + 1
        stop = end if stop is None else stop
        return Rerun(self.prompt, self.objective, start, stop, end, layer, None if read is None else tuple(read))

    @contextmanager
    def running(self) -> Iterator[None]:
        """Turn gradients on for embeddings and off for parameters; the user's hooks must be those of the cache."""
        with self.adapter.undisturbed():
            if tuple(self.adapter.user_hooks()) != self.user_hooks:
                raise RuntimeError("hooks were added to or removed from the model since this prediction was made")
            yield

    def excerpt(self, start: int, stop: int) -> "Prediction":
        """Return the same target, explained by a part of the context as if nothing were around it."""
        return Prediction(self.prompt.excerpt(start, stop), stop - start, self.target)

    def check_finite(self, component: str, values: Float[Tensor, "pos"]) -> None:
        """Refuse a NaN or an infinity, naming its token and the component."""
        ids, write = self.ids, self.tokenizer.write
        check_finite(
            values, lambda at, value: f"{component} is {value} at position {at}, token {write(int(ids[at]))!r}"
        )

    # ------------------------------------------------------------------------------------------------------ the target
    @property
    def log_probs(self) -> Float[Tensor, "vocab"]:
        """The clean next-token log-probabilities."""
        if isinstance(self.target, Activation):
            raise ValueError(
                f"the target {self.target.name} is an activation, of which there is no distribution: choose a method "
                "or an effect that asks for the target's value, as leave_one_out does"
            )
        return log_softmax(self.logits)

    @property
    def logits(self) -> Float[Tensor, "vocab"]:
        """The clean next-token logits (of an activation as the target, what is read), in float32 or better."""
        return self.prompt.logits[self.length]

    def read(self, logits: Float[Tensor, "*batch vocab"], scale: Scale) -> Float[Tensor, "*batch"]:
        """Return how likely the target is; for a contrast, how much more likely than the second is the first.

        A function has a scale of its own.
        """
        if callable(self.target):
            if logits.requires_grad:
                self.check_differentiable()
            return values_of(self.target, logits)
        first, *second = [on_scale(logits, tokens, scale) for tokens in sides(self.target)]
        return first - second[0] if second else first

    def check_differentiable(self) -> None:
        """Refuse a function as the target that has no gradient by the clean logits."""
        if callable(self.target) and "connected" not in vars(self):
            check_connected(self.target, self.logits)
            vars(self)["connected"] = True  # once

    def objective(
        self, logits: Float[Tensor, "*batch vocab"], log_probs: Float[Tensor, "*batch vocab"] | None = None
    ) -> Float[Tensor, "*batch"]:
        """Return g: the target's log-probability, a contrast's difference, or what a function gives.

        ``log_probs`` are those of the logits, where they are known already.
        """
        if callable(self.target) or frozenset in map(type, sides(self.target)):
            return self.read(logits, "log_prob")
        log_probs = log_softmax(logits) if log_probs is None else log_probs
        first, *second = map(partial(joint_logit, log_probs), sides(self.target))
        return first - second[0] if second else first

    @property
    def value(self) -> Float[Tensor, ""]:
        """g of the clean prediction."""
        if callable(self.target):
            return self.objective(self.logits)
        return self.objective(self.log_probs, self.log_probs)

    @property
    def target_text(self) -> str | tuple[str, ...]:
        """The target as it is written after the context; of a contrast, both sides; of a function, its name."""
        if callable(self.target):
            return function_name(self.target)
        texts = []
        for side in sides(self.target):
            written = [self.tokenizer.write(token, self.ids.tolist()) for token in members(side)]
            texts.append(any_of(written) if isinstance(side, frozenset) else written[0])
        return tuple(texts) if isinstance(self.target, tuple) else texts[0]

    @property
    def target_words(self) -> str:
        """The target in words, for a title."""
        return described(self.target, self.target_text)


def prompt_generator(seed: int, ids: Int[Tensor, "pos"], *numbers: int) -> np.random.Generator:
    """Create the random generator of a prompt: the same in every process, and another one for other ids or numbers.

    With generators of the seed alone, the errors of different prompts would be correlated, and their mean less certain
    than its interval.
    """
    return np.random.default_rng([seed, *numbers, *ids.tolist()])


def predictions(
    adapter: ModelAdapter,
    cached: Activations,
    targets: Mapping[int, TargetLike],
    *,
    tokens: Tokens,
    follow: bool,
    rules: Rules | None = None,
) -> list[Prediction]:
    """Make a prediction for each context length and its target, of a prompt that is checked once.

    A target of None is the next token: of the prompt (``follow``), or else the model's most likely one.
    """
    if any(map(as_activation, targets.values())):
        return _of_activations(adapter, cached, targets, tokens, rules)
    prompt = Prompt.checked(adapter, cached, list(targets), tokens, rules)
    explained = []
    for n, target in targets.items():
        log_probs = log_softmax(prompt.logits[n])
        if target is None:
            target = int(prompt.ids[n] if follow else log_probs.argmax())
        resolved = resolve(adapter, prompt.ids[:n], target, log_probs)
        if callable(resolved):
            called(resolved, prompt.logits[n])
        explained.append(Prediction(prompt, n, resolved))
    return explained


def _of_activations(
    adapter: ModelAdapter,
    cached: Activations,
    targets: Mapping[int, TargetLike],
    tokens: Tokens,
    rules: Rules | None,
) -> list[Prediction]:
    """Make predictions of numbers in activations, by the model up to these."""
    asked = {n: activation for n, target in targets.items() if (activation := as_activation(target))}
    if len(asked) < len(targets):
        raise TypeError("targets of one prompt must be all activations, or none")
    reads = sorted({name for activation in asked.values() for name in activation.hook_names})
    part, shapes = adapter.reading(reads)
    prompt = Prompt.checked(part, cached.below(part.layers), list(asked), tokens, rules)
    explained = []
    for n, activation in asked.items():
        if activation.at is not None and activation.at % len(cached[EMBED]) != n - 1:
            raise ValueError(f"at={activation.at} is for one explanation: here, the span or positions= say where")
        target = placed(activation, reads, shapes)
        called(target, prompt.logits[n])
        explained.append(Prediction(prompt, n, target))
    return explained


def runner_up(prediction: Prediction) -> int:
    """Return the most likely token that is not in the target."""
    log_probs = prediction.log_probs.clone()
    for side in sides(prediction.target):
        log_probs[members(side)] = -torch.inf
    return int(log_probs.argmax())
