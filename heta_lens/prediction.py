"""Prediction: what is explained — a prompt, how much of it was read, and the token it is asked about.

A prediction is made from a cache and checked against it once, so that all that is computed from it later speaks of the
same model, hooks and tokens. The target is never fed to the model: its log-probability is read at the last position of
the context.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from typing import Any, SupportsIndex, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from heta_lens.asked import Asked, check_target, context_length, resolve
from heta_lens.attribution import Attribution, Target
from heta_lens.cached import Activations, Tokens
from heta_lens.lens import EMBED, Lens
from heta_lens.masking import Mask, mask_vector
from heta_lens.prompt import Prompt
from heta_lens.scales import Scale, on_scale
from heta_lens.text import Span, locate, quoted, tokens_in
from heta_lens.turns import one_at_a_time

T = TypeVar("T")


class Lazy(Sequence[T]):
    """Items that are made when they are asked for: all at once they may be more than fits."""

    def __init__(self, count: int, of: Callable[[int], T]) -> None:
        self.places, self.of = range(count), of

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, place: Any) -> Any:
        return self.of(self.places[place])


@dataclass(frozen=True, eq=False)
class Prediction:
    """The first ``length`` tokens of a prompt, and a target (for a contrast, two) to explain by them."""

    prompt: Prompt
    length: int
    target: Target
    others: tuple[int, ...] = ()
    """Tokens that write the same text, where the target was given as text."""

    def __repr__(self) -> str:
        model = type(self.lens.model).__name__
        return f"Prediction of {quoted(self.target_text)} after {self.length} tokens, by a {model}"

    @classmethod
    @one_at_a_time("cache")
    def from_cache(
        cls, cache: Any, target: Asked = None, *, position: SupportsIndex | None = None, tokens: Tokens = None
    ) -> "Prediction":
        """Settle what is asked, and check with one forward that the model still does what was cached."""
        lens = Lens.of(cache)
        with lens.undisturbed():
            cached = Activations.of(cache)
            n = context_length(len(cached[EMBED]), position)
            return predictions(lens, cached, {n: target}, tokens=tokens, follow=position is not None)[0]

    def __len__(self) -> int:
        return self.length

    @property
    def lens(self) -> Lens:
        return self.prompt.lens

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

    # -------------------------------------------------------------------------------------- what methods compute with
    def states(self, layer: int | None = None) -> Float[Tensor, "pos d"]:
        """What enters a layer at each position (after as many as there are: what leaves the last); None: embeddings."""
        return self.prompt.states(layer)[: self.length]

    def log_probs_from(
        self, start: int, stop: int | None = None, layer: int | None = None
    ) -> Callable[[Float[Tensor, "batch pos d"]], Float[Tensor, "batch vocab"]]:
        """Next-token log-probabilities as a function of the states at ``start:stop``; the rest stays clean."""
        log_probs = self.prompt.log_probs_from(start, read=[self.length - 1], stop=stop, layer=layer)
        return lambda states: log_probs(states)[:, 0]

    def mask_vector(self, mask: Mask) -> Float[Tensor, "d"]:
        """The embedding that stands where a token is masked."""
        lens = self.lens
        return mask_vector(mask, self.embeddings, lens.embedding_table, lens.vocabulary, lens.speller.filler)

    @cached_property
    def located(self) -> tuple[str, list[Span]]:
        """The context as text, and where in it every token stands."""
        return locate(self.lens.speller.decode, self.ids.tolist())

    def positions_of(self, passage: str) -> list[int]:
        """The tokens that write a passage, which must stand in the context once."""
        text, spans = self.located
        if not passage.strip() or text.count(passage) != 1:
            raise ValueError(f"{passage!r} stands {text.count(passage)} times in the context: give what is there once")
        start = text.index(passage)
        return tokens_in(text, spans, Span(start, start + len(passage)))

    @property
    def written(self) -> tuple[str, ...]:
        """Every token as it stands in the text; of those that share a character only the last shows it."""
        (text, spans), ids = self.located, self.ids.tolist()
        shared = [span == after for span, after in pairwise([*spans, None])]
        return tuple(
            self.lens.speller.write(token) if partial else text[span.start : span.stop]
            for token, span, partial in zip(ids, spans, shared, strict=True)
        )

    @property
    def target_text(self) -> str | tuple[str, ...]:
        """The target as it is written after the context; of a contrastive pair, both."""
        wanted = tuple(self.lens.speller.write(token, self.ids.tolist()) for token in self._targets)
        return wanted if isinstance(self.target, tuple) else wanted[0]

    def spell(self, text: str) -> list[int]:
        """The tokens that write a text after the context; if there are none, those that differ in blanks alone."""
        return self.lens.speller.spell(text, self.ids.tolist(), self.log_probs.tolist())

    @property
    def begins(self) -> bool:
        """Whether the first token only says that the text begins."""
        return int(self.ids[0]) == self.lens.speller.bos

    def logits_from(
        self, start: int = 0, layer: int | None = None
    ) -> Callable[[Float[Tensor, "batch pos d"]], Float[Tensor, "batch vocab"]]:
        """Next-token logits as a function of the states from a position on."""
        logits = self.prompt.logits_from(start, read=[self.length - 1], layer=layer)
        return lambda states: logits(states)[:, 0]

    def read(self, logits: Float[Tensor, "*batch vocab"], scale: Scale) -> Float[Tensor, "*batch"]:
        """How likely the target is; of a contrastive pair, how much more likely the first of the two."""
        first, *second = [on_scale(logits, token, scale) for token in self._targets]
        return first - second[0] if second else first

    def objective_from(
        self, start: int, stop: int | None = None, layer: int | None = None
    ) -> Callable[[Float[Tensor, "pos d"]], Float[Tensor, ""]]:
        """g: the target's log-probability (a contrastive pair's difference), as a function of the same states."""
        log_probs = self.log_probs_from(start, stop, layer)
        return lambda states: self.objective(log_probs(states[None])[0])

    def objective(self, log_probs: Float[Tensor, "*batch vocab"]) -> Float[Tensor, "*batch"]:
        if isinstance(self.target, tuple):
            return log_probs[..., self.target[0]] - log_probs[..., self.target[1]]
        return log_probs[..., self.target]

    def alone(self, start: int, stop: int) -> "Prediction":
        """The same target, asked of a part of the context as if nothing were around it."""
        return Prediction(self.prompt.alone(start, stop), stop - start, self.target)

    @property
    def patterns(self) -> Sequence[Float[Tensor, "head pos pos"]]:
        """The attention patterns among the context's positions, by layer."""
        n = len(self)
        return self._layers(lambda layer: self.prompt.pattern(layer)[:, :n, :n])

    @property
    def values(self) -> Sequence[Float[Tensor, "pos group d_head"]]:
        """The value vectors, with their bias, of every key/value head, by layer."""
        return self._layers(lambda layer: self.prompt.values(layer)[: len(self)])

    @property
    def output_weights(self) -> Sequence[Float[Tensor, "head d_head d"]]:
        return self._layers(self.lens.output_weights)

    def _layers(self, of: Callable[[int], Tensor]) -> Sequence[Tensor]:
        return Lazy(self.lens.layers, lambda layer: of(layer).to(self.embeddings))

    @contextmanager
    def running(self) -> Iterator[None]:
        """Gradients on for embeddings and off for parameters; the hooks must be those of when this was made."""
        with self.lens.undisturbed():
            if tuple(self.lens.user_hooks()) != self.prompt.user_hooks:
                raise RuntimeError("hooks were added to or removed from the model since this prediction was made")
            yield

    # ------------------------------------------------------------------------------------------- what it comes to
    def check_finite(self, component: str, values: Float[Tensor, "pos"]) -> None:
        """Refuse a NaN or an infinity where it arises, by the names of its token and component."""
        bad = ~values.isfinite()
        if bad.any():
            position = int(bad.nonzero()[0])
            token = self.lens.speller.write(int(self.ids[position]))
            raise ValueError(f"{component} is {float(values[position])} at position {position}, token {token!r}")

    def attribution(
        self,
        method: str,
        scores: Float[Tensor, "pos"],
        parts: Mapping[str, Tensor],
        options: Mapping[str, Any],
        diagnostics: Mapping[str, Any],
        interactions: Float[Tensor, "pos pos"] | None = None,
        *,
        signed: bool = False,
    ) -> Attribution:
        """Scores, put beside the tokens they belong to."""
        speller, ids = self.lens.speller, self.ids.tolist()
        text, spans = self.located
        return Attribution(
            ids=self.ids.cpu(),
            tokens=self.written,
            positions=torch.arange(len(ids)),
            offsets=torch.tensor(spans),
            special=torch.tensor(speller.special(ids)),
            text=text,
            target=self.target,
            target_text=self.target_text,
            method=method,
            scores=_kept(scores),
            parts=_kept(parts),
            options={**options, "model": self.lens.weights(), "versions": versions()},
            diagnostics=_kept(self._facts(diagnostics)),
            signed=signed,
            interactions=_kept(interactions),
        )

    @property
    def _targets(self) -> tuple[int, ...]:
        return self.target if isinstance(self.target, tuple) else (self.target,)

    @property
    def _others(self) -> list[dict[str, Any]]:
        speller, ids = self.lens.speller, self.ids.tolist()
        return [
            {
                "id": token,
                "token": speller.name(token),
                "text": speller.write(token, ids),
                "log_prob": float(self.log_probs[token]),
            }
            for token in self.others
            if token not in self._targets
        ]

    def _facts(self, more: Mapping[str, Any]) -> dict[str, Any]:
        log_probs = [float(self.log_probs[token]) for token in self._targets]
        ranks = [int((self.log_probs > self.log_probs[token]).sum()) + 1 for token in self._targets]
        names = [self.lens.speller.name(token) for token in self._targets]
        one = not isinstance(self.target, tuple)
        return {
            "target_token": names[0] if one else tuple(names),
            "target_log_prob": log_probs[0] if one else tuple(log_probs),
            "target_rank": ranks[0] if one else tuple(ranks),
            **({"other_spellings": self._others} if self.others else {}),
            "prefix_reuse": self.prompt.reuse,
            "user_hooks": len(self.prompt.user_hooks),
            "cache_mismatch": self.prompt.mismatch,
            **more,
            "checks": {name: dict(ran) for name, ran in (self.prompt.checks | more.get("checks", {})).items()},
        }


def predictions(
    lens: Lens, cached: Activations, asked: Mapping[int, Asked], *, tokens: Tokens, follow: bool, needed: int = 0
) -> list[Prediction]:
    """A prediction for each context length and its target, of one prompt that is checked once.

    A target that is left out is the token that comes next: in the prompt (``follow``), else by the model's opinion.
    At least ``needed`` ids of the prompt are settled.
    """
    contexts = list(asked)
    known = [n + (follow and target is None) for n, target in asked.items()]
    prompt = Prompt.checked(lens, cached, contexts, tokens, needed=max(*known, needed))
    found = []
    for n, target in asked.items():
        log_probs = prompt.log_probs[n]
        if target is None:
            target = int(prompt.ids[n] if follow else log_probs.argmax())
        resolved = resolve(lens, prompt.ids[:n], target, log_probs)
        check_target(lens, log_probs, resolved.target)
        found.append(Prediction(prompt, n, *resolved))
    return found


def _kept(value: Any) -> Any:
    """Every tensor in it, off the accelerator and without its graph."""
    if isinstance(value, Mapping):
        return {name: _kept(item) for name, item in value.items()}
    return value.detach().cpu() if isinstance(value, Tensor) else value


def versions() -> dict[str, str]:
    """Of heta_lens and what its numbers depend on; a checkout that is only on the path has none."""
    found = {}
    for name in ("heta_lens", "transformer_lens", "torch"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found
