"""Does a model have second derivatives? One product is tried, and where possible compared with finite differences."""

import torch
from jaxtyping import Float
from torch import Tensor

from heta_lens._util.progress import count
from heta_lens.methods.heta.hessian import Objective, differentiate

ONCE = "this model cannot be differentiated twice with respect to its embeddings, which the curvature needs"
WAY_OUT = "load it unquantised, with attn_implementation='eager', or use variant='kl_only'"


def check_twice_differentiable(
    objective: Objective,
    embeddings: Float[Tensor, "pos d"],
    direction: Float[Tensor, "pos d"],
    compare: bool,
) -> None:
    """Try one probe, and refuse a model whose second derivatives are missing, with or without an error.

    A layer without a second derivative need not raise an error: autograd leaves out what it knows no derivative of. So
    the product may be compared with finite differences of the gradient, and the model is refused where two step sizes
    agree on another answer.
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


def _finite_difference(objective: Objective, embeddings: Tensor, step: Tensor) -> Tensor:
    """How the gradient changes from ``embeddings - step`` to ``embeddings + step``, halved."""
    after, before = (differentiate(objective, at)[1] for at in (embeddings + step, embeddings - step))
    return (after - before).detach() / 2
