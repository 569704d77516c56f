"""The Hessian of g, or a matrix in its place, known by its products with directions (HVPs)."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from heta_lens._util.target_kinds import TargetFunction, function_name
from heta_lens._util.work import count
from heta_lens.model.batching import Batches
from heta_lens.prediction.gradients import pulled_down, vector_jacobian_products
from heta_lens.prediction.rerun import Rerun
from heta_lens.prediction.target import values_of

Places: TypeAlias = int | slice
"""Positions at which directions have entries: one position, or several in a row."""
EVERYWHERE = slice(None)


class HessianOperator(ABC):
    """A symmetric matrix over the ``pos · d`` entries of some states, known by its products with directions."""

    like: Float[Tensor, "pos d"]  # a tensor of the shape, type and device of the matrix's operands

    @abstractmethod
    def matmat(self, directions: Float[Tensor, "k *part d"], places: Places = EVERYWHERE) -> Float[Tensor, "k pos d"]:
        """Return ``H Π r`` for every direction r, which has entries at ``places`` only."""


@dataclass(frozen=True, eq=False)
class ExactHessian(HessianOperator):
    """The Jacobian of g's gradient, whose graph is kept: an HVP is a backward pass to the states (``like``)."""

    like: Float[Tensor, "pos d"]
    gradient: Float[Tensor, "pos d"]
    batches: Batches

    def matmat(self, directions: Float[Tensor, "k *part d"], places: Places = EVERYWHERE) -> Float[Tensor, "k pos d"]:
        multiply = partial(vector_jacobian_products, self.gradient[places], self.like)
        count("hvps", len(directions))
        return self.batches.map(multiply, directions.to(self.like), len(self.like))


@dataclass(frozen=True, eq=False)
class GaussNewton(HessianOperator):
    """``-Jᵀ diag(p) J``, with J the Jacobian of the log-probabilities; ``J r`` is the derivative of ``w → Jᵀ w``."""

    like: Float[Tensor, "pos d"]
    log_probs: Float[Tensor, "vocab"]
    weights: Float[Tensor, "vocab"]
    weighted_gradient: Float[Tensor, "pos d"]  # Jᵀ w
    batches: Batches

    def matmat(self, directions: Float[Tensor, "k *part d"], places: Places = EVERYWHERE) -> Float[Tensor, "k pos d"]:
        push = partial(vector_jacobian_products, self.weighted_gradient[places], self.weights)
        pushed = self.batches.map(push, directions.to(self.weights), len(self.like))
        pull = partial(vector_jacobian_products, self.log_probs, self.like)
        count("hvps", len(directions))
        return self.batches.map(pull, -self.log_probs.detach().exp() * pushed, len(self.like))


def hessian(rerun: Rerun, batches: Batches, *, checkpoint: bool = False) -> HessianOperator:
    """Return the Hessian of g by the rerun's states; with ``checkpoint``, keeping the graph of one block at a time."""
    layers = range((rerun.layer or 0) + 1, rerun.prompt.adapter.first_read + 1)
    if checkpoint and layers:
        rerun.prompt.streams(layers)  # all in one run
        reruns = [rerun, *(replace(rerun, layer=layer) for layer in layers)]
        return BlockwiseHessian([each.states() for each in reruns], reruns, batches)
    return ExactHessian(*differentiate(rerun), batches)


def gauss_newton(rerun: Rerun, batches: Batches) -> HessianOperator:
    """Return ``-Jᵀ (diag(p) - p pᵀ) J`` with J the Jacobian of the logits: the Hessian of log p without J's own.

    For the Jacobian of log-probabilities, which differs by a constant per column, the matrix is ``-Jᵀ diag(p) J``.
    """
    leaf = rerun.states().clone().requires_grad_()
    log_probs = rerun.log_probs(leaf[None])[0]
    weights = torch.zeros_like(log_probs, requires_grad=True)
    (weighted_gradient,) = torch.autograd.grad(log_probs, leaf, weights, create_graph=True)
    count("backwards", 1)
    return GaussNewton(leaf, log_probs, weights, weighted_gradient, batches)


def differentiate(rerun: Rerun, *, again: bool = True) -> tuple[Float[Tensor, "pos d"], Float[Tensor, "pos d"]]:
    """Return the rerun's states as variables, and g's gradient by them; with its graph, if ``again``."""
    leaf = rerun.states().clone().requires_grad_()
    (gradient,) = torch.autograd.grad(rerun.g(leaf[None])[0], leaf, create_graph=again)
    count("backwards", 1)
    return leaf, gradient


# ------------------------------------------------------------------------------------------------------ block by block
@dataclass(frozen=True, eq=False)
class BlockwiseHessian(HessianOperator):
    """The Hessian of g = top ∘ f_n ∘ … ∘ f_1, holding the graph of one of the model's blocks f at a time.

    With x, the states that enter a block, and λ, g's gradient by the states that leave it, a product with H passes up
    through the blocks and down again:

        up      v ← J v                           the direction, as it arrives at the next block
        top     h ← H_top v
        down    h ← Jᵀ h + ∂(Jᵀ λ)/∂x · v         with the v that entered this block

    In return for the memory, every batch of HVPs runs every block twice more.
    """

    entering: Sequence[Float[Tensor, "pos d"]]  # the inputs of the blocks
    reruns: Sequence[Rerun]  # from the states that enter every block; from the last on, g is the top
    batches: Batches

    @property
    def like(self) -> Float[Tensor, "pos d"]:  # type: ignore[override]
        return self.entering[0]

    @cached_property
    def leaving(self) -> list[Float[Tensor, "pos d"]]:
        """The gradient of g by the states that leave every block but the top."""
        top = differentiate(self.reruns[-1], again=False)[1]
        return [top, *(each[0] for each in pulled_down(self.reruns[1:-1], top[None], self.batches))][::-1]

    def matmat(self, directions: Float[Tensor, "k *part d"], places: Places = EVERYWHERE) -> Float[Tensor, "k pos d"]:
        blocks = [*zip(self.reruns[:-1], self.entering, strict=False)]

        def multiply(few: Float[Tensor, "k *part d"]) -> Float[Tensor, "k pos d"]:
            arriving = [self.like.new_zeros(len(few), *self.like.shape)]
            arriving[0][:, places] = few
            for rerun, states in blocks:  # J v is the derivative of w → Jᵀ w, which is linear
                weights = torch.zeros_like(states, requires_grad=True)
                pulled = _pulled(rerun, states, weights)[2]
                arriving.append(vector_jacobian_products(pulled, weights, arriving[-1]))
            top, gradient = differentiate(self.reruns[-1])
            products = vector_jacobian_products(gradient, top, arriving[-1])
            for (rerun, states), gradient, along in reversed([*zip(blocks, self.leaving, arriving, strict=False)]):
                leaf, left, pulled = _pulled(rerun, states, gradient)
                products = vector_jacobian_products(left, leaf, products)
                products = products + vector_jacobian_products(pulled, leaf, along)
            count("forwards", 1)  # for the blocks; the top counts its own, for the second time
            count("backwards", 1)
            return products

        count("hvps", len(directions))
        return self.batches.map(multiply, directions.to(self.like), len(self.like))


def _pulled(
    rerun: Rerun, states: Float[Tensor, "pos d"], weights: Float[Tensor, "pos d"]
) -> tuple[Float[Tensor, "pos d"], Float[Tensor, "pos d"], Float[Tensor, "pos d"]]:
    """Return the input of a block as a variable, its output, and ``Jᵀ w`` with its graph."""
    leaf = states.clone().requires_grad_()
    left = rerun.through_block(leaf)
    return leaf, left, torch.autograd.grad(left, leaf, weights, create_graph=True)[0]


# ---------------------------------------------------------------------------------------- are there second derivatives
ONCE = "this model cannot be differentiated twice with respect to its embeddings, which the curvature needs"
FUNCTION = "the function target={} cannot be differentiated twice with respect to the logits, which the curvature needs"
UNQUANTISED = "load it unquantised, with attn_implementation='eager', or use variant='kl_only'"
TORCH = "use operations of torch that can be, or variant='gs', which takes one gradient"


def check_twice_differentiable(
    objective: Callable[[Float[Tensor, "copy pos d"]], Float[Tensor, "copy"]],
    states: Float[Tensor, "pos d"],
    direction: Float[Tensor, "pos d"],
    compare: bool,
    batches: Batches,
    refusal: tuple[str, str] = (ONCE, UNQUANTISED),
) -> None:
    """Try one product, and refuse an objective whose second derivatives are missing, with or without an error.

    Autograd leaves out a derivative it does not know without an error, so the product may be compared (``compare``)
    with finite differences of the gradient: two step sizes must agree on another result.
    """
    what, way_out = refusal
    leaf = states.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(objective(leaf[None])[0], leaf, create_graph=True)
    count("backwards", 1)
    product = torch.zeros_like(leaf)
    if gradient.requires_grad:
        try:
            _check_graph(gradient)
            (product,) = torch.autograd.grad(gradient, leaf, direction, materialize_grads=True)
            count("hvps", 1)
        except (RuntimeError, NotImplementedError) as error:
            raise ValueError(f"{what} ({str(error).splitlines()[0]}); {way_out}") from error
    if not compare:
        return

    def gradients_of(few: Float[Tensor, "copy pos d"]) -> Float[Tensor, "copy pos d"]:
        leaf = few.clone().requires_grad_()
        count("backwards", len(few))
        return torch.autograd.grad(objective(leaf).sum(), leaf)[0]

    step = max(torch.finfo(states.dtype).eps ** (1 / 3), 1e-4) * states.square().mean().sqrt()
    copies = torch.stack([states + times * step * direction for times in (1, -1, 2, -2)])
    after, before, far_after, far_before = batches.map(gradients_of, copies, len(states))
    near, far = (after - before) / (2 * step), (far_after - far_before) / (4 * step)
    miss, doubt = (near - product).norm(), (near - far).norm()
    if miss > 0.05 * torch.maximum(near.norm(), product.norm()) and miss > 10 * doubt:
        raise ValueError(f"{what} (its gradient changes with them, but not as autograd says); {way_out}")


def check_function(function: TargetFunction, logits: Float[Tensor, "vocab"], direction: Float[Tensor, "vocab"]) -> None:
    """Refuse a target function without second derivatives at these logits."""

    def objective(copies: Float[Tensor, "copy 1 vocab"]) -> Float[Tensor, "copy"]:
        return values_of(function, copies[:, 0])

    refusal = FUNCTION.format(function_name(function)), TORCH
    with torch.inference_mode(False), torch.enable_grad():
        logits, direction = logits.clone(), direction.clone()
        check_twice_differentiable(objective, logits[None], direction[None], True, Batches(4), refusal)


def _check_graph(gradient: Tensor) -> None:
    """Refuse a graph with a node that has no backward pass: `autograd.grad` passes such nodes over silently."""
    visited, waiting = set(), [gradient.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in visited:
            continue
        if node.name().endswith(("::Error", "::NotImplemented")):
            raise NotImplementedError("a layer's backward pass is not differentiable")
        visited.add(node)
        waiting += [following for following, _ in node.next_functions]
