"""What a cache tells: which tokens were read, and whether the live model still does what was cached."""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from heta_lens.lens import EMBED, READ, Lens, activation, pattern_name, values_name

Tokens: TypeAlias = Tensor | Sequence[int] | None

LEAST_TOLERANCE = 1e-5  # some norms compute in float32 even inside a float64 model


class Replay(NamedTuple):
    """The check forward: the model's embeddings and logits today, and their largest distance from the cache."""

    embeddings: Float[Tensor, "pos d"]
    logits: Float[Tensor, "vocab"]
    mismatch: float


def cached_embeddings(cache: Any) -> Float[Tensor, "pos d"]:
    """The cached ``hook_embed`` of the one prompt in the cache."""
    embeddings = activation(cache, EMBED)
    prompts = cache[EMBED].shape[0] if cache[EMBED].ndim == 3 else 1
    if prompts != 1:
        raise ValueError(f"the cache holds {prompts} prompts and attribute explains one: cache one prompt at a time")
    return embeddings


def cached_tokens(lens: Lens, cache: Any, tokens: Tokens) -> Int[Tensor, "pos"]:
    """The ids that were cached: those given, checked for shape and range, or else those the embeddings belong to."""
    embeddings = cached_embeddings(cache)
    if tokens is None:
        return torch.tensor(recover_tokens(lens, embeddings), device=lens.device)
    if isinstance(tokens, str):
        raise TypeError("tokens= takes the ids the model was run on, model.to_tokens(text), not the text")
    ids = torch.as_tensor(tokens, device=lens.device)
    ids = ids[0] if ids.ndim == 2 and len(ids) == 1 else ids
    if ids.is_floating_point() or ids.dtype == torch.bool or ids.shape != embeddings.shape[:1]:
        raise ValueError(
            f"tokens= must be the ids of the cached prompt, {len(embeddings)} of them; "
            f"got {ids.dtype} of shape {tuple(ids.shape)}"
        )
    outside = ids[(ids < 0) | (ids >= lens.vocabulary)]
    if len(outside):
        raise ValueError(f"tokens= holds {int(outside[0])}, but ids go from 0 to {lens.vocabulary - 1}")
    return ids.long()


def recover_tokens(lens: Lens, embeddings: Float[Tensor, "pos d"]) -> list[int]:
    """The ids whose embeddings are exactly these; an error where none or several are."""
    owners: dict[bytes, list[int]] = {row: [] for row in _rows(embeddings)}
    for token, row in enumerate(_rows(lens.embedding_table().to(embeddings.dtype))):
        if row in owners:
            owners[row].append(token)
    for position, row in enumerate(_rows(embeddings)):
        if len(owners[row]) != 1:
            found = f"tokens {owners[row][:5]} share" if owners[row] else "no token has"
            raise ValueError(f"{found} the cached embedding at position {position}: pass tokens=, the ids you ran")
    return [owners[row][0] for row in _rows(embeddings)]


@torch.no_grad()
def replay(lens: Lens, cache: Any, ids: Int[Tensor, "run"], length: int, given: bool) -> Replay:
    """Run the model once more and compare every activation heta_lens reads, over the ``length`` context positions."""
    whole = bool(lens.user_hooks())
    live: dict[str, Tensor] = {}
    distances: dict[str, float] = {}

    def watch(name: str, cached: Tensor) -> Any:
        def compare(activation: Tensor) -> None:
            now, then = _cut(name, activation[0], length), _cut(name, cached, length)
            _check_finite(lens, name, ids, then)
            if name == EMBED:
                live[EMBED] = activation[0].detach().clone()
                _check_embeddings(ids, now, then, given)
            distances[name] = _distance(now, then)
            if distances[name] > tolerance(now, then):
                raise ValueError(
                    f"{name} is not what the cache holds (off by {distances[name]:.1e} of its size): the model's "
                    "weights, or the hooks on it, have changed since the cache was taken; take it again"
                )

        return compare

    names = [EMBED, *(name(layer) for layer in range(lens.layers) for name in (pattern_name, values_name)), READ]
    watchers = {name: watch(name, activation(cache, name)) for name in names if name in cache.cache_dict}
    logits = lens.run(rearrange(ids, "pos -> 1 pos"), read=length - 1, whole=whole, watch=watchers)[0]
    if logits.isnan().any():
        raise ValueError("the model's own logits are NaN for this prompt: nothing can be explained")
    return Replay(live[EMBED], logits, max(distances.values()))


def _check_embeddings(ids: Tensor, now: Tensor, then: Tensor, given: bool) -> None:
    """Wrong tokens change some rows of the embeddings, other weights change all of them."""
    off = (now.double() - then.to(now.device).double()).abs().amax(-1) > tolerance(now, then) * then.abs().max()
    if not off.any():
        return
    first = int(off.nonzero()[0])
    if given and not off.all():
        raise ValueError(
            f"tokens= do not match the cache: the embedding of token {int(ids[first])} at position {first} "
            "is not the cached one"
        )
    raise ValueError(
        "the embeddings are not what the cache holds: the model's weights, or the hooks on it, have changed since the "
        "cache was taken" + (", or tokens= are those of another prompt" if given else "")
    )


def _check_finite(lens: Lens, name: str, ids: Tensor, cached: Tensor) -> None:
    axis = 1 if name.endswith("pattern") else 0
    bad = ~cached.isfinite()
    if bad.any():
        position = int(bad.nonzero()[0, axis])
        raise ValueError(f"{name} is not finite at position {position}, token {lens.token_text(int(ids[position]))!r}")


def _cut(name: str, activation: Tensor, length: int) -> Tensor:
    return activation[:, :length, :length] if name.endswith("pattern") else activation[:length]


def _distance(now: Tensor, then: Tensor) -> float:
    """The largest difference, relative to the largest entry."""
    if now.shape != then.shape:
        return float("inf")
    scale = then.abs().max().double()
    return float((now.double() - then.to(now.device).double()).abs().max() / scale) if scale else float(now.abs().max())


def tolerance(*tensors: Tensor) -> float:
    """A relative error of half the digits that the coarsest of these tensors' types holds."""
    return max(LEAST_TOLERANCE, *(torch.finfo(tensor.dtype).eps ** 0.5 for tensor in tensors))


def _rows(table: Float[Tensor, "row d"]) -> list[bytes]:
    """Every row's bits, which compare and hash exactly."""
    bits = table.detach().cpu().contiguous().view(torch.uint8).numpy()
    return [row.tobytes() for row in bits]
