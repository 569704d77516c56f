"""Whether the live model still does what was cached: one forward run, compared with everything in the cache."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from heta_lens._util.finite_values import check_finite
from heta_lens._util.tolerance import distance
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.hook_sites import EMBED, OUT, pattern_names
from heta_lens.prediction.cached_activations import Activations
from heta_lens.prediction.cached_tokens import check_embeddings
from heta_lens.prediction.live_activations import check_attends_back
from heta_lens.prediction.padding_checks import check_unpadded


class Replay(NamedTuple):
    """The check run: the model's embeddings and logits now, and their largest distance from the cache."""

    embeddings: Float[Tensor, "pos d"]
    logits: Float[Tensor, "read vocab"]
    mismatch: float


def check_causal(adapter: ModelAdapter, cached: Activations) -> None:
    """Refuse a model whose tokens attend to later ones; not every encoder says in its config that it is one."""
    for layer, name in enumerate(pattern_names(adapter.layers)):
        pattern = cached.tensors.get(name)
        if pattern is None:
            continue
        queries, keys = pattern.shape[1:]
        if queries != keys:
            raise ValueError(
                f"the cache holds {queries} of the prompt's {keys} positions: it was taken with pos_slice=; "
                "call run_with_cache without it"
            )
        check_attends_back(adapter, layer, pattern)


@torch.no_grad()
def replay(
    adapter: ModelAdapter, cached: Activations, ids: Int[Tensor, "pos"], read: Sequence[int], given: bool
) -> Replay:
    """Run the cached prompt once more and compare everything that was cached; logits are read at ``read``.

    ``given``: the ids were given by the caller, not recovered from the cache.
    """
    whole = bool(adapter.user_hooks())
    comparison = Comparison(adapter, cached, ids, [*read], given, whole)
    watched = {name: partial(comparison.compare, name) for name in cached.tensors}
    logits = adapter.run(rearrange(ids, "pos -> 1 pos"), watched, read=comparison.read, whole=whole)[0]
    for position, bad in zip(read, ~(logits < torch.inf).all(-1), strict=True):
        if bad:
            raise ValueError(f"the model's own logits are not finite at position {position}: nothing can be explained")
    return Replay(comparison.embeddings[0], logits, max(comparison.distances))


@dataclass(frozen=True, eq=False)
class Comparison:
    """A run's activations against the cached ones; collects the embeddings and every activation's distance."""

    adapter: ModelAdapter
    cached: Activations
    ids: Int[Tensor, "pos"]
    read: list[int]
    given: bool
    whole: bool  # whether all positions are unembedded, as the user's hooks expect
    embeddings: list[Tensor] = field(default_factory=list)
    distances: list[float] = field(default_factory=list)

    def compare(self, name: str, activation: Tensor) -> None:
        now, then = activation[0], self.cached.tensors[name]
        if name == OUT:  # only the rows that are read
            now, then = now[self.read] if self.whole else now, then[self.read]
        else:
            check_finite(then, partial(self._not_finite, name), axis=1 if name.endswith("pattern") else 0)
        if name == EMBED:
            self.embeddings.append(now.clone())
            check_embeddings(self.adapter, self.ids, now, then, self.given)
        patterns = any(other.endswith("pattern") for other in self.cached.tensors)  # they show the prompt is complete
        try:
            self.distances.append(_check_same(name, now, then, self.adapter.rounding, sliced=not patterns))
        except ValueError as error:
            raise (_padded(self.adapter, name, self.ids) or error) from None

    def _not_finite(self, name: str, position: int, _: float) -> str:
        token = self.adapter.tokenizer.write(int(self.ids[position]))
        return f"the cached {name} is not finite at position {position}, token {token!r}"


def _padded(adapter: ModelAdapter, name: str, ids: Int[Tensor, "pos"]) -> ValueError | None:
    """The likely reason why another run differs, where the prompt begins or ends with padding."""
    try:
        check_unpadded([ids.tolist()], adapter.tokenizer.pad, adapter.tokenizer.bos)
    except ValueError:
        return ValueError(
            f"{name} is not what the cache holds: the prompt begins or ends with the padding token "
            f"{adapter.tokenizer.pad}, so the cache was probably taken with an attention_mask; give the same one to "
            "attribute_batch(cache, attention_mask=...)"
        )
    return None


def _check_same(name: str, now: Tensor, then: Tensor, rounding: float, *, sliced: bool) -> float:
    """The largest difference relative to the largest entry, refused above the tolerance."""
    if now.shape != then.shape:
        raise ValueError(
            f"{name} is {tuple(then.shape)} in the cache and {tuple(now.shape)} in a run of the model: take the cache "
            "of the whole prompt, without pos_slice"
        )
    relative, allowed = distance(now, then, rounding)
    if relative > allowed:
        part = ", or it holds only a part of the prompt (pos_slice=)" if sliced else ""
        raise ValueError(
            f"{name} is not what the cache holds (off by {relative:.1e} of its size): the model's weights, or the "
            "hooks on it, have changed since the cache was taken, or it was run with another attention_mask"
            f"{part}; take it again"
        )
    return relative
