"""What attention heads write into the residual stream, also where query heads share a group's values."""

from einops import einsum, repeat
from jaxtyping import Float
from torch import Tensor


def head_outputs(
    values: Float[Tensor, "pos group d_head"], output: Float[Tensor, "head d_head d"]
) -> Float[Tensor, "head pos d"]:
    """``v_i W_O``: what each head would write if it attended to one position only."""
    shared = repeat(values, "pos group d_head -> pos (group share) d_head", share=len(output) // values.shape[1])
    return einsum(shared, output, "pos head d_head, head d_head d -> head pos d")
