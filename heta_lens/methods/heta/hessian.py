"""The Hessian of g, and what may stand for it, as operators that multiply with directions. None is ever formed.

g's gradient graph is built once and kept; every direction is then one more backward pass through it (Pearlmutter's
trick). `low_rank` has a third operator.

    hessian         the second derivatives of g
    gauss_newton    those that come from the softmax alone, as if the logits were affine in the states
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from jaxtyping import Float
from scipy.sparse.linalg import LinearOperator
from torch import Tensor

from heta_lens._util.work_counting import Done, count
from heta_lens.model.batching import Batches, out_of_memory

Objective: TypeAlias = Callable[[Float[Tensor, "pos d"]], Float[Tensor, ""]]
LogProbs: TypeAlias = Callable[[Float[Tensor, "pos d"]], Float[Tensor, "vocab"]]
Places: TypeAlias = int | slice
"""One position, or several in a row."""
EVERYWHERE = slice(None)


class HessianOperator(ABC):
    """A symmetric matrix over the ``pos · d`` entries of some states, known by its products with directions."""

    @property
    @abstractmethod
    def like(self) -> Float[Tensor, "pos d"]:
        """A tensor of the shape, type and device of what it multiplies."""

    @abstractmethod
    def matmat(self, directions: Float[Tensor, "k *part d"], places: Places = EVERYWHERE) -> Float[Tensor, "k pos d"]:
        """``H Π r`` for each direction r, which has entries at these places only."""

    def matvec(self, direction: Float[Tensor, "pos d"]) -> Float[Tensor, "pos d"]:
        return self.matmat(direction[None])[0]

    def as_linear_operator(self) -> LinearOperator:
        """The same for SciPy, on flat vectors: ``scipy.sparse.linalg.eigsh(operator.as_linear_operator(), k=5)``."""
        size, multiply = self.like.numel(), self._multiply_columns
        make: Any = LinearOperator  # its stubs do not know these arguments
        return make(
            (size, size),
            matvec=lambda vector: multiply(vector.reshape(-1, 1))[:, 0],
            rmatvec=lambda vector: multiply(vector.reshape(-1, 1))[:, 0],
            matmat=multiply,
            rmatmat=multiply,
            dtype=self.like[:0].detach().cpu().numpy().dtype,
        )

    def _multiply_columns(self, columns: Float[np.ndarray, "size k"]) -> Float[np.ndarray, "size k"]:
        directions = torch.from_numpy(np.ascontiguousarray(columns.T)).to(self.like).reshape(-1, *self.like.shape)
        return self.matmat(directions).flatten(1).T.cpu().numpy()


HessianFrom: TypeAlias = Callable[[int], HessianOperator]
"""The operator over the states from a position on, with everything before it held fixed."""


@dataclass(frozen=True, eq=False)
class GraphOperator(HessianOperator):
    """An operator whose products are backward passes to the ``states``, through a graph that was kept."""

    states: Float[Tensor, "pos d"]
    batches: Batches
    done: Done

    @property
    def like(self) -> Float[Tensor, "pos d"]:
        return self.states

    def to_states(self, outputs: Tensor, directions: Tensor) -> Float[Tensor, "k pos d"]:
        """Each direction's product with the outputs' transposed Jacobian by the states."""
        return pulled_back(
            outputs, self.states, directions, length=len(self.states), batches=self.batches, done=self.done
        )


@dataclass(frozen=True, eq=False)
class ExactHessian(GraphOperator):
    """The Jacobian of a gradient whose graph was kept."""

    gradient: Float[Tensor, "pos d"]

    def matmat(self, directions: Float[Tensor, "k *part d"], places: Places = EVERYWHERE) -> Float[Tensor, "k pos d"]:
        return self.to_states(self.gradient[places], directions)


@dataclass(frozen=True, eq=False)
class GaussNewton(GraphOperator):
    """``-Jᵀ diag(p) J``, with J the Jacobian of the log-probabilities; ``J r`` is the derivative of ``w → Jᵀ w``."""

    log_probs: Float[Tensor, "vocab"]
    probabilities: Float[Tensor, "vocab"]
    weights: Float[Tensor, "vocab"]
    weighted_gradient: Float[Tensor, "pos d"]

    def matmat(self, directions: Float[Tensor, "k *part d"], places: Places = EVERYWHERE) -> Float[Tensor, "k pos d"]:
        length, batches = len(self.states), self.batches
        pushed = pulled_back(self.weighted_gradient[places], self.weights, directions, length=length, batches=batches)
        return self.to_states(self.log_probs, -self.probabilities * pushed)


def hessian(objective: Objective, states: Float[Tensor, "pos d"], batches: Batches, done: Done) -> HessianOperator:
    leaf, gradient = differentiate(objective, states)
    return ExactHessian(leaf, batches, done, gradient)


def gauss_newton(log_probs: LogProbs, states: Float[Tensor, "pos d"], batches: Batches, done: Done) -> HessianOperator:
    """``-Jᵀ (diag(p) - p pᵀ) J`` with J the Jacobian of the logits: the Hessian of any log p(token) without J's own.

    For the Jacobian of log-probabilities, which differs by a constant per column, that is ``-Jᵀ diag(p) J``.
    """
    leaf = states.clone().requires_grad_()
    values = log_probs(leaf)
    weights = torch.zeros_like(values, requires_grad=True)
    (weighted_gradient,) = torch.autograd.grad(values, leaf, weights, create_graph=True)
    count("backwards", 1)
    return GaussNewton(leaf, batches, done, values, values.detach().exp(), weights, weighted_gradient)


def differentiate(
    objective: Objective, states: Float[Tensor, "pos d"], *, again: bool = True
) -> tuple[Float[Tensor, "pos d"], Float[Tensor, "pos d"]]:
    """The states as variables, and g's gradient with respect to them; with its graph, if ``again``."""
    leaf = states.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(objective(leaf), leaf, create_graph=again)
    count("backwards", 1)
    return leaf, gradient


def uncounted(units: int) -> None:
    """For products that are half of another, and reported with it."""


def pulled_back(
    outputs: Tensor, inputs: Tensor, directions: Tensor, *, length: int, batches: Batches, done: Done = uncounted
) -> Tensor:
    """Each direction's product with the outputs' transposed Jacobian, as many at once as fit for runs this long."""
    return batches.map(partial(_backward, outputs, inputs, done), directions.to(inputs), length)


def _backward(outputs: Tensor, inputs: Tensor, done: Done, directions: Tensor) -> Tensor:
    products = in_one_backward(outputs, inputs, directions)
    done(len(directions))
    return products


def in_one_backward(outputs: Tensor, inputs: Tensor, directions: Tensor) -> Tensor:
    """Each direction's product with the transposed Jacobian: all in one backward pass if it can be batched."""
    if not outputs.requires_grad:  # they are constant
        return inputs.new_zeros(len(directions), *inputs.shape)
    backward = partial(torch.autograd.grad, outputs, inputs, retain_graph=True, allow_unused=True)
    if len(directions) > 1:
        try:
            (products,) = backward(directions, is_grads_batched=True)
            return inputs.new_zeros(len(directions), *inputs.shape) if products is None else products
        except RuntimeError as error:
            if out_of_memory(error):
                raise
            # else some layer's backward pass cannot be batched
    products = [backward(direction)[0] for direction in directions]
    return torch.stack([torch.zeros_like(inputs) if product is None else product for product in products])
