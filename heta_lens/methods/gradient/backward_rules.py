"""The gradient under modified rules: hooks that leave every value of a run unchanged, and change what flows back."""

from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from heta_lens._util.work_counting import Work, count
from heta_lens.methods.base import Method
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.hook_sites import attention_inputs
from heta_lens.model.hooking import Hook
from heta_lens.model.norms_and_neurons import Neurons, Norm, irregularity, neurons, norms
from heta_lens.prediction.prediction import Prediction

Hooks: TypeAlias = list[tuple[str, Hook]]
Shares: TypeAlias = tuple[float, float, float]  # of queries', keys' and values' gradients
Gates: TypeAlias = Literal["halved", "constant"]
Parted: TypeAlias = tuple[Tensor, Tensor]  # a value, and the one that takes its place

TINY = 1e-10  # added to divisors


@dataclass(frozen=True, eq=False, kw_only=True)
class WithModifiedGradient(Method):
    """A method of one modified backward pass, of models whose parts all have a rule."""

    def check(self, prediction: Prediction) -> None:
        super().check(prediction)
        unusual = irregularity(prediction.adapter)
        if unusual:
            raise ValueError(f"method={self.name!r} has no rule for a model that {unusual}: choose another method")

    def work(self, prediction: Prediction) -> dict[str, int]:  # noqa: ARG002
        return {"forwards": 1, "backwards": 1}


def modified_gradient(prediction: Prediction, hooks: Hooks, progress: Work) -> tuple[float, Float[Tensor, "pos d"]]:
    """The target's logit, and its gradient by the embeddings under these hooks."""
    leaf = prediction.embeddings.detach().clone().requires_grad_()
    with prediction.adapter.hooked(hooks):
        logit = prediction.read(prediction.logits_from()(leaf[None])[0], "logit")
    (gradient,) = torch.autograd.grad(logit, leaf)
    count("backwards", 1)
    progress.add("forwards", 1)
    progress.add("backwards", 1)
    return float(logit.detach()), gradient


def rules(adapter: ModelAdapter, shares: Shares, gates: Gates) -> Hooks:
    """All that AttnLRP and its relatives change, by the shares of queries, keys and values, and by what gates do."""
    hooks = [*at_norms(adapter), *at_attention(adapter, shares)]
    for layer in range(adapter.layers):
        mlp = neurons(adapter, layer)
        if mlp is not None:
            hooks += at_neurons(mlp, gates)
    return hooks


def at_norms(adapter: ModelAdapter) -> Hooks:
    """Norms divide by a constant."""
    return [hook for norm in norms(adapter) for hook in at_norm(norm)]


def at_attention(adapter: ModelAdapter, shares: Shares) -> Hooks:
    """Queries, keys and values of every layer pass on a share of their gradient each."""
    layers = map(attention_inputs, range(adapter.layers))
    return [(name, partial(pass_on, share)) for names in layers for name, share in zip(names, shares, strict=True)]


def at_norm(norm: Norm) -> Hooks:
    scales: list[Tensor] = []
    return [(norm.scale, scales.append), (norm.result, partial(steady, scales, norm.bias))]


def at_neurons(mlp: Neurons, gates: Gates) -> Hooks:
    """An activation uses ``f(x) / x`` in place of its slope; a gate is a constant, or halves what flows through it."""
    into: list[Parted] = []
    if mlp.gated is None:
        return [(mlp.before, partial(part, into)), (mlp.after, partial(activated, into))]
    if gates == "constant":
        return [(mlp.before, Tensor.detach)]
    gated: list[Parted] = []
    return [
        (mlp.before, partial(part, into)),
        (mlp.gated, partial(part, gated)),
        (mlp.after, partial(multiplied, into, gated)),
    ]


def pass_on(share: float, value: Tensor) -> Tensor:
    """The same value, with a share of its gradient."""
    return value.detach() + share * live(value)


def live(value: Tensor) -> Tensor:
    """Zero, with the gradient of a value."""
    return value - value.detach()


def steady(scales: list[Tensor], bias: Float[Tensor, "d"] | None, result: Tensor) -> Tensor:
    """A norm's result ``y = w (x - mean) / s + b``, as if s were a constant.

    Not every kind of model lets s be replaced, so the gradient that flows through it, ``-(y - b) ∂ log s``, is added
    with the other sign.
    """
    scaled = result.detach() if bias is None else result.detach() - bias
    return result + scaled * live(scales.pop().log()).to(result)


def part(parted: list[Parted], value: Tensor) -> Tensor:
    """Detach what follows from the value; `activated` and `multiplied` connect its result to the value again."""
    anew = value.detach().requires_grad_()
    parted.append((value, anew))
    return anew


def activated(into: list[Parted], after: Tensor) -> Tensor:
    """``y = f(x)``, with ``y / x`` in place of the slope; a y that a user's hook put there has no gradient."""
    before, anew = into.pop()
    passes = torch.where(slope(after, anew) == 0, 0, ratio(after, before))
    return after.detach() + passes * live(before)


def multiplied(into: list[Parted], gated: list[Parted], after: Tensor) -> Tensor:
    """``f(x) z``, with half of its gradient for x and half for z."""
    before, _ = into.pop()
    other, anew = gated.pop()
    gate = slope(after, anew)
    change = gate * live(other) + ratio(gate * other, before) * live(before)
    return after.detach() + change / 2


def slope(after: Tensor, before: Tensor) -> Tensor:
    if not after.requires_grad:
        return torch.zeros_like(before)
    return torch.autograd.grad(after.sum(), before)[0]


def ratio(after: Tensor, before: Tensor) -> Tensor:
    exact = torch.promote_types(before.dtype, torch.float32)  # in which TINY is not 0
    return (after.detach().to(exact) / (before.detach().to(exact) + TINY)).to(before)
