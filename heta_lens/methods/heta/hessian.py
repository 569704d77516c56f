"""The Hessian of g, and what may stand for it, as operators that multiply with directions. None is ever formed.

g's gradient graph is built once and kept; every direction is then one more backward pass through it (Pearlmutter's
trick). `low_rank` has a third operator.

    hessian         the second derivatives of g
    gauss_newton    those that come from the softmax alone, as if the logits were affine in the states
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, TypeAlias

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float
from scipy.sparse.linalg import LinearOperator
from torch import Tensor

from heta_lens._util.target_kinds import TargetFunction, function_name
from heta_lens._util.work import Done, count
from heta_lens.model.batching import Batches, out_of_memory
from heta_lens.prediction.target import values_of

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


# --------------------------------------------------------------------------------------------------- blockwise hessian
# The Hessian of g, block by block: the graph of one block at a time, built anew for every batch of HVPs.
#
# g = top ∘ f_n ∘ … ∘ f_1, where the fs are the model's blocks and the top is the last of them with all that follows.
# With what enters each block (x) and g's gradient by what leaves it (λ) known, a product with H passes up through the
# blocks and down again:
#
#     up      v ← J v                           the direction, as it arrives at the next block
#     top     h ← H_top v
#     down    h ← Jᵀ h + ∂(Jᵀ λ)/∂x · v         with the v that entered this block
#
# Each line needs the derivatives of one block only, so memory holds one graph instead of one a block. In return, every
# batch of HVPs runs each block twice more.


Block: TypeAlias = Callable[[Float[Tensor, "pos d"]], Float[Tensor, "pos d"]]


@dataclass(frozen=True, eq=False)
class BlockwiseHessian(HessianOperator):
    """``entering`` are the states that enter each block, and the top at last; ``top()`` is the Hessian of that."""

    blocks: Sequence[Block]
    entering: Sequence[Float[Tensor, "pos d"]]
    top: Callable[[], HessianOperator]
    top_gradient: Callable[[], Float[Tensor, "pos d"]]
    batches: Batches
    done: Done

    @property
    def like(self) -> Float[Tensor, "pos d"]:
        return self.entering[0]

    @cached_property
    def leaving(self) -> list[Float[Tensor, "pos d"]]:
        """g's gradient by what leaves each block."""
        gradients = [self.top_gradient()]
        for block, states in zip(reversed(self.blocks[1:]), reversed(self.entering[1:-1]), strict=True):
            leaf = states.clone().requires_grad_()
            gradients += torch.autograd.grad(block(leaf), leaf, gradients[-1])
        return gradients[::-1]

    def matmat(self, directions: Float[Tensor, "k *part d"], places: Places = EVERYWHERE) -> Float[Tensor, "k pos d"]:
        def multiplied(few: Float[Tensor, "k *part d"]) -> Float[Tensor, "k pos d"]:
            placed = self.like.new_zeros(len(few), *self.like.shape)
            placed[:, places] = few
            products = self._multiplied(placed)
            self.done(len(few))
            return products

        return self.batches.map(multiplied, directions.to(self.like), len(self.like))

    def _multiplied(self, directions: Float[Tensor, "k pos d"]) -> Float[Tensor, "k pos d"]:
        arriving = [directions]
        for block, states in zip(self.blocks, self.entering, strict=False):
            arriving.append(pushed_up(block, states, arriving[-1]))
        products = self.top().matmat(arriving.pop())
        for at in reversed(range(len(self.blocks))):
            products = pulled_down(self.blocks[at], self.entering[at], self.leaving[at], arriving.pop(), products)
        count("forwards", 1)  # for the blocks; the top counts its own, for the second time
        count("backwards", 1)
        return products


def pushed_up(
    block: Block, states: Float[Tensor, "pos d"], directions: Float[Tensor, "k pos d"]
) -> Float[Tensor, "k pos d"]:
    """``J v`` for each direction: the derivative of ``w → Jᵀ w``, which is linear."""
    leaf = states.clone().requires_grad_()
    left = block(leaf)
    weights = torch.zeros_like(left, requires_grad=True)
    (pulled,) = torch.autograd.grad(left, leaf, weights, create_graph=True)
    return in_one_backward(pulled, weights, directions)


def pulled_down(
    block: Block,
    states: Float[Tensor, "pos d"],
    gradient: Float[Tensor, "pos d"],
    directions: Float[Tensor, "k pos d"],
    products: Float[Tensor, "k pos d"],
) -> Float[Tensor, "k pos d"]:
    """``Jᵀ h + ∂(Jᵀ λ)/∂x · v``, of one direction v and one product h each."""
    leaf = states.clone().requires_grad_()
    left = block(leaf)
    (pulled,) = torch.autograd.grad(left, leaf, gradient, create_graph=True)
    return in_one_backward(left, leaf, products) + in_one_backward(pulled, leaf, directions)


# --------------------------------------------------------------------------------------------- second derivative check
# Does a model have second derivatives? One product is tried, and where possible compared with finite differences.


CopiesObjective: TypeAlias = Callable[[Float[Tensor, "copy pos d"]], Float[Tensor, "copy"]]

ONCE = "this model cannot be differentiated twice with respect to its embeddings, which the curvature needs"
FUNCTION = "the function target={} cannot be differentiated twice with respect to the logits, which the curvature needs"
WAY_OUT = "load it unquantised, with attn_implementation='eager', or use variant='kl_only'"


def check_twice_differentiable(
    objective: CopiesObjective,
    embeddings: Float[Tensor, "pos d"],
    direction: Float[Tensor, "pos d"],
    compare: bool,
    batches: Batches,
    *,
    refusal: str = ONCE,
    way_out: str = WAY_OUT,
) -> None:
    """Try one probe, and refuse a model whose second derivatives are missing, with or without an error.

    A layer without a second derivative need not raise an error: autograd leaves out what it knows no derivative of. So
    the product may be compared with finite differences of the gradient, and the model is refused where two step sizes
    agree on another answer.
    """
    leaf, gradient = differentiate(lambda leaf: objective(leaf[None])[0], embeddings)
    product = torch.zeros_like(leaf)
    if gradient.requires_grad:
        try:
            _check_graph(gradient)
            (product,) = torch.autograd.grad(gradient, leaf, direction, materialize_grads=True)
            count("hvps", 1)
        except (RuntimeError, NotImplementedError) as error:
            raise ValueError(f"{refusal} ({str(error).splitlines()[0]}); {way_out}") from error
    if not compare:
        return
    step = max(torch.finfo(embeddings.dtype).eps ** (1 / 3), 1e-4) * embeddings.square().mean().sqrt()
    near, far = _finite_differences(objective, embeddings, direction, torch.stack([step, 2 * step]), batches)
    miss, doubt = (near - product).norm(), (near - far).norm()
    if miss > 0.05 * torch.maximum(near.norm(), product.norm()) and miss > 10 * doubt:
        raise ValueError(f"{refusal} (its gradient changes with them, but not as autograd says); {way_out}")


def check_function(function: TargetFunction, logits: Float[Tensor, "vocab"], direction: Float[Tensor, "vocab"]) -> None:
    """The same of a function of the logits, at these."""
    check_twice_differentiable(
        lambda copies: values_of(function, copies[:, 0]),
        logits[None],
        direction[None],
        compare=True,
        batches=Batches(4),
        refusal=FUNCTION.format(function_name(function)),
        way_out="use operations of torch that can be, or variant='gs', which takes one gradient",
    )


def _check_graph(gradient: Tensor) -> None:
    """Refuse a graph with a node that would refuse: `autograd.grad` passes such nodes over silently."""
    visited, waiting = set(), [gradient.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in visited:
            continue
        if node.name().endswith(("::Error", "::NotImplemented")):
            raise NotImplementedError("a layer's backward pass is not differentiable")
        visited.add(node)
        waiting += [following for following, _ in node.next_functions]


def _finite_differences(
    objective: CopiesObjective,
    embeddings: Float[Tensor, "pos d"],
    direction: Float[Tensor, "pos d"],
    sizes: Float[Tensor, "size"],
    batches: Batches,
) -> Float[Tensor, "size pos d"]:
    """How the gradient changes along a direction, by steps of these sizes to both sides."""
    steps = rearrange(torch.stack([sizes, -sizes]), "side size -> side size 1 1") * direction
    copies = rearrange(embeddings + steps, "side size pos d -> (side size) pos d")
    gradients = batches.map(partial(_gradients, objective), copies, len(embeddings))
    after, before = rearrange(gradients, "(side size) pos d -> side size pos d", side=2)
    return (after - before) / (2 * rearrange(sizes, "size -> size 1 1"))


def _gradients(objective: CopiesObjective, copies: Float[Tensor, "copy pos d"]) -> Float[Tensor, "copy pos d"]:
    leaf = copies.clone().requires_grad_()
    (gradients,) = torch.autograd.grad(objective(leaf).sum(), leaf)
    count("backwards", len(copies))
    return gradients
