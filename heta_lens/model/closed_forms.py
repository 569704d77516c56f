"""Functions whose first and second derivatives are written out, in fewer operations than autograd records for them.

The Hessian of g is multiplied by passing through all operations of g's gradient, once a product. What a norm or a
pattern adds to these is several times what its derivatives need. `written_out` gives a value the derivatives of a
`ClosedForm`:

    Normalised    u / sqrt(mean(u²) + ε), as it is divided by its own size
    Rotated       a rotation of pairs of entries, by position
    Pattern       softmax(q kᵀ / scale) over the keys
    Pointwise     any function of one or two numbers, entry by entry

A product's directions come as batches (`is_grads_batched`), so only operations that can be batched are used.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

Gradients: TypeAlias = tuple[Tensor | None, ...]


class ClosedForm(ABC):
    """A function of some inputs at given values of these, known by its derivatives there."""

    @abstractmethod
    def gradients(self, g: Tensor) -> Gradients:
        """``Σ g · value``, differentiated by each input."""

    @abstractmethod
    def second(self, g: Tensor) -> Callable[..., Gradients]:
        """For directions v, one an input: ``Σ v · gradients(g)``, differentiated by g and by each input."""


def written_out(form: ClosedForm, value: Tensor, inputs: Sequence[Tensor]) -> Tensor:
    """The same value, whose derivatives by the inputs are the form's."""
    return _Value.apply(form, value.detach(), *inputs)  # type: ignore[no-any-return]


class _Value(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, form: ClosedForm, value: Tensor, *inputs: Tensor) -> Tensor:
        ctx.form = form
        ctx.save_for_backward(*inputs)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Gradients:  # type: ignore[override]
        again = torch.is_grad_enabled()
        gradients = _Gradients.apply(ctx.form, g, *ctx.saved_tensors) if again else ctx.form.gradients(g)
        return None, None, *gradients


class _Gradients(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, form: ClosedForm, g: Tensor, *inputs: Tensor) -> Gradients:  # noqa: ARG004
        ctx.second = form.second(g)
        return form.gradients(g)

    @staticmethod
    def backward(ctx: Any, *directions: Tensor) -> Gradients:  # type: ignore[override]
        return None, *ctx.second(*directions)


@dataclass(frozen=True, eq=False)
class Normalised(ClosedForm):
    """``u / sqrt(mean(u²) + ε)`` over the last dimension, where that is u itself."""

    value: Float[Tensor, "*batch d"]

    def gradients(self, g: Tensor) -> Gradients:
        return (g - self.value * self._along(g),)

    def second(self, g: Tensor) -> Callable[[Tensor], Gradients]:
        along = self._along(g)
        tripled, shared = 3 * along * self.value - g, g / self.value.shape[-1]

        def differentiated(v: Tensor) -> Gradients:
            own = self._along(v)
            both = (v * shared).sum(-1, keepdim=True)
            return v - self.value * own, tripled * own - self.value * both - v * along

        return differentiated

    def _along(self, vector: Tensor) -> Tensor:
        """How far it points along the value: the mean of their product."""
        return (vector * self.value).sum(-1, keepdim=True) / self.value.shape[-1]


@dataclass(frozen=True, eq=False)
class Rotated(ClosedForm):
    """``x cos + partner(x) sin``: pairs of entries turned by an angle, and by its negative on the way back.

    ``partner`` swaps each entry of a pair with the other; ``sin`` has the signs that this takes.
    """

    cos: Float[Tensor, "pos 1 d"]
    sin: Float[Tensor, "pos 1 d"]
    partner: Callable[[Tensor], Tensor]

    def turned(self, x: Tensor) -> Tensor:
        return x * self.cos + self.partner(x) * self.sin

    def gradients(self, g: Tensor) -> Gradients:
        return (g * self.cos - self.partner(g) * self.sin,)

    def second(self, g: Tensor) -> Callable[[Tensor], Gradients]:  # noqa: ARG002
        return lambda v: (self.turned(v), None)


@dataclass(frozen=True, eq=False)
class Pattern(ClosedForm):
    """``softmax(q kᵀ / scale + anything)``, of which the softmax may be masked or share its mass with a sink."""

    value: Float[Tensor, "batch head query key"]
    queries: Float[Tensor, "batch head query d"]
    keys: Float[Tensor, "batch head key d"]
    scale: float

    def gradients(self, g: Tensor) -> Gradients:
        return self._back(self.value * (g - self._mean(g)))

    def second(self, g: Tensor) -> Callable[[Tensor, Tensor], Gradients]:
        centred = g - self._mean(g)
        by_scores, lost = self.value * centred, self._mean(centred)  # 0 but for a sink
        queries, keys = self.queries / self.scale, self.keys / self.scale

        def differentiated(v_queries: Tensor, v_keys: Tensor) -> Gradients:
            change = v_queries @ keys.mT + queries @ v_keys.mT
            weighted = self.value * change
            mean = weighted.sum(-1, keepdim=True)
            by_g = weighted - self.value * mean
            bent = by_g * centred
            scores = bent - self.value * (bent.sum(-1, keepdim=True) + mean * lost)
            by_queries = scores @ keys + by_scores @ (v_keys / self.scale)
            by_keys = scores.mT @ queries + by_scores.mT @ (v_queries / self.scale)
            return by_g, by_queries, by_keys

        return differentiated

    def _mean(self, of: Tensor) -> Tensor:
        return (self.value * of).sum(-1, keepdim=True)

    def _back(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """To queries and keys, from the scores that their products are."""
        return scores @ self.keys / self.scale, scores.mT @ self.queries / self.scale


@dataclass(frozen=True, eq=False)
class Pointwise(ClosedForm):
    """A function of numbers, entry by entry: its slopes by each, and by each pair (None: 0)."""

    slopes: Sequence[Tensor]
    bends: Sequence[Sequence[Tensor | None]]

    @classmethod
    def of(cls, value: Tensor, inputs: Sequence[Tensor]) -> "Pointwise | None":
        """Of what autograd recorded between these; None, where that is nothing for one of them."""
        slopes = torch.autograd.grad(value.sum(), inputs, create_graph=True, allow_unused=True)
        recorded = [slope for slope in slopes if slope is not None]
        if len(recorded) < len(inputs):
            return None
        return cls([slope.detach() for slope in recorded], [_slopes(slope, inputs) for slope in recorded])

    def gradients(self, g: Tensor) -> Gradients:
        return tuple(g * slope for slope in self.slopes)

    def second(self, g: Tensor) -> Callable[..., Gradients]:
        bent = [[None if bend is None else g * bend for bend in row] for row in self.bends]
        return lambda *v: (_weighted(v, self.slopes), *(_weighted(v, column) for column in zip(*bent, strict=True)))


def _weighted(directions: Sequence[Tensor], weights: Sequence[Tensor | None]) -> Tensor | None:
    terms = [direction * own for direction, own in zip(directions, weights, strict=True) if own is not None]
    return sum(terms[1:], terms[0]) if terms else None


def _slopes(value: Tensor, inputs: Sequence[Tensor]) -> Sequence[Tensor | None]:
    if not value.requires_grad:
        return [None] * len(inputs)
    return torch.autograd.grad(value.sum(), inputs, retain_graph=True, allow_unused=True)
