"""Prompts of different length in one batch: which positions are real, and which are padding."""

from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor


def real_parts(mask: Any, prompts: int, length: int) -> list[slice]:
    """Where each prompt's own tokens are, by an attention mask that is 1 there: one contiguous range per row."""
    try:
        rows = torch.as_tensor(mask)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError("attention_mask= takes a tensor of 0 and 1, a row for each prompt") from None
    if rows.shape != (prompts, length):
        raise ValueError(
            f"attention_mask= must be of shape {(prompts, length)}, as the cached tokens; got {tuple(rows.shape)}"
        )
    if not ((rows == 0) | (rows == 1)).all():
        raise ValueError("attention_mask= must be 1 where a token is real and 0 where padding is, and nothing else")
    return [_range(row, number) for number, row in enumerate(rows.long().cpu())]


def _range(row: Int[Tensor, "pos"], number: int) -> slice:
    positions = row.nonzero().flatten()
    if not len(positions):
        raise ValueError(f"attention_mask= leaves nothing of prompt {number}: all of it is padding")
    start, stop = int(positions[0]), int(positions[-1]) + 1
    if stop - start != len(positions):
        hole = start + int((row[start:stop] == 0).nonzero()[0])
        raise ValueError(f"attention_mask= leaves out position {hole} inside prompt {number}: padding is at an end")
    return slice(start, stop)


def check_unpadded(rows: list[list[int]], pad: int | None, bos: int | None) -> None:
    """Refuse a batch that seems to be padded where no mask says so."""
    for number, ids in enumerate(rows):
        leading = ids[0] == pad and (pad != bos or ids[1:2] == [pad])
        if pad is not None and (leading or ids[-1] == pad):
            raise ValueError(
                f"prompt {number} of the batch {'begins' if leading else 'ends'} with the padding token {pad}: pass "
                "attention_mask=, 1 where a token is real (all ones if this token is)"
            )
