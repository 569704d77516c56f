"""The Hessian of g, and what may stand for it, as products with directions. None is ever formed.

Each kind is a function from the states (from some position on) to `Columns`. g's gradient graph is built once and kept;
every direction is then one more backward pass through it (Pearlmutter's trick).

    hessian         the second derivatives of g
    gauss_newton    those that come from the softmax alone, as if the logits were affine in the states
    low_rank        the part of either that lies in a random subspace near its largest eigenvectors
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import nan
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor

from heta_lens.batches import Batches, out_of_memory
from heta_lens.progress import Done, count

Objective: TypeAlias = Callable[[Float[Tensor, "pos d"]], Float[Tensor, ""]]
LogProbs: TypeAlias = Callable[[Float[Tensor, "pos d"]], Float[Tensor, "vocab"]]
Columns: TypeAlias = Callable[[int | slice, Float[Tensor, "k *part d"]], Float[Tensor, "k pos d"]]
"""``H Π r`` for directions r on one position, or on a slice of them."""
ColumnsFrom: TypeAlias = Callable[[int], Columns]
"""The same from a position on, as if nothing came before it."""

OVERSAMPLING = 8
ONCE = "this model cannot be differentiated twice with respect to its embeddings, which the curvature needs"
WAY_OUT = "load it unquantised, with attn_implementation='eager', or use variant='kl_only'"


def hessian(objective: Objective, states: Float[Tensor, "pos d"], batches: Batches, done: Done) -> Columns:
    leaf, gradient = differentiate(objective, states)
    return partial(_products, gradient, leaf, length=len(states), batches=batches, done=done)


def gauss_newton(log_probs: LogProbs, states: Float[Tensor, "pos d"], batches: Batches, done: Done) -> Columns:
    """``-Jᵀ (diag(p) - p pᵀ) J`` with J the Jacobian of the logits: the Hessian of any log p(token) without J's own.

    For the Jacobian of log-probabilities, which differs by a constant a column, that is ``-Jᵀ diag(p) J``. ``J r`` is
    the derivative of the linear map ``w → Jᵀ w``, so it too is a backward pass through a kept graph.
    """
    leaf = states.clone().requires_grad_()
    values = log_probs(leaf)
    weights = torch.zeros_like(values, requires_grad=True)
    (pulled,) = torch.autograd.grad(values, leaf, weights, create_graph=True)
    count("backwards", 1)
    p, products = values.detach().exp(), partial(_products, length=len(states), batches=batches)

    def columns(part: int | slice, directions: Float[Tensor, "k *part d"]) -> Float[Tensor, "k pos d"]:
        pushed = products(pulled, weights, part, directions, done=lambda _: None)
        return products(values, leaf, slice(None), -p * pushed, done=done)

    return columns


@dataclass(frozen=True, eq=False)
class LowRank:
    """``H_k = V diag(λ) Vᵀ``, with the eigenvalues of largest size, and an estimate of ``‖H - H_k‖_F``."""

    vectors: Float[Tensor, "pos d k"]
    values: Float[Tensor, "k"]
    missed_squared: float

    @property
    def energy(self) -> "Energy":
        return Energy(self.missed_squared, float(self.values.square().sum()))

    def columns_from(self, start: int, length: int | None = None) -> Columns:
        """Free of products with H; of the next ``length`` positions only, if nobody looks at others."""
        vectors = self.vectors[start : None if length is None else start + length]

        def columns(part: int | slice, directions: Float[Tensor, "k *part d"]) -> Float[Tensor, "k pos d"]:
            along = rearrange(vectors[part], "... rank -> (...) rank")
            weights = rearrange(directions.to(along), "k ... -> k (...)") @ along * self.values
            return einsum(weights, vectors, "k rank, pos d rank -> k pos d")

        return columns


def low_rank(
    columns: Columns,
    rank: int,
    tests: Callable[[int, int, int], Float[Tensor, "k pos d"]],
    probes: Float[Tensor, "probe pos d"],
) -> LowRank:
    """A randomised range finder on the symmetric, indefinite H: ``2 (rank + 8)`` products with it.

    ``tests(count, pos, d)`` are random directions; their images span nearly the range. What is left out is measured on
    ``probes`` that had no part in it: ``E‖(H - H_k) r‖² = ‖H - H_k‖_F²``, which is ``‖H‖_F² - Σ λ²``.
    """
    n, d = probes.shape[1:]
    images = columns(slice(None), tests(min(rank + OVERSAMPLING, n * d), n, d))
    if not images.isfinite().all():  # so that the curvature is not finite at the same positions, and named there
        return LowRank(rearrange(images.sum(0), "pos d -> pos d 1"), images.new_ones(1), nan)
    basis = torch.linalg.qr(rearrange(images, "k pos d -> (pos d) k")).Q
    products = columns(slice(None), rearrange(basis, "(pos d) k -> k pos d", pos=n))
    # On the CPU in float64, which not every device has: it is a small matrix.
    small = (rearrange(products, "k pos d -> k (pos d)") @ basis).cpu().double()
    values, inner = (found.to(basis) for found in torch.linalg.eigh((small + small.T) / 2))
    largest = values.abs().argsort(descending=True)[:rank]
    vectors = rearrange(basis @ inner[:, largest], "(pos d) k -> pos d k", pos=n)
    found = LowRank(vectors, values[largest], 0.0)
    missed = columns(slice(None), probes) - found.columns_from(0)(slice(None), probes)
    return replace(found, missed_squared=float(missed.square().sum((1, 2)).mean()))


def gaussian(seed: int, start: int, count: int, n: int, d: int) -> Float[Tensor, "count n d"]:
    """Random directions over the ``n`` positions from ``start`` on, with a generator of their own."""
    return torch.from_numpy(np.random.default_rng([seed, start, n]).standard_normal((count, n, d)))


class Energy(NamedTuple):
    """Squares of Frobenius norms: of what a low rank leaves out of H, and of what it keeps."""

    missed: float
    kept: float


def tail_energy(found: Sequence[Energy]) -> dict[str, Any]:
    """What low ranks leave out of H, over all windows: ``‖H - H_k‖_F``, and its share of ``‖H‖_F``."""
    if not found:
        return {}
    missed = sum(one.missed for one in found)
    whole = missed + sum(one.kept for one in found)
    return {"tail_energy": missed**0.5, "tail_energy_share": (missed / whole) ** 0.5 if whole else 0.0}


def differentiate(
    objective: Objective, states: Float[Tensor, "pos d"], *, again: bool = True
) -> tuple[Float[Tensor, "pos d"], Float[Tensor, "pos d"]]:
    """The states as variables, and g's gradient with respect to them; with its graph, if ``again``."""
    leaf = states.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(objective(leaf), leaf, create_graph=again)
    count("backwards", 1)
    return leaf, gradient


def _products(
    outputs: Tensor,
    inputs: Tensor,
    part: int | slice,
    directions: Tensor,
    *,
    length: int,
    batches: Batches,
    done: Done,
) -> Tensor:
    """Each direction pulled back through (a part of) the outputs."""

    def pull(some: Tensor) -> Tensor:
        products = _pulled_back(outputs[part], inputs, some)
        done(len(some))
        return products

    return batches.map(pull, directions.to(inputs), length)


def _pulled_back(outputs: Tensor, inputs: Tensor, directions: Tensor) -> Tensor:
    """All in one backward pass where it can be batched, else one by one."""
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


def check_twice_differentiable(
    objective: Objective,
    embeddings: Float[Tensor, "pos d"],
    direction: Float[Tensor, "pos d"],
    compare: bool,
) -> None:
    """Try one probe, and refuse a model whose second derivatives are missing, aloud or silently.

    A layer without a second derivative need not say so: autograd leaves out what it knows no derivative of. So the
    product may be compared with finite differences of the gradient, and is refused where two step sizes agree on
    another answer.
    """
    leaf, gradient = differentiate(objective, embeddings)
    product = torch.zeros_like(leaf)
    if gradient.requires_grad:
        try:
            _check_graph(gradient)
            (product,) = torch.autograd.grad(gradient, leaf, direction, materialize_grads=True)
            count("hvps", 1)
        except (RuntimeError, NotImplementedError) as error:
            raise ValueError(f"{ONCE} ({str(error).splitlines()[0]}); {WAY_OUT}") from error
    if not compare:
        return
    step = max(torch.finfo(embeddings.dtype).eps ** (1 / 3), 1e-4) * embeddings.square().mean().sqrt()
    near, far = (_finite_difference(objective, embeddings, size * direction) / size for size in (step, 2 * step))
    miss, doubt = (near - product).norm(), (near - far).norm()
    if miss > 0.05 * torch.maximum(near.norm(), product.norm()) and miss > 10 * doubt:
        raise ValueError(f"{ONCE} (its gradient changes with them, but not as autograd says); {WAY_OUT}")


def _check_graph(gradient: Tensor) -> None:
    """Refuse a graph with a node that would refuse: `autograd.grad` passes such nodes by without a word."""
    seen, waiting = set(), [gradient.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        if node.name().endswith(("::Error", "::NotImplemented")):
            raise NotImplementedError("a layer's backward pass is not differentiable")
        seen.add(node)
        waiting += [following for following, _ in node.next_functions]


def _finite_difference(objective: Objective, embeddings: Tensor, step: Tensor) -> Tensor:
    """How the gradient changes from ``embeddings - step`` to ``embeddings + step``, halved."""
    after, before = (differentiate(objective, at)[1] for at in (embeddings + step, embeddings - step))
    return (after - before).detach() / 2
