"""What a cache tells: which tokens were read, and whether the live model still does what was cached."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from heta_lens.lens import EMBED, OUT, READ, Lens, pattern_name, values_name
from heta_lens.options import check_token
from heta_lens.padding import check_unpadded
from heta_lens.text import brief

Tokens: TypeAlias = "Tensor | Sequence[int] | Vocabulary | None"

LEAST_TOLERANCE = 1e-5  # some norms compute in float32 even inside a float64 model


@dataclass(frozen=True, eq=False)
class Activations:
    """What heta_lens reads of one prompt in a cache, as it was when it was read, without a batch dimension."""

    def __repr__(self) -> str:
        return brief(self)

    tensors: Mapping[str, Tensor]

    @classmethod
    def of(cls, cache: Any) -> "Activations":
        """Of a cache of one prompt; refused for several."""
        found, prompts = _found(cache)
        if prompts > 1:
            raise ValueError(
                f"the cache holds {prompts} prompts and this is about one: cache it alone, or explain all of them with "
                "heta_lens.attribute_batch"
            )
        return cls({name: activation[0] for name, activation in found.items()})

    @classmethod
    def of_each(cls, cache: Any) -> "list[Activations]":
        """Of every prompt in a cache, padding included."""
        found, prompts = _found(cache)
        return [cls({name: activation[row] for name, activation in found.items()}) for row in range(prompts)]

    def part(self, positions: slice) -> "Activations":
        """The same activations at some positions only."""
        both = {name: (slice(None), positions, positions) for name in self.tensors if name.endswith("pattern")}
        return Activations({name: tensor[both.get(name, positions)] for name, tensor in self.tensors.items()})

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.tensors:
            raise ValueError(
                f"the cache has no {name!r}; take it with "
                "model.run_with_cache(tokens, names_filter=heta_lens.names_filter), or without a filter"
            )
        return self.tensors[name]


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Which tokens have the embeddings of some prompts: the model's table is read once for all of them."""

    owners: Mapping[bytes, Sequence[int]]

    @classmethod
    def of(cls, lens: Lens, prompts: Sequence[Float[Tensor, "_ d"]]) -> "Vocabulary":
        owners: dict[bytes, list[int]] = {row: [] for embeddings in prompts for row in _bits(embeddings)}
        for token, row in enumerate(_bits(lens.embedding_table().to(prompts[0].dtype))):
            if row in owners:
                owners[row].append(token)
        return cls(owners)

    def tokens(self, embeddings: Float[Tensor, "pos d"], needed: int) -> list[int]:
        """The ids with exactly these embeddings; an error where none are, or several of the first ``needed``."""
        check_finite(EMBED, embeddings)
        owners = [self.owners[row] for row in _bits(embeddings)]
        for position, found in enumerate(owners):
            if not found or (position < needed and len(found) > 1):
                said = f"tokens {[*found[:5]]} share" if found else "no token of this model has"
                other = "" if found else ", and see that cache.model is the model it was taken from, unchanged"
                raise ValueError(
                    f"{said} the cached embedding at position {position}: pass tokens=, the ids you ran{other}"
                )
        return [found[0] for found in owners]


class Replay(NamedTuple):
    """The check forward: the model's embeddings and logits today, and their largest distance from the cache."""

    embeddings: Float[Tensor, "pos d"]
    logits: Float[Tensor, "read vocab"]
    mismatch: float


def cached_tokens(lens: Lens, embeddings: Float[Tensor, "pos d"], tokens: Tokens, needed: int) -> Int[Tensor, "pos"]:
    """The ids that were cached: those given, checked for shape and range, or else those the embeddings belong to."""
    if tokens is None:
        tokens = Vocabulary.of(lens, [embeddings])
    if isinstance(tokens, Vocabulary):
        return torch.tensor(tokens.tokens(embeddings, needed), device=lens.device)
    try:
        ids = torch.as_tensor(tokens, device=lens.device)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError):
        raise TypeError("tokens= takes the ids the model was run on, model.to_tokens(text), not the text") from None
    shape, ids = tuple(ids.shape), ids[0] if ids.ndim == 2 and len(ids) == 1 else ids
    if ids.is_floating_point() or ids.dtype == torch.bool or ids.shape != embeddings.shape[:1]:
        raise ValueError(
            f"tokens= must be the ids of the cached prompt, {len(embeddings)} of them; got {ids.dtype} of shape {shape}"
            f"{_why_not_as_long(ids, len(embeddings), lens.speller.bos)}"
        )
    for token in ids.tolist():
        check_token("tokens", token, lens.vocabulary)
    return ids.long().clone()


def _why_not_as_long(ids: Tensor, cached: int, bos: int | None) -> str:
    """The likely reason why tokens are more or fewer than the cached ones."""
    begins = ids.ndim == 1 and ids.tolist()[:1] == [bos]
    if begins and len(ids) == cached + 1:
        return " (the first is BOS, which a prompt cached with prepend_bos=False lacks: pass the ids that were run)"
    if ids.ndim == 1 and bos is not None and not begins and len(ids) == cached - 1:
        return " (does the cached prompt begin with BOS? pass model.to_tokens(text), which adds it too)"
    if ids.ndim == 1 and len(ids) > cached:
        return " (was only a part cached, by pos_slice=? leave it out)"
    return ""


def check_causal(lens: Lens, cached: Activations) -> None:
    """Refuse a model whose tokens see later ones; not every encoder says that it is one.

    Asked of the last two tokens only: padding before them attends to nothing, which looks like everything.
    """
    for layer in range(lens.layers):
        if pattern_name(layer) in cached and len({*cached[pattern_name(layer)].shape[1:]}) > 1:
            queries, keys = cached[pattern_name(layer)].shape[1:]
            raise ValueError(
                f"the cache holds {queries} of the prompt's {keys} positions: it was taken with pos_slice=; "
                "call run_with_cache without it"
            )
        if pattern_name(layer) in cached and (cached[pattern_name(layer)][:, -2:-1, -1] > 0).any():
            raise ValueError(
                f"{type(lens.model).__name__} is not a decoder-only language model: "
                f"its layer {layer} attends to later tokens"
            )


@torch.no_grad()
def replay(lens: Lens, cached: Activations, ids: Int[Tensor, "pos"], read: Sequence[int], given: bool) -> Replay:
    """Run the cached prompt once more and compare everything that was cached; logits are read at ``read``."""
    rows = list(read)
    whole = bool(lens.user_hooks())
    patterns = any(name.endswith("pattern") for name in cached.tensors)  # which show that the prompt is whole
    live: list[Tensor] = []
    distances: list[float] = []

    def compare(name: str, activation: Tensor) -> None:
        now, then = activation[0], cached[name]
        if name == OUT:  # only the rows that are read
            now, then = now[rows] if whole else now, then[rows]
        else:
            check_finite(name, then, lambda position: lens.speller.write(int(ids[position])))
        if name == EMBED:
            live.append(now.clone())
            _check_embeddings(lens, ids, now, then, given)
        try:
            distances.append(_check_same(name, now, then, sliced=not patterns))
        except ValueError as error:
            raise (_padded(lens, name, ids) or error) from None

    watched = {name: partial(compare, name) for name in cached.tensors}
    logits = lens.run(rearrange(ids, "pos -> 1 pos"), watched, read=rows, whole=whole)[0]
    for row, bad in zip(rows, ~(logits < torch.inf).all(-1), strict=True):
        if bad:
            raise ValueError(f"the model's own logits are not finite at position {row}: nothing can be explained")
    return Replay(live[0], logits, max(distances))


def _padded(lens: Lens, name: str, ids: Int[Tensor, "pos"]) -> ValueError | None:
    """The likely reason why another run differs, where the prompt begins or ends with padding."""
    try:
        check_unpadded([ids.tolist()], lens.speller.pad, lens.speller.bos)
    except ValueError:
        return ValueError(
            f"{name} is not what the cache holds: the prompt begins or ends with the padding token {lens.speller.pad}, "
            "so the cache was probably taken with an attention_mask; give the same one to "
            "attribute_batch(cache, attention_mask=...)"
        )
    return None


def check_finite(name: str, cached: Tensor, token_at: Callable[[int], str] | None = None) -> None:
    """Refuse a NaN or an infinity in a cached activation, by its position and (where they are known) its token."""
    bad = ~cached.isfinite()
    if bad.any():
        position = int(bad.nonzero()[0, 1 if name.endswith("pattern") else 0])
        token = f", token {token_at(position)!r}" if token_at else ""
        raise ValueError(f"the cached {name} is not finite at position {position}{token}")


def tolerance(*tensors: Tensor) -> float:
    """A relative error of half the digits that the coarsest of these tensors' types holds."""
    return max(LEAST_TOLERANCE, *(torch.finfo(tensor.dtype).eps ** 0.5 for tensor in tensors))


def _check_embeddings(lens: Lens, ids: Tensor, now: Tensor, then: Tensor, given: bool) -> None:
    """Wrong tokens change some rows of the embeddings, other weights change all of them."""
    off = _differences(now, then).amax(-1) > tolerance(now, then) * then.abs().max()
    if not off.any():
        return
    first = int(off.nonzero()[0])
    if given and len(ids) == 1:
        raise ValueError(
            f"tokens= do not match the cache: token {int(ids[0])} has another embedding than the one that is cached; "
            "leave tokens= out, or take the cache again if the model's weights or hooks have changed"
        )
    if given and not off.all():
        raise ValueError(
            f"tokens= do not match the cache: the embedding of token {int(ids[first])} at position {first} "
            "is not the cached one"
        )
    if given and _are_of_other_tokens(lens, then):
        raise ValueError("tokens= do not match the cache: they are those of another prompt; pass the ids that were run")
    raise ValueError(
        "the embeddings are not what the cache holds: the model's weights, or the hooks on it, have changed since the "
        "cache was taken, or cache.model is not the model it was taken from"
        + (", or tokens= are those of another prompt" if given else "")
    )


def _are_of_other_tokens(lens: Lens, embeddings: Tensor) -> bool:
    """Whether all are embeddings of the model as it is now."""
    try:
        return bool(Vocabulary.of(lens, [embeddings]).tokens(embeddings, needed=0))
    except ValueError:
        return False


def _check_same(name: str, now: Tensor, then: Tensor, *, sliced: bool) -> float:
    """The largest difference relative to the largest entry, refused above the tolerance. -inf is only like itself."""
    here, there = (activation > -torch.inf for activation in (now, then))
    if now.shape != then.shape:
        raise ValueError(
            f"{name} is {tuple(then.shape)} in the cache and {tuple(now.shape)} in a run of the model: take the cache "
            "of the whole prompt, without pos_slice"
        )
    distance = torch.inf
    if torch.equal(here, there.to(here.device)):
        scale = float(then[there].abs().max()) or 1.0
        distance = float(_differences(now[here], then[there]).max()) / scale
    if distance > tolerance(now, then):
        part = ", or it holds only a part of the prompt (pos_slice=)" if sliced else ""
        raise ValueError(
            f"{name} is not what the cache holds (off by {distance:.1e} of its size): the model's weights, or the "
            "hooks on it, have changed since the cache was taken, or it was run with another attention_mask"
            f"{part}; take it again"
        )
    return distance


def _differences(now: Tensor, then: Tensor) -> Tensor:
    exact = torch.promote_types(now.dtype, then.dtype)
    return (now.to(exact) - then.to(now.device, exact)).abs()


def _bits(table: Float[Tensor, "row d"]) -> list[bytes]:
    """Every row's bits, which compare and hash exactly."""
    bits = table.detach().cpu().contiguous().view(torch.uint8).numpy()
    return [row.tobytes() for row in bits]


def _found(cache: Any) -> tuple[dict[str, Tensor], int]:
    """The activations there are, by hook point, with a batch dimension; and how many prompts they are of.

    A bridge may have stored an activation under its own name for a hook point.
    """
    layers = range(len(cache.model.blocks))
    names = [EMBED, *map(pattern_name, layers), *map(values_name, layers), READ, OUT]
    points = cache.model.hook_dict
    keys = {name: {name, points[name].name} & cache.cache_dict.keys() for name in names}
    found = {name: cache.cache_dict[key] for name, stored in keys.items() for key in stored}
    if any(activation.is_meta for activation in found.values()):
        raise ValueError("the cache is on the meta device, which keeps no values: take it again, on cpu or cuda")
    if EMBED not in found:
        return found, 1
    if found[EMBED].ndim < 3:
        found = {name: activation[None] for name, activation in found.items()}
    return found, len(found[EMBED])
