"""Prediction: what is explained — a live model, the context it read, and the token it is asked about.

A prediction is made from a cache and checked against it once, so that all that is computed from it later speaks of the
same model, hooks and tokens. The target is never fed to the model: its log-probability is read at the last position of
the context.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from operator import index
from typing import Any, SupportsIndex, TypeAlias

import torch
from einops import repeat
from jaxtyping import Float, Int
from torch import Tensor

from heta_lens.attribution import Attribution, Target
from heta_lens.cached import Tokens, cached_embeddings, cached_tokens, check_causal, replay, tolerance
from heta_lens.lens import KeysValues, Lens, activation, pattern_name, values_name
from heta_lens.text import locate

Asked: TypeAlias = SupportsIndex | str | tuple[SupportsIndex | str, SupportsIndex | str] | None


@dataclass(frozen=True, eq=False)
class Prediction:
    """A context, its target, and the model to ask about them.

    ``later`` are the cached tokens after the context, run only where hooks of the user's must find the prompt as they
    know it. ``kept`` are the clean context's keys and values, for runs that share a prefix; where that does not
    work it is None and ``no_reuse`` says why.
    """

    lens: Lens
    cache: Any
    ids: Int[Tensor, "pos"]
    later: Int[Tensor, "later"]
    target: Target
    embeddings: Float[Tensor, "pos d"]
    later_embeddings: Float[Tensor, "later d"]
    log_probs: Float[Tensor, "vocab"]
    user_hooks: tuple[Any, ...]
    kept: KeysValues | None
    no_reuse: str
    mismatch: float

    @classmethod
    def from_cache(
        cls, cache: Any, target: Asked = None, *, position: SupportsIndex | None = None, tokens: Tokens = None
    ) -> "Prediction":
        """Settle what is asked, and check with one forward that the model still does what was cached."""
        lens = Lens.of(cache)
        with lens.undisturbed():
            n = context_length(len(cached_embeddings(cache)), position)
            check_causal(lens, cache)
            ids = cached_tokens(lens, cache, tokens, needed=n if position is None or target is not None else n + 1)
            seen = replay(lens, cache, ids, read=n - 1, given=tokens is not None)
            log_probs = seen.logits.log_softmax(-1)
            if target is None:
                target = int(log_probs.argmax() if position is None else ids[n])
            resolved = resolve(lens, ids[:n], target, len(log_probs))
            check_target(lens, log_probs, resolved)
            embeddings = seen.embeddings.to(torch.promote_types(seen.embeddings.dtype, torch.float32))
            user_hooks = tuple(lens.user_hooks())
            kept, no_reuse = reusable_prefix(lens, ids[:n], embeddings[:n], log_probs, bool(user_hooks))
            return cls(
                lens, cache, ids[:n], ids[n:], resolved, embeddings[:n], embeddings[n:],
                log_probs, user_hooks, kept, no_reuse, seen.mismatch,
            )  # fmt: skip

    def __len__(self) -> int:
        return len(self.ids)

    # -------------------------------------------------------------------------------------- what methods compute with
    def log_probs_from(self, start: int) -> Callable[[Float[Tensor, "batch pos d"]], Float[Tensor, "batch vocab"]]:
        """Next-token log-probabilities as a function of the embeddings from ``start`` on; the rest stays clean."""

        def log_probs(embeddings: Float[Tensor, "batch pos d"]) -> Float[Tensor, "batch vocab"]:
            batch = len(embeddings)
            if self.user_hooks and batch > 1:  # a hook may index the batch, so it must only ever see one prompt
                return torch.cat([log_probs(one[None]) for one in embeddings])
            if self.kept is not None and start > 0:
                ids = repeat(self.ids[start:], "pos -> batch pos", batch=batch)
                past = self.lens.resume(self.kept, start, len(self), batch)
                return self.lens.run(ids, embeddings, past=past).log_softmax(-1)
            return self._full_run(embeddings, start)

        return log_probs

    def objective_from(self, start: int) -> Callable[[Float[Tensor, "pos d"]], Float[Tensor, ""]]:
        """g: the target's log-probability (a contrastive pair's difference), as a function of the embeddings."""
        log_probs = self.log_probs_from(start)
        return lambda embeddings: self.objective(log_probs(embeddings[None])[0])

    def objective(self, log_probs: Float[Tensor, "*batch vocab"]) -> Float[Tensor, "*batch"]:
        if isinstance(self.target, tuple):
            return log_probs[..., self.target[0]] - log_probs[..., self.target[1]]
        return log_probs[..., self.target]

    def patterns(self) -> list[Float[Tensor, "head pos pos"]]:
        """The cached attention patterns among the context's positions."""
        n = len(self)
        return [self._cached(pattern_name(layer))[:, :n, :n] for layer in range(self.lens.layers)]

    def values(self) -> list[Float[Tensor, "pos group d_head"]]:
        """The cached value vectors, with their bias, of every key/value head."""
        return [self._cached(values_name(layer))[: len(self)] for layer in range(self.lens.layers)]

    def output_weights(self) -> list[Float[Tensor, "head d_head d"]]:
        return [self.lens.output_weights(layer).to(self.embeddings) for layer in range(self.lens.layers)]

    @contextmanager
    def running(self) -> Iterator[None]:
        """Gradients on for embeddings and off for parameters; the model must be as it was when this was made."""
        if tuple(self.lens.user_hooks()) != self.user_hooks:
            raise RuntimeError("hooks were added to or removed from the model since this prediction was made")
        with self.lens.undisturbed():
            yield

    # ------------------------------------------------------------------------------------------- what it comes to
    def check_finite(self, component: str, values: Float[Tensor, "pos"]) -> None:
        """Refuse a NaN or an infinity where it arises, by the names of its token and component."""
        bad = ~values.isfinite()
        if bad.any():
            position = int(bad.nonzero()[0])
            token = self.lens.token_text(int(self.ids[position]))
            raise ValueError(f"{component} is {float(values[position])} at position {position}, token {token!r}")

    def attribution(
        self,
        method: str,
        scores: Float[Tensor, "pos"],
        parts: Mapping[str, Tensor],
        options: Mapping[str, Any],
        diagnostics: Mapping[str, Any],
    ) -> Attribution:
        """Scores, put beside the tokens they belong to."""
        decode, ids = self.lens.decode, self.ids.tolist()
        text, spans = locate(decode, ids)
        # Of tokens that share a character only the last shows it.
        shared = [span == after for span, after in pairwise([*spans, None])]
        pieces = [
            decode([token]) if partial else text[span.start : span.stop]
            for token, span, partial in zip(ids, spans, shared, strict=True)
        ]
        special = self.lens.special_ids()
        wanted = tuple(self.lens.token_after(ids, token) for token in self._targets)
        return Attribution(
            ids=self.ids.cpu(),
            tokens=tuple(pieces),
            positions=torch.arange(len(ids)),
            offsets=torch.tensor(spans),
            special=torch.tensor([token in special for token in ids]),
            text=text,
            target=self.target,
            target_text=wanted if isinstance(self.target, tuple) else wanted[0],
            method=method,
            scores=scores.detach().cpu(),
            parts={name: part.detach().cpu() for name, part in parts.items()},
            options={**options, "model": self.lens.weights(), "versions": versions()},
            diagnostics={**self._facts(), **diagnostics},
        )

    @property
    def _targets(self) -> tuple[int, ...]:
        return self.target if isinstance(self.target, tuple) else (self.target,)

    def _facts(self) -> dict[str, Any]:
        log_probs = [float(self.log_probs[token]) for token in self._targets]
        ranks = [int((self.log_probs > self.log_probs[token]).sum()) + 1 for token in self._targets]
        one = not isinstance(self.target, tuple)
        return {
            "target_log_prob": log_probs[0] if one else tuple(log_probs),
            "target_rank": ranks[0] if one else tuple(ranks),
            "prefix_reuse": self.no_reuse or "on",
            "cache_mismatch": self.mismatch,
        }

    def _cached(self, name: str) -> Tensor:
        return activation(self.cache, name).to(self.embeddings)

    def _full_run(self, embeddings: Float[Tensor, "batch pos d"], start: int) -> Float[Tensor, "batch vocab"]:
        batch = len(embeddings)
        hooked = bool(self.user_hooks)
        before, later = (
            repeat(part, "pos d -> batch pos d", batch=batch)
            for part in (self.embeddings[:start], self.later_embeddings[: None if hooked else 0])
        )
        ids = torch.cat([self.ids, self.later[: later.shape[1]]])
        every = torch.cat([before, embeddings, later], dim=1)
        logits = self.lens.run(repeat(ids, "pos -> batch pos", batch=batch), every, read=len(self) - 1, whole=hooked)
        return logits.log_softmax(-1)


def context_length(cached: int, position: SupportsIndex | None) -> int:
    """How many tokens come before the one at ``position``; all cached ones, when the next token is explained."""
    if position is None:
        return cached
    try:
        place = index(position)
    except TypeError:
        raise TypeError(f"position={position!r} must be a whole number: a place in the cached prompt") from None
    if not -cached <= place < cached:
        raise ValueError(f"position={place} is outside the cached prompt of {cached} tokens")
    if place % cached == 0:
        raise ValueError(f"position={place} is the first token, which has no context: nothing comes before it")
    return place % cached


def resolve(lens: Lens, context: Int[Tensor, "pos"], target: Asked, size: int) -> Target:
    """The target's id (or a contrastive pair's ids), among the ``size`` tokens the model can write."""
    if not isinstance(target, tuple):
        return token_id(lens, context, target, size)
    if len(target) != 2:
        raise ValueError(f"target={target!r} must be a pair (a, b), to explain log p(a) - log p(b)")
    first, second = (token_id(lens, context, one, size) for one in target)
    if first == second:
        raise ValueError(f"target={target!r} contrasts a token with itself")
    return first, second


def token_id(lens: Lens, context: Int[Tensor, "pos"], target: Any, size: int) -> int:
    """The id of one token, given as itself or as text."""
    if isinstance(target, str):
        return lens.find_token(context.tolist(), target, size)
    try:
        token = index(target)
    except TypeError:
        raise TypeError(f"target={target!r} must be a token id, its text, or a pair of these") from None
    if not 0 <= token < size:
        raise ValueError(f"target={token} is no token id of this model: ids go from 0 to {size - 1}")
    return token


def check_target(lens: Lens, log_probs: Float[Tensor, "vocab"], target: Target) -> None:
    for token in target if isinstance(target, tuple) else (target,):
        if not log_probs[token].isfinite():
            raise ValueError(f"log p of the target {lens.token_text(token)!r} is {float(log_probs[token])}")


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
            resumed = lens.run(ids[None, start:], embeddings[None, start:], past=past)[0].log_softmax(-1)
    except Exception as error:  # whatever a model does when asked for something it was not made for
        return None, f"off: this model cannot continue from kept keys and values ({type(error).__name__}: {error})"
    gap = float((resumed - log_probs).abs()[log_probs > log_probs.max() - 10].max())
    if gap > 2 * tolerance(lens.token_weights):
        return None, f"off: continuing from kept keys and values changes the prediction by {gap:.1e} nats"
    return kept, ""


def versions() -> dict[str, str]:
    """Of heta_lens and what its numbers depend on; a checkout that is only on the path has none."""
    found = {}
    for name in ("heta_lens", "transformer_lens", "torch"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found
