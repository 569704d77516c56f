"""The gradient under modified rules (AttnLRP, GIM): hooks that keep every value of a run and change its gradient."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, Literal, TypeAlias

import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor

from heta_lens._util.options import AtLeast
from heta_lens.methods.base import Scores, WithMask
from heta_lens.methods.gradients import CleanGradient, Hooks
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.hooks import attention_inputs, pattern_name
from heta_lens.model.norms_and_neurons import Neurons, irregularity, neurons, norms
from heta_lens.prediction.gradients import CleanGradients
from heta_lens.prediction.masking import Masking, mask_vector
from heta_lens.prediction.prediction import Prediction

Rule: TypeAlias = Literal["attn_lrp", "cp_lrp", "relp"]
Gates: TypeAlias = Literal["halved", "constant"]
Shares: TypeAlias = tuple[float, float, float]  # of the gradients of queries, keys and values

RULES: dict[Rule, tuple[Shares, Gates]] = {
    "attn_lrp": ((1 / 4, 1 / 4, 1 / 2), "halved"),
    "cp_lrp": ((0.0, 0.0, 1.0), "constant"),
    "relp": ((1.0, 1.0, 1.0), "halved"),
}
TINY = 1e-10  # added to divisors


@dataclass(frozen=True, eq=False, kw_only=True)
class ModifiedGradient(CleanGradient):
    """A modified gradient of the target's logit, for models whose components have rules."""

    def measure(self, prediction: Prediction, logits: Float[Tensor, "vocab"]) -> Float[Tensor, ""]:
        return prediction.read(logits, "logit")

    def check(self, prediction: Prediction) -> None:
        super().check(prediction)
        if unusual := irregularity(prediction.adapter):
            raise ValueError(f"method={self.name!r} has no rule for a model that {unusual}: choose another method")
        adapter = prediction.adapter
        after = {mlp.after for layer in range(adapter.layers) if (mlp := neurons(adapter, layer))}
        within = {name for name, _ in self.hooks(adapter)} - after - {name for name, _ in at_norms(adapter)}
        if inside := [name for name in adapter.reads if name in within or "hook_rot_" in name]:
            raise ValueError(
                f"method={self.name!r} changes the gradient at {inside[0]}, so it cannot explain that: take one "
                "before or after it, or another method, such as 'input_x_gradient'"
            )


@dataclass(frozen=True, eq=False, kw_only=True)
class AttnLrp(ModifiedGradient):
    """AttnLRP (Achtibat 2024), CP-LRP (Ali 2022) and RelP (2025): relevance propagated from the logit to embeddings.

    ``a_i = Σ_c E_ic G_ic``: above 0 speaks for the target.

    G is the gradient of the target's logit (of a contrast, of the difference; of a set, of ``log Σ exp`` of the logits;
    of a function, of its value) under modified rules that conserve relevance: norms (of queries and keys too) divide by
    a constant, an activation uses ``f(x) / x`` in place of its slope, and each factor of a product gets a share.
    ``diagnostics["absorbed"]`` is the rest, the logit less the sum of the scores: with ``cp_lrp``, what biases and
    positions receive; with the other rules, also what softmax loses; of a set or a function, also what in it is not
    linear. Where weights were processed so that logits are centred, the centred logit is explained; a contrast is the
    same either way. lxt's README says that LRP is patented and free for personal and scientific use.

    - ``rule``: ``attn_lrp`` halves what flows through a product: values get a half, queries and keys a quarter each, a
      gate and what it multiplies a half each; ``cp_lrp`` takes patterns and gates as constants and halves nothing;
      ``relp`` halves at gates, and leaves the gradient of attention as it is. The authors of AttnLRP use the first for
      models with gates and RMS norms, like Llama, and the second for models like GPT-2.
    """

    rule: Rule = "attn_lrp"

    name: ClassVar = "attn_lrp"
    paper: ClassVar[str] = (
        "Achtibat et al., AttnLRP: attention-aware layer-wise relevance propagation for transformers, ICML 2024, "
        "arXiv:2402.05602; Ali et al., XAI for transformers: better explanations through conservative "
        "propagation, ICML 2022, arXiv:2202.07304; Rezaei Jafari et al., RelP: faithful and efficient circuit "
        "discovery in language models via relevance patching, 2025, arXiv:2508.21258"
    )
    cost: ClassVar = "F + B, changed"
    unit: ClassVar = "logits"
    fixed: ClassVar = "the weights, the other tokens, and what norms divide by; with cp_lrp, attention and gates too"

    def hooks(self, adapter: ModelAdapter) -> Hooks:
        shares, gates = RULES[self.rule]
        hooks = [*at_norms(adapter), *at_attention(adapter, shares)]
        for layer in range(adapter.layers):
            if mlp := neurons(adapter, layer):
                hooks += at_neurons(mlp, gates)
        return hooks

    def scores(self, prediction: Prediction, value: float, gradient: Float[Tensor, "pos d"]) -> Scores:
        scores = einsum(prediction.embeddings, gradient, "pos d, pos d -> pos")
        return Scores(scores, {"absorbed": value - float(scores.sum())})


@dataclass(frozen=True, eq=False, kw_only=True)
class Gim(ModifiedGradient, WithMask):
    """GIM, gradient interaction modifications (Edin 2025): a gradient that survives a saturated softmax.

    ``a_i = Σ_c (E - E')_ic G_ic``, where E' is a mask's embedding: above 0 speaks for the target.

    G is the gradient of the target's logit (of a contrast, of the difference; of a set, of ``log Σ exp`` of the logits;
    of a function, of its value) under modified rules: a softmax passes its gradient back as one at a higher temperature
    would, so that a token that gets all of the attention has a gradient too; queries and keys pass on a quarter each,
    and values a half; norms divide by a constant.

    - ``mask``: E': ``space``, the token of a blank (without one, as ``pad``); or as for other methods
    - ``temperature``: the temperature of the softmax
    """

    mask: Masking = "space"
    temperature: Annotated[float | int, AtLeast(1)] = 2

    name: ClassVar = "gim"
    paper: ClassVar = "Edin et al., GIM: improved interpretability for large language models, 2025, arXiv:2505.17630"
    cost: ClassVar = "F + B, changed"
    unit: ClassVar = "logits"
    fixed: ClassVar = "the weights, the other tokens, and what norms divide by"

    def hooks(self, adapter: ModelAdapter) -> Hooks:
        sinks = bool(getattr(adapter.model.cfg, "use_attention_sinks", False))
        softmaxes = [(pattern_name(layer), Tempered(self.temperature, sinks)) for layer in range(adapter.layers)]
        softmaxes[-1][1].reached = bool(adapter.reads)  # what is read may be before the last pattern
        return [*at_norms(adapter), *at_attention(adapter, (1 / 4, 1 / 4, 1 / 2)), *softmaxes]

    def check_run(self, run: CleanGradients) -> None:
        for layer, hook in enumerate(hook for _, hook in run.hooks if isinstance(hook, Tempered)):
            if not hook.reached:
                raise ValueError(
                    f"method='gim' changes attention's softmax, and hooks do not change that of layer {layer} "
                    "of this model: load it as a HookedTransformer, or choose another method, such as 'attn_lrp'"
                )

    def scores(self, prediction: Prediction, value: float, gradient: Float[Tensor, "pos d"]) -> Scores:  # noqa: ARG002
        change = prediction.embeddings - mask_vector(prediction, self.mask)
        return Scores(einsum(change, gradient, "pos d, pos d -> pos"))


# ---------------------------------------------------------------------------------------------------------------- rules
def at_norms(adapter: ModelAdapter) -> Hooks:
    """Let norms divide by a constant."""
    hooks: Hooks = []
    for norm in norms(adapter):
        scales: list[Tensor] = []
        hooks += [(norm.scale, scales.append), (norm.result, partial(steady, scales, norm.bias))]
    return hooks


def at_attention(adapter: ModelAdapter, shares: Shares) -> Hooks:
    """Let queries, keys and values of every layer pass on shares of the gradient."""
    layers = map(attention_inputs, range(adapter.layers))
    return [(name, partial(pass_on, share)) for names in layers for name, share in zip(names, shares, strict=True)]


def at_neurons(mlp: Neurons, gates: Gates) -> Hooks:
    """Let activations use ``f(x) / x`` in place of the slope; gates are constants, or halve the gradient."""
    into: list[tuple[Tensor, Tensor]] = []
    if mlp.gated is None:
        return [(mlp.before, partial(part, into)), (mlp.after, partial(activated, into))]
    if gates == "constant":
        return [(mlp.before, Tensor.detach)]
    gated: list[tuple[Tensor, Tensor]] = []
    return [
        (mlp.before, partial(part, into)),
        (mlp.gated, partial(part, gated)),
        (mlp.after, partial(multiplied, into, gated)),
    ]


def pass_on(share: float, value: Tensor) -> Tensor:
    """Return the same value, with a share of its gradient."""
    return value.detach() + share * live(value)


def live(value: Tensor) -> Tensor:
    """Return zero, with the gradient of a value."""
    return value - value.detach()


def steady(scales: list[Tensor], bias: Float[Tensor, "d"] | None, result: Tensor) -> Tensor:
    """Return a norm's result ``y = w (x - mean) / s + b``, with the gradient of a constant s.

    Some kinds of model do not let s be replaced, so the gradient that flows through s, ``-(y - b) ∂ log s``, is added
    with the other sign.
    """
    scaled = result.detach() if bias is None else result.detach() - bias
    return result + scaled * live(scales.pop().log()).to(result)


def part(parted: list[tuple[Tensor, Tensor]], value: Tensor) -> Tensor:
    """Detach the value from the rest of the run; `activated` and `multiplied` connect the result to the value again."""
    anew = value.detach().requires_grad_()
    parted.append((value, anew))
    return anew


def activated(into: list[tuple[Tensor, Tensor]], after: Tensor) -> Tensor:
    """Return ``y = f(x)``, with ``y / x`` in place of the slope; a y that a user's hook put there has no gradient."""
    before, anew = into.pop()
    passes = torch.where(slope(after, anew) == 0, 0, ratio(after, before))
    return after.detach() + passes * live(before)


def multiplied(into: list[tuple[Tensor, Tensor]], gated: list[tuple[Tensor, Tensor]], after: Tensor) -> Tensor:
    """Return ``f(x) z``, with half of its gradient for x and half for z."""
    before, _ = into.pop()
    other, anew = gated.pop()
    gate = slope(after, anew)
    change = gate * live(other) + ratio(gate * other, before) * live(before)
    return after.detach() + change / 2


def slope(after: Tensor, before: Tensor) -> Tensor:
    return torch.autograd.grad(after.sum(), before)[0] if after.requires_grad else torch.zeros_like(before)


def ratio(after: Tensor, before: Tensor) -> Tensor:
    exact = torch.promote_types(before.dtype, torch.float32)  # keeps TINY above 0
    return (after.detach().to(exact) / (before.detach().to(exact) + TINY)).to(before)


@dataclass(eq=False)
class Tempered:
    """A hook for a pattern p, whose gradient by scores s is ``σ ⊙ (g - ⟨g, σ⟩)``, with ``σ = softmax(s / T)``.

    Scores need not be read: ``log p`` is s up to a number that is the same for all keys, which changes no softmax.
    ``reached`` tells that a gradient arrived: some models do not read their patterns where hooks replace them.
    """

    temperature: float | int
    sinks: bool
    reached: bool = False

    def __call__(self, pattern: Float[Tensor, "batch head query key"]) -> Float[Tensor, "batch head query key"]:
        whole = pattern.to(torch.promote_types(pattern.dtype, torch.float32))
        if self.sinks:  # with one more score, for what no position gets
            whole = torch.cat([whole, 1 - whole.sum(-1, keepdim=True)], -1)
        numbers = torch.finfo(whole.dtype)
        visible = whole > numbers.tiny
        scores = whole.where(visible, 1).log().masked_fill(~visible, numbers.min)
        flatter = (scores / self.temperature).softmax(-1)[..., : pattern.shape[-1]]
        replaced = pattern.detach() + self.temperature * live(flatter).to(pattern)
        if replaced.requires_grad:
            replaced.register_hook(self._note)
        return replaced

    def _note(self, _: Tensor) -> None:
        self.reached = True
