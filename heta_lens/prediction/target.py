"""Targets: which token of a prompt is explained, after how many others, and which ids a caller meant."""

from operator import index
from typing import Any, NamedTuple, SupportsIndex, TypeAlias

from jaxtyping import Float, Int
from torch import Tensor

from heta_lens._util.options import check_token, is_whole
from heta_lens.attribution import Target
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.token_matching import Spelled

Token: TypeAlias = SupportsIndex | str
TargetLike: TypeAlias = Token | tuple[Token, Token] | None  # what a caller may write for a target


def context_length(cached: int, position: SupportsIndex | None) -> int:
    """How many tokens come before the one at ``position``; all cached ones if the next token is explained."""
    if cached == 0:
        raise ValueError("the cached prompt is empty: there is no context to explain a target from")
    if position is None:
        return cached
    if not is_whole(position):
        raise TypeError(
            f"position={position!r} must be a whole number, a place in the cached prompt; or in a batch a list of them"
        )
    place = index(position)
    if not -cached <= place < cached:
        raise ValueError(f"position={place} is outside the cached prompt of {cached} tokens")
    if place % cached == 0:
        raise ValueError(f"position={place} is the first token, which has no context: nothing comes before it")
    return place % cached


class Resolved(NamedTuple):
    """A target's id (or a contrastive pair's ids), and the other tokens that write the text it was given as."""

    target: Target
    others: tuple[int, ...] = ()


def resolve(
    adapter: ModelAdapter, context: Int[Tensor, "pos"], target: TargetLike, log_probs: Float[Tensor, "vocab"]
) -> Resolved:
    """The tokens that are meant, among those the model can write after this context."""
    if not isinstance(target, tuple):
        return Resolved(*token_of(adapter, context, target, log_probs))
    if len(target) != 2:
        raise ValueError(f"target={target!r} must be a pair (a, b), to explain log p(a) - log p(b)")
    first, second = (token_of(adapter, context, half, log_probs) for half in target)
    if first.token == second.token:
        raise ValueError(f"target={target!r} contrasts a token with itself")
    return Resolved((first.token, second.token), first.others + second.others)


def token_of(
    adapter: ModelAdapter, context: Int[Tensor, "pos"], target: Any, log_probs: Float[Tensor, "vocab"]
) -> Spelled:
    """A single token, given by its id or as text."""
    if isinstance(target, str):
        return adapter.tokenizer.find(target, context.tolist(), log_probs.tolist())
    if isinstance(target, list):
        raise TypeError(
            f"target={target!r} is a list: give one token id or its text, a pair as a tuple (a, b), a list only as "
            "targets= of attribute_span or attribute_batch"
        )
    if not is_whole(target):
        raise TypeError(f"target={target!r} must be a token id, its text, or a pair of these, (a, b)")
    check_token("target", index(target), len(log_probs))
    return Spelled(index(target))


def check_target(adapter: ModelAdapter, log_probs: Float[Tensor, "vocab"], target: Target) -> None:
    for token in target if isinstance(target, tuple) else (target,):
        if not log_probs[token].isfinite():
            raise ValueError(f"log p of the target {adapter.tokenizer.write(token)!r} is {float(log_probs[token])}")
