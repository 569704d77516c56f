"""Targets: the tokens or the function to explain, and the target's likelihood, read from logits on a scale."""

from collections.abc import Sequence, Set
from dataclasses import replace
from math import isfinite, prod
from operator import index
from typing import Any, Literal, SupportsIndex, TypeAlias

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from heta_lens._util.files import brief
from heta_lens._util.options import check_token, is_whole
from heta_lens._util.target_kinds import (
    Activation,
    SavedFunction,
    Side,
    Target,
    TargetFunction,
    function_name,
    members,
)
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.batching import out_of_memory

Scale: TypeAlias = Literal["log_prob", "prob", "logit", "log_odds"]
Token: TypeAlias = SupportsIndex | str
SideLike: TypeAlias = Token | Set[Token]
TargetLike: TypeAlias = (
    SideLike | tuple[SideLike, SideLike] | TargetFunction | Activation | tuple[Activation, Activation] | None
)
"""A target as a caller may write it."""

CONNECTED = "avoid .item(), .detach(), argmax and comparisons, or choose a method that takes no gradients"


# -------------------------------------------------------------------------------------------------------- likelihoods
def log_softmax(logits: Float[Tensor, "*batch vocab"]) -> Float[Tensor, "*batch vocab"]:
    """Compute log-probabilities in float64 if possible: a confident prediction's ``1 - p`` is lost in float32."""
    return exact(logits).log_softmax(-1).to(logits)


def exact(values: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Return values in float64, where the device has it."""
    return values if values.device.type == "mps" else values.double()


def on_scale(logits: Float[Tensor, "*batch vocab"], tokens: Side, scale: Scale) -> Float[Tensor, "*batch"]:
    """Return the likelihood of a token or of a set, whose logit is ``log Σ exp`` of the members' logits."""
    if scale == "logit":
        return joint_logit(logits, tokens)
    precise = exact(logits)
    logit = joint_logit(precise, tokens)
    if scale == "log_odds":  # exact for a certain prediction too
        others = precise.index_fill(-1, torch.tensor(members(tokens), device=logits.device), -torch.inf)
        return (logit - others.logsumexp(-1)).to(logits)
    log_prob = (logit - precise.logsumexp(-1)).to(logits)
    return log_prob.exp() if scale == "prob" else log_prob


def joint_logit(logits: Float[Tensor, "*batch vocab"], tokens: Side) -> Float[Tensor, "*batch"]:
    return logits[..., tokens] if isinstance(tokens, int) else logits[..., members(tokens)].logsumexp(-1)


# --------------------------------------------------------------------------------------------------- target functions
# A target function takes the next token's logits of one prediction, not normalised, in float32 or better.
def check_scale(target: Target, scale: Scale, default: Scale | None) -> None:
    """Refuse a chosen scale (other than the default) for a function, whose values have a scale already."""
    if callable(target) and scale != default:
        raise ValueError(
            f"scale={scale!r} has no effect with the function target={function_name(target)}, whose values are on a "
            "scale of their own: leave it out"
        )


def values_of(function: TargetFunction, logits: Float[Tensor, "*batch vocab"]) -> Float[Tensor, "*batch"]:
    """Call the function for one prediction at a time, because functions need not know of batches.

    A value that does not depend on the logits, as in a branch of a condition, has a gradient of 0.
    """
    rows = logits.reshape(-1, logits.shape[-1])
    values = [called(function, row) for row in rows]
    if logits.requires_grad:
        values = [value + row[:0].sum() for value, row in zip(values, rows, strict=True)]
    return torch.stack(values).reshape(logits.shape[:-1])


def called(function: TargetFunction, logits: Float[Tensor, "vocab"]) -> Float[Tensor, ""]:
    """Return a function's value; refuse values that are no finite number. The function may change the logits' copy."""
    name = function_name(function)
    try:
        value: Any = function(logits.clone())
    except Exception as error:  # a user's function may raise anything
        if isinstance(error, RuntimeError) and out_of_memory(error):
            raise
        why = brief(str(error).partition("\n")[0])
        raise ValueError(f"the function target={name} raised {type(error).__name__}: {why}") from error
    if not isinstance(value, Tensor) or value.shape != () or not value.dtype.is_floating_point:
        gave = f"{value.dtype} of shape {tuple(value.shape)}" if isinstance(value, Tensor) else brief(value)
        raise TypeError(
            f"the function target={name} gave {gave}: it must return a tensor of one real number, of shape ()"
        )
    if not value.isfinite():
        raise ValueError(f"the function target={name} gave {float(value)}: it must be finite, whatever it reads")
    return value.to(logits) if logits.requires_grad else value.detach().to(logits)  # the function may have weights


def check_connected(function: TargetFunction, read: Float[Tensor, "read"]) -> None:
    """Refuse a function that autograd cannot differentiate by what it reads: the logits, or an activation."""
    name, by = function_name(function), f"by the {'activation' if isinstance(function, Activation) else 'logits'}"
    with torch.inference_mode(False), torch.enable_grad():
        leaf = read.detach().clone().requires_grad_()
        value = called(function, leaf)
        try:
            (gradient,) = torch.autograd.grad(value, leaf)
        except (RuntimeError, NotImplementedError) as error:
            raise ValueError(f"the function target={name} has no gradient {by}: {CONNECTED}") from error
    if not gradient.isfinite().all():
        raise ValueError(f"the function target={name} has a gradient {by} that is not finite: {CONNECTED}")


# --------------------------------------------------------------------------------------------------------- activations
def activation(
    hook_name: str,
    *,
    index: int | None = None,
    head: int | None = None,
    direction: Tensor | Float[np.ndarray, "d"] | None = None,
    function: TargetFunction | None = None,
    at: int | None = None,
) -> Activation:
    """Name a number inside the model as a target: which tokens made this neuron, head, probe or feature fire?

    ``attribute(cache, activation("blocks.5.hook_resid_post", direction=probe))`` explains the number at the last token
    of the context. No block above the activation runs.

    - ``index``: a component, such as a neuron of ``blocks.5.mlp.hook_post``
    - ``direction``: a vector, such as a probe or a row of an encoder, whose product with the activation is explained
    - ``function``: a function of the activation, which returns a tensor of shape (), such as a feature after its
      nonlinearity
    - ``head``: the head of an activation by heads, such as ``blocks.5.attn.hook_z``; the other options apply to it
    - ``at``: the position at which the activation is read, by default the last; ``position=at + 1`` does the same

    A pair of activations explains the difference of their numbers.

    Example:
        >>> neuron = heta_lens.activation("blocks.2.mlp.hook_post", index=5)
        >>> heta_lens.attribute(cache, neuron, tokens=tokens, method="fast").top(1)[0].text
        ' box'
    """
    if sum(way is not None for way in (index, direction, function)) != 1:
        point = hook_name.replace("hook_pattern", "hook_z")  # a pattern has no row per token, the head's output has
        of_head = f", head={head or 0}" if head is not None or "attn.hook_" in point else ""
        raise TypeError(
            f"activation({hook_name!r}) takes one of index=, direction= and function=, to make a number of it, such as "
            f"activation({point!r}{of_head}, index=0)"
        )
    if direction is not None:
        with torch.inference_mode(False):  # where it was made in inference mode, gradients could not use it
            direction = torch.as_tensor(direction).detach().clone()
    return Activation(hook_name, index, head, direction, function, at=at)


def placed(target: Activation, reads: Sequence[str], shapes: Sequence[tuple[int, ...]]) -> Activation:
    """Return the target with the place of its activation in what a run returns; refuse what does not fit its shape."""
    number, name = reads.index(target.hook_name), target.hook_name
    if isinstance(target.function, SavedFunction):
        raise ValueError(f"a file holds only the name of {target.name}: give activation({name!r}, function=…) anew")
    shape = shapes[number]
    if len(shape) == 2 and target.head is None and target.function is None:
        raise ValueError(
            f"activation({name!r}) has {shape[0]} heads of {shape[1]} components: give head= too, such as head=0"
        )
    for axis, chosen in (("head", target.head), ("index", target.index)):
        most = shape[0] if axis == "head" else shape[-1]
        if axis == "head" and chosen is not None and len(shape) != 2:
            raise ValueError(f"activation({name!r}) is of shape {shape}, without heads: leave head={chosen!r} out")
        if chosen is not None and not (is_whole(chosen) and 0 <= index(chosen) < most):
            raise ValueError(f"{axis}={chosen!r} is none of the {most} that activation({name!r}) has, from 0 on")
    if target.direction is not None and target.direction.shape != shape[-1:]:
        raise ValueError(
            f"direction has the shape {tuple(target.direction.shape)}, and activation({name!r}) has {shape[-1]} "
            "components"
        )
    whole = {axis: index(own) for axis, own in (("head", target.head), ("index", target.index)) if own is not None}
    offset = sum(prod(shape) for shape in shapes[:number])
    minus = target.minus and placed(target.minus, reads, shapes)
    return replace(target, offset=offset, shape=shape, minus=minus, **whole)


def position_after(at: SupportsIndex, cached: int) -> int | None:
    """Return the position after the token at which an activation is read; None after the last."""
    if not (is_whole(at) and -cached <= index(at) < cached):
        raise ValueError(f"at={at!r} is none of the {cached} tokens of the cached prompt")
    return (index(at) + 1) % cached or None


def as_activation(target: Any) -> Activation | None:
    """Return a target that is an activation, or a pair of these, as an activation; None for other targets."""
    if isinstance(target, tuple) and any(isinstance(side, Activation) for side in target):
        if len(target) != 2 or not all(isinstance(side, Activation) for side in target):
            raise TypeError(f"target={brief(target)} must be a pair of activations, to explain their difference")
        first, second = target
        if second.at is not None:
            raise ValueError(f"at={second.at} of the second activation: both are read at one token, the first's")
        return replace(first, minus=second)
    return target if isinstance(target, Activation) else None


# ---------------------------------------------------------------------------------------------------- targets as given
def context_length(cached: int, position: SupportsIndex | None) -> int:
    """Return the number of tokens before ``position``; the whole prompt if the next token is explained."""
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


def resolve(
    adapter: ModelAdapter, context: Int[Tensor, "pos"], target: TargetLike, log_probs: Float[Tensor, "vocab"]
) -> Target:
    """Return the ids of a target after the context, or the function.

    Values that are no target are refused, and tokens or sets with a probability of 0.
    """
    if callable(target):
        if isinstance(target, SavedFunction):
            raise ValueError(target.why)
        return target
    if not isinstance(target, tuple):
        return tokens_of(adapter, context, target, log_probs)
    if len(target) != 2:
        raise ValueError(f"target={target!r} must be a pair (a, b), to explain log p(a) - log p(b)")
    if any(map(callable, target)):
        raise TypeError(f"target={target!r} has a function in a pair: let one function return the difference")
    first, second = (tokens_of(adapter, context, side, log_probs) for side in target)
    if both := {*members(first)} & {*members(second)}:
        shared = adapter.tokenizer.write(min(both), context.tolist())
        raise ValueError(f"target={target!r} contrasts {shared!r} with itself: leave it out of one side")
    return first, second


def tokens_of(
    adapter: ModelAdapter, context: Int[Tensor, "pos"], target: Any, log_probs: Float[Tensor, "vocab"]
) -> Side:
    """Return a token or a set of tokens; a repeated token counts once."""
    given = target if isinstance(target, Set) else [target]
    tokens = frozenset(token_of(adapter, context, member, log_probs) for member in given)
    if not tokens:
        raise ValueError("target is an empty set: it names no token to explain")
    side = tokens if len(tokens) > 1 else min(tokens)
    if not isfinite(log_prob := float(joint_logit(log_probs, side))):
        text = " or ".join(repr(adapter.tokenizer.write(token)) for token in members(side))
        raise ValueError(f"log p of the target {text} is {log_prob}")
    return side


def token_of(adapter: ModelAdapter, context: Int[Tensor, "pos"], target: Any, log_probs: Float[Tensor, "vocab"]) -> int:
    """Return a single token, given by id or as text."""
    if isinstance(target, str):
        return adapter.tokenizer.find(target, context.tolist(), log_probs.tolist())
    if not is_whole(target):
        raise TypeError(
            f"target={target!r} must be a token id, its text, a set {{a, b}} of these, a pair (a, b) of any of these, "
            "or a function of the logits; a list is for targets= of attribute_span or attribute_batch"
        )
    check_token("target", index(target), len(log_probs))
    return index(target)
