"""Functions with first and second derivatives in closed form: fewer operations than autograd records for them.

A Hessian–vector product (HVP) passes through every operation of g's gradient. Autograd records several times as many
for a norm or a softmax as its derivatives need. `in_closed_form` gives a value the derivatives of a `ClosedForm`:

    Normalised    u / sqrt(mean(u²) + ε), as it is divided by its own size
    Rotated       a rotation of pairs of entries, by position
    Softmax       over the last dimension
    Pointwise     any function of one or two numbers, entry by entry

The directions of HVPs come in batches (`is_grads_batched`), so only operations that can be batched are used. Third
derivatives raise an error.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

Gradients: TypeAlias = tuple[Tensor | None, ...]

ROUNDING = 32  # machine epsilons, relative to the largest value


class ClosedForm(ABC):
    """A function of some inputs at given values of these, known by its derivatives there."""

    @abstractmethod
    def gradients(self, g: Tensor) -> Gradients:
        """``Σ g · value``, differentiated by each input."""

    @abstractmethod
    def second(self, g: Tensor) -> Callable[..., Gradients]:
        """For directions v, one an input: ``Σ v · gradients(g)``, differentiated by g and by each input."""


def in_closed_form(form: ClosedForm, value: Tensor, inputs: Sequence[Tensor]) -> Tensor:
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
    @once_differentiable
    def backward(ctx: Any, *directions: Tensor) -> Gradients:  # type: ignore[override]
        return None, *ctx.second(*directions)


@dataclass(frozen=True, eq=False)
class Normalised(ClosedForm):
    """``u / sqrt(mean(u²) + ε)`` over the last dimension, where that is u itself."""

    value: Float[Tensor, "*batch d"]

    def gradients(self, g: Tensor) -> Gradients:
        return (g - self.value * self._along(g),)

    def second(self, g: Tensor) -> Callable[[Tensor], Gradients]:
        along_g = self._along(g)
        by_along_v, by_both = 3 * along_g * self.value - g, g / self.value.shape[-1]

        def differentiated(v: Tensor) -> Gradients:
            # With [ab] = mean(a b): v - u [uv] by g, and (3 [ug] u - g) [uv] - u [vg] - v [ug] by u.
            along_v, both = self._along(v), (v * by_both).sum(-1, keepdim=True)
            return v - self.value * along_v, by_along_v * along_v - self.value * both - v * along_g

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
class Softmax(ClosedForm):
    """A softmax over the last dimension, some of which may go to what is not among its entries (a sink)."""

    value: Float[Tensor, "*batch entry"]

    def gradients(self, g: Tensor) -> Gradients:
        return (self.value * (g - self._mean(g)),)

    def second(self, g: Tensor) -> Callable[[Tensor], Gradients]:
        centred = g - self._mean(g)
        sunk = self._mean(centred)  # 0 without a sink

        def differentiated(v: Tensor) -> Gradients:
            # p (v - p·v) by g; and with c = g - p·g, of that times c: its own centred form.
            weighted = self.value * v
            mean = weighted.sum(-1, keepdim=True)
            by_g = weighted - self.value * mean
            changed = by_g * centred
            return by_g, changed - self.value * (changed.sum(-1, keepdim=True) + mean * sunk)

        return differentiated

    def _mean(self, of: Tensor) -> Tensor:
        return (self.value * of).sum(-1, keepdim=True)


@dataclass(frozen=True, eq=False)
class Pointwise(ClosedForm):
    """A function of numbers, entry by entry: its slopes by each, and how these change with each (None: not at all)."""

    slopes: Sequence[Tensor]
    changes: Sequence[Sequence[Tensor | None]]

    @classmethod
    def of(cls, value: Tensor, inputs: Sequence[Tensor]) -> "Pointwise | None":
        """Of what autograd recorded between these; None, if an entry depends on others of an input, or on none.

        Where it depends on its own alone, weights of the value's entries are weights of the slopes.
        """
        weights = torch.linspace(1, 2, value.numel()).to(value).reshape(value.shape)
        slopes = [
            slope
            for slope, weighted in zip(_slopes(value, inputs), _slopes(weights * value, inputs), strict=True)
            if slope is not None and weighted is not None and agree(weights * slope.detach(), weighted.detach())
        ]
        if len(slopes) < len(inputs):
            return None
        changes = [[_detached(change) for change in _slopes(slope, inputs)] for slope in slopes]
        return cls([slope.detach() for slope in slopes], changes)

    def gradients(self, g: Tensor) -> Gradients:
        return tuple(g * slope for slope in self.slopes)

    def second(self, g: Tensor) -> Callable[..., Gradients]:
        changes = [[None if change is None else g * change for change in row] for row in self.changes]
        by_input = [*zip(*changes, strict=True)]
        return lambda *v: (_weighted(v, self.slopes), *(_weighted(v, column) for column in by_input))


def _slopes(value: Tensor, inputs: Sequence[Tensor]) -> Sequence[Tensor | None]:
    """The sum of the value's entries, differentiated by each input; None by those that it does not depend on."""
    if not value.requires_grad:
        return [None] * len(inputs)
    return torch.autograd.grad(value.sum(), inputs, create_graph=True, allow_unused=True)


def _detached(change: Tensor | None) -> Tensor | None:
    return None if change is None else change.detach()


def _weighted(directions: Sequence[Tensor], weights: Sequence[Tensor | None]) -> Tensor | None:
    terms = [direction * own for direction, own in zip(directions, weights, strict=True) if own is not None]
    return sum(terms[1:], terms[0]) if terms else None


def agree(value: Tensor, other: Tensor) -> bool:
    """Within rounding of each other, relative to the largest. Half precision rounds too much to tell."""
    kind = torch.finfo(value.dtype)
    return kind.bits >= 32 and bool((value - other).abs().max() <= ROUNDING * kind.eps * value.abs().max())
