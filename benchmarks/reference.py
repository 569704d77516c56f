"""Eq. 2 and Eq. 3 as the paper states them, with nothing saved: what fast code is timed and checked against.

    S_i = 1/m Σ_k ‖Π_i H Π_i r_k‖₁,   H = ∇² log P(x_T)              (Eq. 2)
    I_i = KL(P ‖ P with token i masked)                              (Eq. 3)

One graph of the gradient over the whole prompt, every position unembedded; one product for each token and each probe;
one run of the whole prompt for each masked token. The model is asked through `run_with_hooks` alone.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from heta_lens.methods.heta.probes import rademacher

EMBED = "hook_embed"


class Graph(NamedTuple):
    """The prompt's embeddings as variables, and the gradient of log P(target) with respect to them."""

    leaf: Float[Tensor, "pos d"]
    gradient: Float[Tensor, "pos d"]


def naive_curvature(
    model: Any, ids: Int[Tensor, "1 pos"], target: int, positions: Sequence[int], probes: int, seed: int
) -> Float[Tensor, "part"]:
    graph = gradient_graph(model, ids, target)
    return torch.stack([block_curvature(graph, i, probes, seed) for i in positions])


def gradient_graph(model: Any, ids: Int[Tensor, "1 pos"], target: int) -> Graph:
    leaves = []

    def vary(live: Float[Tensor, "1 pos d"]) -> Float[Tensor, "1 pos d"]:
        leaves.append(live[0].detach().clone().requires_grad_())
        return leaves[0][None]

    (gradient,) = torch.autograd.grad(log_probs(model, ids, vary)[target], leaves[0], create_graph=True)
    return Graph(leaves[0], gradient)


def block_curvature(graph: Graph, position: int, probes: int, seed: int) -> Float[Tensor, ""]:
    """Return S_i: a product with H for every probe, reduced to the token's own block."""
    norms = []
    for signs in rademacher(seed, position, probes, graph.leaf.shape[1]):
        direction = torch.zeros_like(graph.leaf)
        direction[position] = signs.to(direction)
        (product,) = torch.autograd.grad(graph.gradient, graph.leaf, direction, retain_graph=True)
        norms.append(product[position].abs().sum())
    return torch.stack(norms).mean()


@torch.no_grad()
def naive_information(model: Any, ids: Int[Tensor, "1 pos"], positions: Sequence[int]) -> Float[Tensor, "part"]:
    """Return I_i: a run of the whole prompt for every token, with zeros in place of its embedding."""
    clean = log_probs(model, ids, lambda live: live)
    divergences = []
    for i in positions:

        def mask(live: Float[Tensor, "1 pos d"], i: int = i) -> Float[Tensor, "1 pos d"]:
            masked = live.clone()
            masked[:, i] = 0
            return masked

        divergences.append((clean.exp() * (clean - log_probs(model, ids, mask))).sum())
    return torch.stack(divergences)


def log_probs(model: Any, ids: Int[Tensor, "1 pos"], change: Callable[[Tensor], Tensor]) -> Float[Tensor, "vocab"]:
    """After the last token, in float64, with the embeddings changed."""
    hook = (EMBED, lambda live, hook: change(live))  # noqa: ARG005 (passed by name)
    return model.run_with_hooks(ids, fwd_hooks=[hook])[0, -1].double().log_softmax(-1)
