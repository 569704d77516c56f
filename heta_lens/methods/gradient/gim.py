"""GIM, gradient interaction modifications (Edin 2025): a gradient in which tokens that share attention all count."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar

import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor

from heta_lens._util.options import AtLeast
from heta_lens._util.work_counting import Work
from heta_lens.methods.base import Scores
from heta_lens.methods.gradient.backward_rules import (
    Hooks,
    WithModifiedGradient,
    at_attention,
    at_norms,
    live,
    modified_gradient,
    pass_on,
)
from heta_lens.methods.shared_options import WithMask
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.hook_sites import pattern_name
from heta_lens.model.hooking import Hook
from heta_lens.model.norms_and_neurons import neurons
from heta_lens.prediction.masking import Masking
from heta_lens.prediction.prediction import Prediction

SHARES = (1 / 4, 1 / 4, 1 / 2)  # of queries', keys' and values' gradients


@dataclass(frozen=True, eq=False, kw_only=True)
class Gim(WithModifiedGradient, WithMask):
    """``a_i = Σ_c (E - E')_ic G_ic``, where E' is a mask's embedding: above 0 speaks for the target.

    G is the gradient of the target's logit (of a contrast, of the difference; of a set, of ``log Σ exp`` of the logits;
    of a function, of its value) under modified rules: a softmax passes its gradient back as one at a higher temperature
    would, so that a token that gets all of the attention has a gradient too; queries and keys pass on a quarter each,
    and values a half; norms divide by a constant.

    - ``mask``: what E' is: ``space``, the token of a blank (where there is none, as ``pad``); or as for other methods
    - ``temperature``: of that softmax
    - ``halve_gates``: let a gate and what it multiplies pass on a half each, as the paper's code does; the authors'
      package leaves them as they are
    """

    mask: Masking = "space"
    temperature: Annotated[float | int, AtLeast(1)] = 2
    halve_gates: bool = False

    name: ClassVar = "gim"
    paper: ClassVar[str] = (
        "Edin et al., GIM: improved interpretability for large language models, 2025, arXiv:2505.17630"
    )
    family: ClassVar = "gradient"
    differentiates: ClassVar = True
    cost: ClassVar = "F + B, changed"

    def explain(self, prediction: Prediction, progress: Work) -> Scores:
        change = prediction.embeddings - prediction.mask_vector(self.mask)
        changed: set[int] = set()
        _, gradient = modified_gradient(prediction, self._rules(prediction.adapter, changed.add), progress)
        if untouched := {*range(prediction.adapter.layers)} - changed:
            raise ValueError(
                f"method='gim' changes attention's softmax, and hooks do not change that of layer {min(untouched)} "
                "of this model: load it as a HookedTransformer, or choose another method, such as 'attn_lrp'"
            )
        return Scores(einsum(change, gradient, "pos d, pos d -> pos"))

    def _rules(self, adapter: ModelAdapter, changed: Callable[[int], None]) -> Hooks:
        hooks = [*at_norms(adapter), *at_attention(adapter, SHARES), *at_softmax(adapter, self.temperature, changed)]
        mlps = (neurons(adapter, layer) for layer in range(adapter.layers)) if self.halve_gates else ()
        return [*hooks, *((mlp.after, partial(pass_on, 1 / 2)) for mlp in mlps if mlp and mlp.gated)]


def at_softmax(
    adapter: ModelAdapter, temperature: float | int, changed: Callable[[int], None]
) -> Iterator[tuple[str, Hook]]:
    """Patterns pass their gradient on to attention scores as a softmax of a higher temperature.

    ``changed`` gets the number of each layer when a gradient arrives there: not every model reads its patterns from
    where hooks replace them.
    """
    sinks = bool(getattr(adapter.model.cfg, "use_attention_sinks", False))
    for layer in range(adapter.layers):
        yield pattern_name(layer), partial(tempered, temperature, sinks, partial(changed, layer))


def tempered(
    temperature: float | int,
    sinks: bool,
    arrived: Callable[[], None],
    pattern: Float[Tensor, "batch head query key"],
) -> Float[Tensor, "batch head query key"]:
    """The pattern p; its gradient by scores s is ``σ ⊙ (g - ⟨g, σ⟩)``, without a 1 / T, where ``σ = softmax(s / T)``.

    Scores need not be read: ``log p`` is s but for a number that is the same for all keys, which changes no softmax.
    """
    whole = pattern.to(torch.promote_types(pattern.dtype, torch.float32))
    if sinks:  # with one more score, for what no position gets
        whole = torch.cat([whole, 1 - whole.sum(-1, keepdim=True)], -1)
    numbers = torch.finfo(whole.dtype)
    visible = whole > numbers.tiny
    scores = whole.where(visible, 1).log().masked_fill(~visible, numbers.min)
    flatter = (scores / temperature).softmax(-1)[..., : pattern.shape[-1]]
    replaced = pattern.detach() + temperature * live(flatter).to(pattern)
    if replaced.requires_grad:
        replaced.register_hook(lambda _: arrived())
    return replaced
