"""Prediction: what is explained — a live model, the context it read, and the token it is asked about.

A prediction is made from a cache and checked against it once, so that all that is computed from it later speaks of the
same model, hooks and tokens. The target is never fed to the model: its log-probability is read at the last position of
the context.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from operator import index
from typing import Any, Literal, SupportsIndex, TypeAlias

import torch
from einops import repeat
from jaxtyping import Float, Int
from torch import Tensor

from heta_lens.attribution import Attribution, Target
from heta_lens.cached import Tokens, cached_tokens, check_causal, replay, tolerance
from heta_lens.lens import EMBED, Activations, KeysValues, Lens, pattern_name, values_name
from heta_lens.options import check_token, is_whole
from heta_lens.text import locate

Token: TypeAlias = SupportsIndex | str
Asked: TypeAlias = Token | tuple[Token, Token] | None  # what a caller may write for a target

CHUNK = 8  # tokens that share a start: more of them build fewer graphs, fewer of them run shorter suffixes


class Layers(Sequence[Tensor]):
    """A tensor a layer, made when it is asked for: all at once they may be more than fits."""

    def __init__(self, layers: int, of: Callable[[int], Tensor]) -> None:
        self.layers, self.of = range(layers), of

    def __len__(self) -> int:
        return len(self.layers)

    def __getitem__(self, layer: Any) -> Any:
        return self.of(self.layers[layer])


@dataclass(frozen=True, eq=False)
class Prediction:
    """A context, its target, and the model to ask about them.

    ``later`` are the cached tokens after the context, kept and run only where hooks of the user's must find the prompt
    as they know it. ``kept`` are the clean context's keys and values, for runs that share a prefix; where that does not
    work it is None and ``no_reuse`` says why.
    """

    lens: Lens
    cached: Activations
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
            cached = Activations.of(cache)
            n = context_length(len(cached[EMBED]), position)
            check_causal(lens, cached)
            needed = n if position is None or target is not None else n + 1
            ids = cached_tokens(lens, cached[EMBED], tokens, needed)
            seen = replay(lens, cached, ids, read=n - 1, given=tokens is not None)
            log_probs = seen.logits.log_softmax(-1)
            if target is None:
                target = int(log_probs.argmax() if position is None else ids[n])
            resolved = resolve(lens, ids[:n], target, len(log_probs))
            check_target(lens, log_probs, resolved)
            embeddings = seen.embeddings.to(torch.promote_types(seen.embeddings.dtype, torch.float32))
            user_hooks = tuple(lens.user_hooks())
            last = len(ids) if user_hooks else n
            kept, no_reuse = reusable_prefix(lens, ids[:n], embeddings[:n], log_probs, bool(user_hooks))
            return cls(
                lens, cached, ids[:n], ids[n:last], resolved, embeddings[:n], embeddings[n:last],
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

    @property
    def chunk(self) -> int:
        """How many tokens should share a run's start: all of them, where a start saves nothing."""
        return len(self) if self.kept is None else CHUNK

    def batch(self, wanted: int | Literal["auto"]) -> int:
        """How many copies of the context to run at once; "auto" keeps near 4,096 tokens, hooks only ever see one."""
        if self.user_hooks:
            return 1
        return max(1, min(32, 4096 // len(self))) if wanted == "auto" else int(wanted)

    @property
    def patterns(self) -> Sequence[Float[Tensor, "head pos pos"]]:
        """The cached attention patterns among the context's positions, by layer."""
        n = len(self)
        return self._layers(lambda layer: self.cached[pattern_name(layer)][:, :n, :n])

    @property
    def values(self) -> Sequence[Float[Tensor, "pos group d_head"]]:
        """The cached value vectors, with their bias, of every key/value head, by layer."""
        return self._layers(lambda layer: self.cached[values_name(layer)][: len(self)])

    @property
    def output_weights(self) -> Sequence[Float[Tensor, "head d_head d"]]:
        return self._layers(self.lens.output_weights)

    def _layers(self, of: Callable[[int], Tensor]) -> Layers:
        return Layers(self.lens.layers, lambda layer: of(layer).to(self.embeddings))

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
            token = self.lens.speller.write(int(self.ids[position]))
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
        speller, ids = self.lens.speller, self.ids.tolist()
        text, spans = locate(speller.decode, ids)
        # Of tokens that share a character only the last shows it.
        shared = [span == after for span, after in pairwise([*spans, None])]
        pieces = [
            speller.write(token) if partial else text[span.start : span.stop]
            for token, span, partial in zip(ids, spans, shared, strict=True)
        ]
        wanted = tuple(speller.write(token, ids) for token in self._targets)
        return Attribution(
            ids=self.ids.cpu(),
            tokens=tuple(pieces),
            positions=torch.arange(len(ids)),
            offsets=torch.tensor(spans),
            special=torch.tensor(speller.special(ids)),
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
            "user_hooks": len(self.user_hooks),
            "cache_mismatch": self.mismatch,
        }

    def _full_run(self, embeddings: Float[Tensor, "batch pos d"], start: int) -> Float[Tensor, "batch vocab"]:
        batch = len(embeddings)
        before, later = (
            repeat(part, "pos d -> batch pos d", batch=batch)
            for part in (self.embeddings[:start], self.later_embeddings)
        )
        ids = repeat(torch.cat([self.ids, self.later]), "pos -> batch pos", batch=batch)
        every = torch.cat([before, embeddings, later], dim=1)
        return self.lens.run(ids, every, read=len(self) - 1, whole=bool(self.user_hooks)).log_softmax(-1)


def context_length(cached: int, position: SupportsIndex | None) -> int:
    """How many tokens come before the one at ``position``; all cached ones, when the next token is explained."""
    if cached == 0:
        raise ValueError("the cached prompt is empty: there is no context to explain a target from")
    if position is None:
        return cached
    if not is_whole(position):
        raise TypeError(f"position={position!r} must be a whole number: a place in the cached prompt")
    place = index(position)
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
        return lens.speller.find(target, context.tolist(), size)
    if not is_whole(target):
        raise TypeError(f"target={target!r} must be a token id, its text, or a pair of these")
    check_token("target", index(target), size)
    return index(target)


def check_target(lens: Lens, log_probs: Float[Tensor, "vocab"], target: Target) -> None:
    for token in target if isinstance(target, tuple) else (target,):
        if not log_probs[token].isfinite():
            raise ValueError(f"log p of the target {lens.speller.write(token)!r} is {float(log_probs[token])}")


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
