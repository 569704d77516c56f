"""Caches: the activations and tokens of prompts, checked against the live model; and activations computed again."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from heta_lens._util.numerics import check_finite, differences, distance, tolerance
from heta_lens._util.options import check_token
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.hooks import EMBED, OUT, READ, Hook, note, pattern_names, values_names
from heta_lens.prediction.chat import ChatPrompt


@dataclass(frozen=True, eq=False, repr=False)
class Activations:
    """The activations of a single prompt by hook point, without a batch dimension."""

    tensors: Mapping[str, Tensor]

    @classmethod
    def of(cls, cache: Any) -> "Activations":
        """Read a cache of a single prompt; refuse a cache of several prompts."""
        prompts = cls.of_each(cache)
        if len(prompts) > 1:
            raise ValueError(
                f"the cache holds {len(prompts)} prompts and this is about one: cache it alone, or explain all of "
                "them with heta_lens.attribute_batch"
            )
        return prompts[0]

    @classmethod
    def of_each(cls, cache: Any) -> "list[Activations]":
        """Read the activations of every prompt in a cache, padding included.

        A bridge may have stored an activation under the bridge's name of a hook point.
        """
        layers, points, tensors = len(cache.model.blocks), cache.model.hook_dict, dict[str, Tensor]()
        for name in (EMBED, *pattern_names(layers), *values_names(layers), READ, OUT):
            for key in {name, points[name].name} & cache.cache_dict.keys():
                tensors[name] = cache.cache_dict[key]
        if EMBED in tensors and tensors[EMBED].ndim < 3:
            tensors = {name: activation[None] for name, activation in tensors.items()}
        rows = range(len(tensors[EMBED]) if EMBED in tensors else 1)
        return [cls({name: batch[row] for name, batch in tensors.items()}) for row in rows]

    def part(self, positions: slice) -> "Activations":
        """Return the activations at a range of positions."""
        both = {name: (slice(None), positions, positions) for name in self.tensors if name.endswith("pattern")}
        return Activations({name: tensor[both.get(name, positions)] for name, tensor in self.tensors.items()})

    def below(self, layers: int) -> "Activations":
        """Return the embeddings, and what the first blocks cached."""
        blocks = tuple(f"blocks.{layer}." for layer in range(layers))
        return Activations({name: each for name, each in self.tensors.items() if name.startswith((EMBED, *blocks))})

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.tensors:
            raise ValueError(
                f"the cache has no {name!r}; take it with "
                "model.run_with_cache(tokens, names_filter=heta_lens.names_filter), or without a filter"
            )
        return self.tensors[name]


# ------------------------------------------------------------------------------------------------------ cached tokens
Tokens: TypeAlias = "Tensor | Sequence[int] | ChatPrompt | None"


def numbers_of(given: Any, refusal: str) -> Tensor:
    """Return numbers as a tensor; refuse anything else."""
    try:
        return torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(refusal) from None


def recovered_tokens(adapter: ModelAdapter, prompts: Sequence[Float[Tensor, "_ d"]]) -> Iterator[list[int]]:
    """Yield the ids of each prompt with exactly these embeddings; refuse missing and shared embeddings."""
    owners: dict[bytes, list[int]] = {row: [] for embeddings in prompts for row in _bits(embeddings)}
    for token, row in enumerate(_bits(adapter.embedding_table().to(prompts[0].dtype))):
        if row in owners:
            owners[row].append(token)
    for embeddings in prompts:
        check_finite(embeddings, lambda position, _: f"the cached {EMBED} is not finite at position {position}")
        found = [owners[row] for row in _bits(embeddings)]
        for position, ids in enumerate(found):
            if len(ids) != 1:
                problem = f"tokens {ids[:5]} share" if ids else "no token of this model has"
                other = "" if ids else ", and see that cache.model is the model it was taken from, unchanged"
                raise ValueError(
                    f"{problem} the cached embedding at position {position}: pass tokens=, the ids you ran{other}"
                )
        yield [ids[0] for ids in found]


def _bits(table: Float[Tensor, "row d"]) -> list[bytes]:
    """Return every row's bits, which compare and hash exactly."""
    bits = table.detach().cpu().contiguous().view(torch.uint8).numpy()
    return [row.tobytes() for row in bits]


def cached_tokens(adapter: ModelAdapter, embeddings: Float[Tensor, "pos d"], tokens: Tokens) -> Int[Tensor, "pos"]:
    """Return the cached ids: the given ids, checked for shape and range, or else the ids of the embeddings."""
    if tokens is None:
        return torch.tensor(next(recovered_tokens(adapter, [embeddings])), device=adapter.device)
    if isinstance(tokens, ChatPrompt):
        if len(tokens) != len(embeddings):
            raise ValueError(
                f"tokens= is a chat of {len(tokens)} tokens, and the cached prompt has {len(embeddings)}: run "
                "chat.tokens whole, or pass chat.followed_by(ids) if further ids were run after it"
            )
        tokens = tokens.tokens
    ids = numbers_of(tokens, "tokens= takes the ids the model was run on, model.to_tokens(text), not the text")
    ids = ids.to(adapter.device)
    shape, ids = tuple(ids.shape), ids[0] if ids.ndim == 2 and len(ids) == 1 else ids
    if ids.is_floating_point() or ids.dtype == torch.bool or ids.shape != embeddings.shape[:1]:
        raise ValueError(
            f"tokens= must be the ids of the cached prompt, {len(embeddings)} of them; got {ids.dtype} of "
            f"shape {shape}: pass the ids that were run, with or without BOS as there, all cached, without pos_slice="
        )
    for token in ids.tolist():
        check_token("tokens", token, adapter.vocabulary)
    return ids.long().clone()


# -------------------------------------------------------------------------------------------------------- cache check
def check_causal(adapter: ModelAdapter, cached: Activations) -> None:
    """Refuse a cache in which tokens attend to later tokens; the configs of encoders do not always tell."""
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


Rules: TypeAlias = Callable[[ModelAdapter], Sequence[tuple[str, Hook]]]
"""Makes hooks that keep every value of a run, and may change its gradient."""


def no_rules(_: ModelAdapter) -> Sequence[tuple[str, Hook]]:
    """Leave the gradient as it is."""
    return []


@dataclass(frozen=True, eq=False)
class CleanRun:
    """A clean run with its graph, under hooks: what it began with, and the logits after contexts of these lengths.

    Logits that were differentiated are gone.
    """

    rules: Rules
    hooks: Sequence[tuple[str, Hook]]
    states: Float[Tensor, "pos d"]
    logits: dict[int, Float[Tensor, "vocab"]]


class Replay(NamedTuple):
    """Embeddings and logits of the cached prompt in another run."""

    embeddings: Float[Tensor, "pos d"]
    logits: Float[Tensor, "read vocab"]
    user_hooks: tuple[Any, ...]
    clean_run: CleanRun | None


def replay(
    adapter: ModelAdapter, cached: Activations, ids: Int[Tensor, "pos"], read: list[int], rules: Rules | None
) -> Replay:
    """Compare every activation with the cached one during a run, and read logits at the positions ``read``.

    With ``rules``, the run keeps its graph, unless hooks of the user are on the model, or memory is short.
    """
    user_hooks = tuple(adapter.user_hooks())
    whole = bool(user_hooks)  # all positions are unembedded, as the user's hooks expect
    graph = rules is not None and not whole and adapter.graph_fits(len(ids))
    hooks = rules(adapter) if rules is not None and graph else []
    embeddings = cached[EMBED]
    narrow = READ in cached.tensors and not hooks and not whole and adapter.can_narrow(read)

    def compare(name: str, activation: Tensor) -> Tensor | None:
        nonlocal embeddings
        now, then = activation[0].detach(), cached.tensors[name]
        if name == OUT:  # the rows that are read
            now, then = now[read] if whole else now, then[read]
        else:
            write = adapter.tokenizer.write
            check_finite(
                then,
                lambda at, _: f"the cached {name} is not finite at position {at}, token {write(int(ids[at]))!r}",
                axis=1 if name.endswith("pattern") else 0,
            )
        if name == READ and narrow:  # a trial, whose result is noted
            now, then = now if len(now) == len(read) else now[read], then[read]
            off, allowed = distance(now, then, adapter.rounding)
            adapter.narrow[adapter.last_mlp[0]] = off <= allowed
            return None
        if name == EMBED:
            exact = torch.promote_types(now.dtype, torch.float32)
            embeddings = now.to(exact, copy=True).requires_grad_(graph)
            if now.shape == then.shape:
                check_embeddings(adapter, ids, now, then)
        off, allowed = distance(now, then, adapter.rounding)
        if off > allowed:
            raise ValueError(
                f"{name} is not what the cache holds (off by {off:.1e} of its size): the model's weights, or the hooks "
                "on it, have changed since the cache was taken; or it was taken with an attention_mask, which "
                "attribute_batch(cache, attention_mask=...) takes, or with pos_slice=; take it again"
            )
        return embeddings[None].to(activation) if name == EMBED and graph else None

    watched = {name: partial(compare, name) for name in cached.tensors}
    with adapter.hooked(hooks), torch.set_grad_enabled(graph):
        logits = adapter.run(ids[None], watched, read=read, whole=whole, narrow=narrow)[0]
        if narrow and not adapter.narrow[adapter.last_mlp[0]]:
            narrow = False
            logits = adapter.run(ids[None], watched, read=read, whole=whole)[0]
    for position, bad in zip(read, ~(logits < torch.inf).all(-1), strict=True):
        if bad:
            raise ValueError(f"the model's own logits are not finite at position {position}: nothing can be explained")
    clean_run = None
    if rules is not None and graph:
        by_length = {position + 1: row for position, row in zip(read, logits, strict=True)}
        clean_run = CleanRun(rules, hooks, embeddings, by_length)
    return Replay(embeddings.detach(), logits.detach(), user_hooks, clean_run)


def check_embeddings(
    adapter: ModelAdapter, ids: Int[Tensor, "pos"], now: Float[Tensor, "pos d"], then: Float[Tensor, "pos d"]
) -> None:
    """Refuse different embeddings: wrong tokens change single rows, wrong weights change every row."""
    allowed = max(tolerance(now.dtype, then.dtype), adapter.rounding) * then.abs().max()
    off = differences(now, then).amax(-1) > allowed
    if off.all():
        raise ValueError(
            "the embeddings are not what the cache holds: the model's weights, or the hooks on it, have changed since "
            "the cache was taken, or cache.model is not the model it was taken from, or tokens=, if given, are those "
            "of another prompt"
        )
    if off.any():
        first = int(off.nonzero()[0])
        raise ValueError(
            f"the embedding of token {int(ids[first])} at position {first} is not the cached one: tokens=, if given, "
            "do not match the cache, or the hooks on the model have changed since the cache was taken"
        )


# --------------------------------------------------------------------------------------------------- live activations
def check_attends_back(adapter: ModelAdapter, layer: int, pattern: Float[Tensor, "head query key"]) -> None:
    """Refuse a model in which tokens attend to later tokens.

    Only the last two tokens are checked, because earlier padding may attend to everything.
    """
    if (pattern[:, -2:-1, -1] > 0).any():
        raise ValueError(
            f"{type(adapter.model).__name__} is not a decoder-only language model: "
            f"its layer {layer} attends to later tokens"
        )


@torch.no_grad()
def live(adapter: ModelAdapter, ids: Int[Tensor, "pos"], names: Sequence[str], *, hooked: bool) -> list[Tensor]:
    """Return activations of a prompt from a single run, with (``hooked``) or without hooks of the user."""
    batches: dict[str, Tensor] = {}
    adapter.run(ids[None], {name: note(batches, name) for name in names}, whole=hooked)
    return [batches[name][0] for name in names]
