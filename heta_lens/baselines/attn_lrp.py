"""AttnLRP (Achtibat 2024) and CP-LRP (Ali 2022): how much of the target's logit came from each token's embedding."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal, TypeAlias

import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor

from heta_lens.anatomy import Neurons, Norm, attention_inputs, irregularity, neurons, norms
from heta_lens.baselines.baseline import Baseline, Found
from heta_lens.lens import Hook, Lens
from heta_lens.prediction import Prediction
from heta_lens.progress import Work, count

Rule: TypeAlias = Literal["attn_lrp", "cp_lrp"]
Hooks: TypeAlias = list[tuple[str, Hook]]
Parted: TypeAlias = tuple[Tensor, Tensor]  # a value, and the one that takes its place

SHARES = {"attn_lrp": (1 / 4, 1 / 4, 1 / 2), "cp_lrp": (0.0, 0.0, 1.0)}  # of queries', keys' and values' gradients
TINY = 1e-10  # added to what is divided by


@dataclass(frozen=True, eq=False, kw_only=True)
class AttnLrp(Baseline):
    """``a_i = Σ_c E_ic G_ic``: above 0 speaks for the target.

    G is the gradient of the target's logit (of a contrast, of the difference) by rules that hand all of a value on to
    what it was made of: norms divide by a constant, an activation passes on ``f(x) / x`` instead of its slope, and of
    a product each factor gets its share. ``diagnostics["absorbed"]`` is the part of the logit that no token got, but
    biases, positions and (with ``attn_lrp``) softmax. Where weights were processed so that logits are centred, what is
    explained is the centred logit; a contrast is the same either way.

    - ``rule``: ``attn_lrp`` halves what a product passes on: values get a half, queries and keys a quarter each, a gate
      and what it multiplies a half each; ``cp_lrp`` takes patterns and gates as given, and halves nothing. Its authors
      take the first for models with gates and RMS norms, like Llama, and the second for models like GPT-2.
    """

    rule: Rule = "attn_lrp"

    name: ClassVar = "attn_lrp"
    cost: ClassVar = "F + B, changed"

    def check(self, prediction: Prediction) -> None:
        strange = irregularity(prediction.lens)
        if strange:
            raise ValueError(f"method={self.name!r} has no rule for a model that {strange}: choose another method")

    def work(self, prediction: Prediction) -> dict[str, int]:  # noqa: ARG002
        return {"forwards": 1, "backwards": 1}

    def explain(self, asked: Prediction, work: Work) -> Found:
        leaf = asked.embeddings.detach().clone().requires_grad_()
        with asked.lens.hooked(rules(asked.lens, self.rule)):
            logit = asked.read(asked.logits_from()(leaf[None])[0], "logit")
        (gradient,) = torch.autograd.grad(logit, leaf)
        count("backwards", 1)
        work.add("forwards", 1)
        work.add("backwards", 1)
        scores = einsum(asked.embeddings, gradient, "pos d, pos d -> pos")
        return scores, {"absorbed": float(logit.detach() - scores.sum())}


def rules(lens: Lens, rule: Rule) -> Hooks:
    """They leave every value as it is, and change what flows back from it."""
    hooks = [hook for norm in norms(lens) for hook in at_norm(norm)]
    for layer in range(lens.layers):
        names = attention_inputs(layer)
        hooks += [(name, partial(pass_on, share)) for name, share in zip(names, SHARES[rule], strict=True)]
        mlp = neurons(lens, layer)
        if mlp is not None:
            hooks += at_neurons(mlp, rule)
    return hooks


def at_norm(norm: Norm) -> Hooks:
    scales: list[Tensor] = []
    return [(norm.scale, scales.append), (norm.result, partial(steady, scales, norm.bias))]


def at_neurons(mlp: Neurons, rule: Rule) -> Hooks:
    into: list[Parted] = []
    if mlp.gated is None:
        return [(mlp.before, partial(part, into)), (mlp.after, partial(activated, into))]
    if rule == "cp_lrp":
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
    """Nothing, with the gradient of a value."""
    return value - value.detach()


def steady(scales: list[Tensor], bias: Float[Tensor, "d"] | None, result: Tensor) -> Tensor:
    """A norm's result ``y = w (x - mean) / s + b``, as if s were a constant.

    Not every kind of model lets s be replaced, so the gradient that flows through it, ``-(y - b) ∂ log s``, is added
    with the other sign.
    """
    scaled = result.detach() if bias is None else result.detach() - bias
    return result + scaled * live(scales.pop().log()).to(result)


def part(seen: list[Parted], value: Tensor) -> Tensor:
    """Let what follows begin anew; what it comes to is joined to the value again where it ends."""
    anew = value.detach().requires_grad_()
    seen.append((value, anew))
    return anew


def activated(into: list[Parted], after: Tensor) -> Tensor:
    """``y = f(x)``, with ``y / x`` in place of the slope; a y that somebody's hook put there passes on nothing."""
    before, anew = into.pop()
    passes = torch.where(slope(after, anew) == 0, 0, ratio(after, before))
    return after.detach() + passes * live(before)


def multiplied(into: list[Parted], gated: list[Parted], after: Tensor) -> Tensor:
    """``f(x) z``, half of it passed on to x and half to z."""
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
