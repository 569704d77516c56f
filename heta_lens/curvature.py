"""The curvature S of Eq. 2: ``S_i = mean_k ‖Π_i H Π_i r_k‖₁``, with H the Hessian of g at the embeddings.

H is never formed. A chunk of tokens shares one graph of g's gradient, in which only the chunk's embeddings are
variables; every probe is then one more backward pass through that graph (Pearlmutter's trick).
"""

from collections.abc import Callable, Iterator
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
        leaf, gradient = differentiate(objective_from(0), embeddings, len(embeddings))
        return _l1(hessian_products(gradient, leaf, signs, batch, done))
    units = torch.eye(embeddings.shape[1]).to(embeddings)
    directions = probes if norm == "hutchinson" else lambda _: units
    products = _token_products(objective_from, embeddings, directions, support, chunk, batch, done)
    return torch.stack([_SAMPLES[norm](product) for product in products], dim=-1)


def rademacher(seed: int, position: int, probes: int, d: int) -> Float[Tensor, "probe d"]:
    """Random signs of one token. Every (seed, position) has its own generator, so nothing else can change them."""
    bits = np.random.default_rng([seed, position]).integers(2, size=(probes, d))
    return torch.from_numpy(2.0 * bits - 1.0)


def differentiate(
    objective: Objective, embeddings: Float[Tensor, "pos d"], free: int
) -> tuple[Float[Tensor, "free d"], Float[Tensor, "free d"]]:
    """The first ``free`` embeddings as variables, and g's gradient with respect to them, with its own graph."""
    leaf = embeddings[:free].clone().requires_grad_()
    value = objective(torch.cat([leaf, embeddings[free:]]))
    (gradient,) = torch.autograd.grad(value, leaf, create_graph=True)
    return leaf, gradient


def hessian_products(
    gradient: Float[Tensor, "*part"],
    leaf: Float[Tensor, "free d"],
    directions: Float[Tensor, "k *part"],
    batch: int,
    done: Callable[[int], None],
) -> Float[Tensor, "k free d"]:
    """``H r`` for every direction r over (a part of) the gradient, ``batch`` of them at a time."""
    if not gradient.requires_grad:  # g is affine here
        done(len(directions))
        return leaf.new_zeros(len(directions), *leaf.shape)
    products = []
    for some in directions.to(leaf).split(batch):
        # A batch of one runs without vmap, which hooks on the backward pass cannot bear.
        outputs = some[0] if len(some) == 1 else some
        (product,) = torch.autograd.grad(
            gradient, leaf, outputs, retain_graph=True, is_grads_batched=len(some) > 1, materialize_grads=True
        )
        products.append(product.reshape(len(some), *leaf.shape))
        done(len(some))
    return torch.cat(products)


def check_twice_differentiable(objective: Objective, embeddings: Float[Tensor, "pos d"]) -> None:
    """Try one probe, and refuse a model whose second derivatives are missing, aloud or silently."""
    try:
        leaf, gradient = differentiate(objective, embeddings, len(embeddings))
        hessian_products(gradient, leaf, torch.ones_like(leaf)[None], 1, lambda _: None)
    except (RuntimeError, NotImplementedError) as error:
        reason = str(error).split("\n")[0]
        raise ValueError(
            "this model cannot be differentiated twice with respect to its embeddings, which the curvature needs "
            f"({reason}); load it unquantised, with attn_implementation='eager', or use variant='kl_only'"
        ) from error
    if not gradient.requires_grad:
        _, elsewhere = differentiate(objective, 2 * embeddings, len(embeddings))
        if not torch.allclose(gradient, elsewhere, rtol=0.05):
            raise ValueError(
                "this model's gradient changes with its embeddings, but torch sees no second derivative: a layer "
                "detaches its gradient (quantised, perhaps); use variant='kl_only', which needs none"
            )


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
        rest = embeddings[start:]
        leaf, gradient = differentiate(objective_from(start), rest, min(size, len(rest)))
        for i in range(len(leaf)):
            products = hessian_products(gradient[i], leaf, directions(start + i), batch, done)
            yield products if support == "row" else products[:, i : i + 1]


def _l1(products: Float[Tensor, "*k d"]) -> Float[Tensor, "*k"]:
    return products.abs().sum(-1)


_SAMPLES: dict[Norm, Callable[[Float[Tensor, "k part d"]], Float[Tensor, "sample"]]] = {
    "hutchinson": lambda products: products.abs().sum((1, 2)),
    "exact": lambda products: expected_l1(rearrange(products, "k part d -> k (part d)"))[None],
    "entrywise": lambda products: products.abs().sum()[None],
}
