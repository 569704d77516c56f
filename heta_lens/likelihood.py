"""How likely the target is when states of the context are other than they were, and how that changes with them."""

from collections.abc import Callable
from functools import partial

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor

from heta_lens.batches import Batches
from heta_lens.prediction import Prediction
from heta_lens.progress import Done, Work, count
from heta_lens.scales import Scale


@torch.no_grad()
def likelihood(
    asked: Prediction,
    states: Float[Tensor, "copy pos d"],
    scale: Scale,
    done: Done,
    start: int = 0,
    layer: int | None = None,
) -> Float[Tensor, "copy"]:
    """With other embeddings (or states that enter a layer) from a position on, one run for each copy of the context."""
    found = asked.read(asked.logits_from(start, layer)(states), scale)
    done(len(states))
    return found


def gradients(
    asked: Prediction,
    states: Float[Tensor, "copy pos d"],
    scale: Scale,
    work: Work,
    layer: int | None = None,
    start: int = 0,
) -> Float[Tensor, "copy pos d"]:
    """The derivative of each copy's likelihood by what enters a layer (or by embeddings) from a position on."""
    leaf = states.detach().clone().requires_grad_()
    read = asked.read(asked.logits_from(start, layer)(leaf), scale)
    (gradient,) = torch.autograd.grad(read.sum(), leaf)
    count("backwards", len(states))
    work.add("forwards", len(states))
    work.add("backwards", len(states))
    return gradient


def ablated(
    asked: Prediction,
    present: Bool[Tensor, "copy pos"],
    mask: Float[Tensor, "d"],
    scale: Scale,
    batches: Batches,
    done: Done,
) -> Float[Tensor, "copy"]:
    """In each copy only the tokens ``present`` are themselves."""
    return with_others_masked(asked, present, mask, partial(likelihood, asked, scale=scale, done=done), batches)


def with_others_masked(
    asked: Prediction,
    present: Bool[Tensor, "copy pos"],
    mask: Float[Tensor, "d"],
    read: Callable[[Float[Tensor, "some pos d"]], Float[Tensor, "some *read"]],
    batches: Batches,
) -> Float[Tensor, "copy *read"]:
    """What is read of copies of the context in which only the tokens ``present`` are themselves."""
    embeddings = asked.embeddings

    def left(some: Bool[Tensor, "some pos"]) -> Float[Tensor, "some *read"]:
        return read(torch.where(rearrange(some, "copy pos -> copy pos 1"), embeddings, mask))

    return batches.map(left, present.to(embeddings.device), len(asked))
