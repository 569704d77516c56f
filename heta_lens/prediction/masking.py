"""What a masked token's embedding becomes, and contexts in which one token at a time is masked."""

from collections.abc import Callable
from operator import index
from typing import Annotated, Any, Literal, SupportsIndex, TypeAlias, get_args

import torch
from einops import repeat
from jaxtyping import Float, Int
from torch import Tensor

from heta_lens._util.options import check_token, is_whole
from heta_lens.model.tokenizer import StandIn

MaskName: TypeAlias = Literal["zero", "mean", "vocab_mean", StandIn]
Mask: TypeAlias = MaskName | SupportsIndex | Tensor


def check_mask(name: str, mask: Any) -> None:
    """Refuse a mask that is neither a known name, a token id nor a vector, before any work."""
    if isinstance(mask, Tensor):
        if mask.ndim != 1 or not mask.is_floating_point():
            raise ValueError(f"{name} must be one vector of floats, not {mask.dtype} of shape {tuple(mask.shape)}")
    elif not (is_whole(mask) or (isinstance(mask, str) and mask in get_args(MaskName))):
        raise ValueError(f"{name}={mask!r} is not one of {', '.join(get_args(MaskName))}, a token id or a torch vector")


Masking: TypeAlias = Annotated[Mask, check_mask]  # the type of an option


def mask_vector(
    mask: Mask,
    embeddings: Float[Tensor, "pos d"],
    table: Callable[..., Float[Tensor, "token d"]],
    size: int,
    stand_in: Callable[[StandIn], int | None] = lambda _: None,
) -> Float[Tensor, "d"]:
    """The embedding that replaces a masked token's: zeros, an average, another token's, or the given one.

    ``table`` returns the embeddings of some ids, or of all ``size`` there are; ``stand_in`` gives the id that
    "pad" or "space" means.
    """
    if isinstance(mask, str) and (mask == "pad" or mask == "space"):
        token = stand_in(mask)
        if token is None:
            raise ValueError(f"mask={mask!r} needs a tokenizer with a padding, end or unknown token: give a token id")
        mask = token
    if isinstance(mask, Tensor):
        if len(mask) != embeddings.shape[1]:
            raise ValueError(f"mask has {len(mask)} entries; this model's embeddings have {embeddings.shape[1]}")
        return mask.detach().to(embeddings)
    if not isinstance(mask, str):
        check_token("mask", index(mask), size)
        return table([index(mask)])[0].to(embeddings)
    if mask == "mean":
        return embeddings.mean(0)
    if mask == "vocab_mean":
        return table().to(embeddings).mean(0)
    return torch.zeros_like(embeddings[0])


def masked_copies(
    embeddings: Float[Tensor, "pos d"],
    positions: Int[Tensor, "copy"],
    vector: Float[Tensor, "d"] | Float[Tensor, "copy d"],
) -> Float[Tensor, "copy pos d"]:
    """A copy of the context for each position, in which only that position is masked, by a shared vector or its own."""
    copies = repeat(embeddings, "pos d -> copy pos d", copy=len(positions)).clone()
    copies[torch.arange(len(positions), device=copies.device), positions] = vector
    return copies
