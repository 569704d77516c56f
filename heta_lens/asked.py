"""What was asked: which token of a prompt, read after how many others, and which ids were meant."""

from operator import index
from typing import Any, SupportsIndex, TypeAlias

from jaxtyping import Float, Int
from torch import Tensor

from heta_lens.attribution import Target
from heta_lens.lens import Lens
from heta_lens.options import check_token, is_whole

Token: TypeAlias = SupportsIndex | str
Asked: TypeAlias = Token | tuple[Token, Token] | None  # what a caller may write for a target


def context_length(cached: int, position: SupportsIndex | None) -> int:
    """How many tokens come before the one at ``position``; all cached ones, when the next token is explained."""
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
        raise TypeError(f"target={target!r} must be a token id, its text, or a pair of these, (a, b)")
    check_token("target", index(target), size)
    return index(target)


def check_target(lens: Lens, log_probs: Float[Tensor, "vocab"], target: Target) -> None:
    for token in target if isinstance(target, tuple) else (target,):
        if not log_probs[token].isfinite():
            raise ValueError(f"log p of the target {lens.speller.write(token)!r} is {float(log_probs[token])}")
