"""Prediction: what is explained — a prompt, how much of it is the context, and the target token.

A prediction is made from a cache and checked against it once, so that everything computed from it later is about the
same model, hooks and tokens. The target is never fed to the model: its log-probability is read at the last position of
the context.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, SupportsIndex

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from heta_lens._util.finite_values import check_finite
from heta_lens._util.lazy_sequence import Lazy
from heta_lens._util.printable_text import single_line
from heta_lens._util.probability_text import probability
from heta_lens._util.target_kinds import Target
from heta_lens._util.text_spans import Span
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.hook_sites import EMBED
from heta_lens.model.locking import one_at_a_time
from heta_lens.prediction.cached_activations import Activations
from heta_lens.prediction.cached_tokens import Tokens
from heta_lens.prediction.context_text import ContextText
from heta_lens.prediction.masking import Mask, mask_vector
from heta_lens.prediction.prompt import Prompt
from heta_lens.prediction.readout import log_softmax
from heta_lens.prediction.target import TargetLike, check_target, context_length, is_function, resolve
from heta_lens.prediction.target_function import called
from heta_lens.prediction.target_reading import TargetReading


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
