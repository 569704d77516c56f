"""AttnLRP (Achtibat 2024) and CP-LRP (Ali 2022): relevance propagated from the target's logit to the embeddings."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal, TypeAlias

import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor

from heta_lens._util.work_counting import Work, count
from heta_lens.methods.base import Method, Scores
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.hook_sites import attention_inputs
from heta_lens.model.hooking import Hook
from heta_lens.model.norms_and_neurons import Neurons, Norm, irregularity, neurons, norms
from heta_lens.prediction.prediction import Prediction

Rule: TypeAlias = Literal["attn_lrp", "cp_lrp"]
Hooks: TypeAlias = list[tuple[str, Hook]]
Parted: TypeAlias = tuple[Tensor, Tensor]  # a value, and the one that takes its place

SHARES = {"attn_lrp": (1 / 4, 1 / 4, 1 / 2), "cp_lrp": (0.0, 0.0, 1.0)}  # of queries', keys' and values' gradients
TINY = 1e-10  # added to divisors


@dataclass(frozen=True, eq=False, kw_only=True)
class AttnLrp(Method):
    """``a_i = Σ_c E_ic G_ic``: above 0 speaks for the target.

    G is the gradient of the target's logit (of a contrast, of the difference; of a set, of ``log Σ exp`` of the logits;
    of a function, of its value) under modified rules that conserve relevance: norms divide by a constant, an activation
    uses ``f(x) / x`` in place of its slope, and each factor of a product gets a share. ``diagnostics["absorbed"]`` is
    the part of the logit that no token received: it goes to biases, positions and (with ``attn_lrp``) softmax; of a set
    or a function, also to what in it is not linear. Where weights were processed so that logits are centred, the
    centred logit is explained; a contrast is the same either way.

    - ``rule``: ``attn_lrp`` halves what flows through a product: values get a half, queries and keys a quarter each, a
      gate and what it multiplies a half each; ``cp_lrp`` takes patterns and gates as constants and halves nothing. The
      authors use the first for models with gates and RMS norms, like Llama, and the second for models like GPT-2.
    """

    rule: Rule = "attn_lrp"

    name: ClassVar = "attn_lrp"
    family: ClassVar = "gradient"
    differentiates: ClassVar = True
    cost: ClassVar = "F + B, changed"

    def check(self, prediction: Prediction) -> None:
        super().check(prediction)
        unusual = irregularity(prediction.adapter)
        if unusual:
            raise ValueError(f"method={self.name!r} has no rule for a model that {unusual}: choose another method")

    def work(self, prediction: Prediction) -> dict[str, int]:  # noqa: ARG002
        return {"forwards": 1, "backwards": 1}

    def explain(self, prediction: Prediction, progress: Work) -> Scores:
        leaf = prediction.embeddings.detach().clone().requires_grad_()
        with prediction.adapter.hooked(rules(prediction.adapter, self.rule)):
            logit = prediction.read(prediction.logits_from()(leaf[None])[0], "logit")
        (gradient,) = torch.autograd.grad(logit, leaf)
        count("backwards", 1)
        progress.add("forwards", 1)
        progress.add("backwards", 1)
        scores = einsum(prediction.embeddings, gradient, "pos d, pos d -> pos")
        return Scores(scores, {"absorbed": float(logit.detach() - scores.sum())})


def rules(adapter: ModelAdapter, rule: Rule) -> Hooks:
    """Hooks that leave every value unchanged and modify its gradient."""
    hooks = [hook for norm in norms(adapter) for hook in at_norm(norm)]
    for layer in range(adapter.layers):
        names = attention_inputs(layer)
        hooks += [(name, partial(pass_on, share)) for name, share in zip(names, SHARES[rule], strict=True)]
        mlp = neurons(adapter, layer)
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
