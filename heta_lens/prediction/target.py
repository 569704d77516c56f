"""Targets: what is explained, after how many tokens of a prompt, and which ids a caller meant."""

from collections.abc import Set
from math import isfinite
from operator import index
from typing import Any, NamedTuple, SupportsIndex, TypeAlias, TypeGuard

from jaxtyping import Float, Int
from torch import Tensor

from heta_lens._util.options import check_token, is_whole
from heta_lens._util.target_kinds import SavedFunction, Side, Target, TargetFunction, members, sides
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.token_matching import Spelled
from heta_lens.prediction.readout import joint_logit

Token: TypeAlias = SupportsIndex | str
SideLike: TypeAlias = Token | Set[Token]
TargetLike: TypeAlias = SideLike | tuple[SideLike, SideLike] | TargetFunction | None
"""What a caller may write for a target."""


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
        last = cached - 1
        way = f": give 1 to {last}, or -{last} to -1" if last else ""
        raise ValueError(f"position={place} is outside the cached prompt of {cached} tokens{way}")
    if place % cached == 0:
        raise ValueError(f"position={place} is the first token, which has no context: nothing comes before it")
    return place % cached


class Resolved(NamedTuple):
    """A target's ids (or the function), and the other tokens that write the texts it was given as."""

    target: Target
    others: tuple[int, ...] = ()


class Meant(NamedTuple):
    """One side of a target: a token or a set, and the other tokens that write the same texts."""

    tokens: Side
    others: tuple[int, ...]


def resolve(
    adapter: ModelAdapter, context: Int[Tensor, "pos"], target: TargetLike, log_probs: Float[Tensor, "vocab"]
) -> Resolved:
    """What is meant: tokens among those the model can write after this context, or a function of the logits."""
    if is_function(target):
        return Resolved(target)
    if not isinstance(target, tuple):
        return Resolved(*tokens_of(adapter, context, target, log_probs))
    if len(target) != 2:
        raise ValueError(f"target={target!r} must be a pair (a, b), to explain log p(a) - log p(b)")
    if any(map(callable, target)):
        raise TypeError(f"target={target!r} has a function in a pair: let one function return the difference")
    first, second = (tokens_of(adapter, context, side, log_probs) for side in target)
    both = {*members(first.tokens)} & {*members(second.tokens)}
    if first.tokens == second.tokens:
        raise ValueError(f"target={target!r} contrasts a token with itself")
    if both:
        shared = adapter.tokenizer.write(min(both), context.tolist())
        raise ValueError(f"target={target!r} has {shared!r} on both sides, which says nothing: leave it out of one")
    return Resolved((first.tokens, second.tokens), first.others + second.others)


def is_function(target: Any) -> TypeGuard[TargetFunction]:
    """Whether it is called with the logits; a class would make an object of them."""
    if isinstance(target, type):
        raise TypeError(f"target={target.__name__} is a class: give a function of the logits, or an object made of it")
    if isinstance(target, SavedFunction):
        raise ValueError(target.why)
    return callable(target)


def tokens_of(
    adapter: ModelAdapter, context: Int[Tensor, "pos"], target: Any, log_probs: Float[Tensor, "vocab"]
) -> Meant:
    """A token, or a set of several; of one that is given twice, or in two ways, once."""
    if not isinstance(target, Set):
        only = token_of(adapter, context, target, log_probs)
        return Meant(only.token, only.others)
    if not target:
        raise ValueError("target is an empty set: it names no token to explain")
    spelled = [token_of(adapter, context, member, log_probs) for member in target]
    tokens = frozenset(member.token for member in spelled)
    if len(tokens) == len(log_probs):
        raise ValueError(f"target= has all {len(tokens)} tokens there are, and one of them always comes next")
    others = {token for member in spelled for token in member.others} - tokens
    return Meant(tokens if len(tokens) > 1 else min(tokens), tuple(sorted(others)))


def token_of(
    adapter: ModelAdapter, context: Int[Tensor, "pos"], target: Any, log_probs: Float[Tensor, "vocab"]
) -> Spelled:
    """A single token, given by its id or as text."""
    if isinstance(target, str):
        return adapter.tokenizer.find(target, context.tolist(), log_probs.tolist())
    if isinstance(target, list):
        raise TypeError(
            f"target={target!r} is a list: give one token id or its text, a set {{a, b}} of several, a pair as a tuple "
            "(a, b), a list only as targets= of attribute_span or attribute_batch"
        )
    if not is_whole(target):
        raise TypeError(
            f"target={target!r} must be a token id, its text, a set of these, a pair of any of these, (a, b), or a "
            "function of the logits"
        )
    check_token("target", index(target), len(log_probs))
    return Spelled(index(target))


def check_target(adapter: ModelAdapter, log_probs: Float[Tensor, "vocab"], target: Target) -> None:
    """Refuse a token, or a set, that the model never writes."""
    for tokens in sides(target):
        log_prob = float(joint_logit(log_probs, tokens))
        if not isfinite(log_prob):
            text = " or ".join(repr(adapter.tokenizer.write(token)) for token in members(tokens))
            raise ValueError(f"log p of the target {text} is {log_prob}")
