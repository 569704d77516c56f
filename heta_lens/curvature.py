"""The curvature S of Eq. 2: ``S_i = mean_k ‖Π_i H Π_i r_k‖₁``, with H the Hessian of g at the embeddings.

H is never formed. A chunk of tokens shares one graph of g's gradient from its first token on; every probe is then one
more backward pass through that graph (Pearlmutter's trick).
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Literal, TypeAlias

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

Support: TypeAlias = Literal["block", "row"]
Norm: TypeAlias = Literal["hutchinson", "exact", "entrywise"]
Objective: TypeAlias = Callable[[Float[Tensor, "pos d"]], Float[Tensor, ""]]
Probes: TypeAlias = Callable[[int], Float[Tensor, "probe d"]]

ONCE = "this model cannot be differentiated twice with respect to its embeddings, which the curvature needs"
WAY_OUT = "load it unquantised, with attn_implementation='eager', or use variant='kl_only'"
ENUMERABLE = 20  # `exact` visits every sign vector, so its length is limited: 2^20 of them


def curvature(
    objective_from: Callable[[int], Objective],
    embeddings: Float[Tensor, "pos d"],
    probes: Probes,
    *,
    support: Support = "block",
    norm: Norm = "hutchinson",
    chunk: int,
    batch: int,
    done: Callable[[int], None],
) -> Float[Tensor, "sample pos"]:
    """S as samples to be averaged: one a probe for ``hutchinson``, a single one for the exact norms.

    ``objective_from(start)`` is g as a function of the embeddings from ``start`` on; ``probes(i)`` are token i's signs.
    ``support="block"`` probes each token alone and looks at its own block of H; ``"row"`` probes all tokens at once.
    """
    if support == "row" and norm == "hutchinson":
        signs = torch.stack([probes(i) for i in range(len(embeddings))], dim=1)
        leaf, gradient = differentiate(objective_from(0), embeddings)
        return hessian_products(gradient, leaf, signs, batch, done).abs().sum(-1)
    units = torch.eye(embeddings.shape[1]).to(embeddings)
    directions = probes if norm == "hutchinson" else lambda _: units
    products = _token_products(objective_from, embeddings, directions, support, chunk, batch, done)
    return torch.stack([_SAMPLES[norm](product) for product in products], dim=-1)


def rademacher(seed: int, position: int, probes: int, d: int) -> Float[Tensor, "probe d"]:
    """Random signs of one token. Every (seed, position) has its own generator, so nothing else can change them."""
    bits = np.random.default_rng([seed, position]).integers(2, size=(probes, d))
    return torch.from_numpy(2.0 * bits - 1.0)


def differentiate(
    objective: Objective, embeddings: Float[Tensor, "pos d"]
) -> tuple[Float[Tensor, "pos d"], Float[Tensor, "pos d"]]:
    """The embeddings as variables, and g's gradient with respect to them, with its own graph."""
    leaf = embeddings.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(objective(leaf), leaf, create_graph=True)
    return leaf, gradient


def hessian_products(
    gradient: Float[Tensor, "*part"],
    leaf: Float[Tensor, "pos d"],
    directions: Float[Tensor, "k *part"],
    batch: int,
    done: Callable[[int], None],
) -> Float[Tensor, "k pos d"]:
    """``H r`` for every direction r over (a part of) the gradient, ``batch`` of them at a time."""
    if not gradient.requires_grad:  # g is affine here
        done(len(directions))
        return leaf.new_zeros(len(directions), *leaf.shape)
    products = []
    for some in directions.to(leaf).split(batch):
        products.append(_products(gradient, leaf, some))
        done(len(some))
    return torch.cat(products)


def _products(gradient: Tensor, leaf: Tensor, directions: Tensor) -> Tensor:
    """All in one backward pass where it can be batched, else one by one."""
    backward = partial(torch.autograd.grad, gradient, leaf, retain_graph=True, allow_unused=True)
    nothing = leaf.new_zeros(len(directions), *leaf.shape)
    if len(directions) > 1:
        try:
            (products,) = backward(directions, is_grads_batched=True)
            return nothing if products is None else products
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:  # some layer's backward pass cannot be batched
            pass
    products = [backward(direction)[0] for direction in directions]
    return nothing if products[0] is None else torch.stack(products)


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


def check_enumerable(embeddings: Float[Tensor, "pos d"], support: Support) -> None:
    """Refuse the exact norm where its sign vectors cannot all be visited."""
    n, d = embeddings.shape
    length = d if support == "block" else n * d
    if length > ENUMERABLE:
        raise ValueError(
            f"norm='exact' visits all 2^{length} sign vectors here, and 2^{ENUMERABLE} is the most it will; "
            "use norm='hutchinson', whose standard error is reported"
        )


def expected_l1(rows: Float[Tensor, "row n"]) -> Float[Tensor, ""]:
    """``E‖rows · s‖₁`` over all sign vectors s (half of them: s and -s agree)."""
    n = rows.shape[1]
    total = rows.new_zeros(())
    for codes in torch.arange(2 ** (n - 1), device=rows.device).split(2**14):
        bits = rearrange(codes, "code -> code 1") >> torch.arange(n, device=rows.device) & 1
        total += ((1 - 2 * bits).to(rows) @ rows.T).abs().sum()
    return total / 2 ** (n - 1)


def _token_products(
    objective_from: Callable[[int], Objective],
    embeddings: Float[Tensor, "pos d"],
    directions: Probes,
    support: Support,
    chunk: int,
    batch: int,
    done: Callable[[int], None],
) -> Iterator[Float[Tensor, "k part d"]]:
    """For each token i, ``H Π_i u`` for its directions u: at its own block, or (``row``) at every token's.

    H is symmetric, so these columns are also the rows of token i.
    """
    size = len(embeddings) if support == "row" else chunk
    for start in range(0, len(embeddings), size):
        leaf, gradient = differentiate(objective_from(start), embeddings[start:])
        for i in range(min(size, len(leaf))):
            products = hessian_products(gradient[i], leaf, directions(start + i), batch, done)
            yield products if support == "row" else products[:, i : i + 1]


_SAMPLES: dict[Norm, Callable[[Float[Tensor, "k part d"]], Float[Tensor, "sample"]]] = {
    "hutchinson": lambda products: products.abs().sum((1, 2)),
    "exact": lambda products: expected_l1(rearrange(products, "k part d -> k (part d)"))[None],
    "entrywise": lambda products: products.abs().sum()[None],
}
