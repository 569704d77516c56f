"""Masks: names, token ids and vectors that stand for the replacement of a token's embedding."""

from typing import Annotated, Any, Literal, SupportsIndex, TypeAlias, get_args

from torch import Tensor

from heta_lens._util.options import is_whole
from heta_lens.model.tokenizer import StandIn

MaskName: TypeAlias = Literal["zero", "mean", "vocab_mean", StandIn]
Mask: TypeAlias = MaskName | SupportsIndex | Tensor


def check_mask(name: str, mask: Any) -> None:
    """Refuse a mask that is neither a known name, a token id nor a vector."""
    if isinstance(mask, Tensor):
        if mask.ndim != 1 or not mask.is_floating_point():
            raise ValueError(f"{name} must be one vector of floats, not {mask.dtype} of shape {tuple(mask.shape)}")
    elif not (is_whole(mask) or (isinstance(mask, str) and mask in get_args(MaskName))):
        raise ValueError(f"{name}={mask!r} is not one of {', '.join(get_args(MaskName))}, a token id or a torch vector")


Masking: TypeAlias = Annotated[Mask, check_mask]  # the type of an option
