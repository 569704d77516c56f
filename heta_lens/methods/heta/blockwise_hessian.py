"""The Hessian of g, block by block: the graph of one block at a time, built anew for every batch of HVPs.

g = top ∘ f_n ∘ … ∘ f_1, where the fs are the model's blocks and the top is the last of them with all that follows.
With what enters each block (x) and g's gradient by what leaves it (λ) known, a product with H passes up through the
blocks and down again:

    up      v ← J v                           the direction, as it arrives at the next block
    top     h ← H_top v
    down    h ← Jᵀ h + ∂(Jᵀ λ)/∂x · v         with the v that entered this block

Each line needs the derivatives of one block only, so memory holds one graph instead of one a block. In return, every
batch of HVPs runs each block twice more.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from heta_lens._util.work_counting import Done, count
from heta_lens.methods.heta.hessian import EVERYWHERE, HessianOperator, Places, in_one_backward
from heta_lens.model.batching import Batches

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
