"""Does a model have second derivatives? One product is tried, and where possible compared with finite differences."""

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from heta_lens._util.target_kinds import TargetFunction, function_name
from heta_lens._util.work_counting import count
from heta_lens.methods.heta.hessian import differentiate
from heta_lens.model.batching import Batches
from heta_lens.prediction.target_function import values_of

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
