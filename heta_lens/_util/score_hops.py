"""Scores that are passed on: from tokens that a model wrote itself to the tokens that made it write them.

A written token gives what it has to the tokens before it, in proportion to its own scores of them. What it gives may
come to another written token, which passes it on in turn, so that scores arrive in hops.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad


class Hops(NamedTuple):
    """What stays at each token after so many hops: row 0 is what never came to a written token.

    Shares have signs: what speaks against a token that speaks for the target speaks against the target. Their sizes sum
    to 1, whatever the signs, so that ``sizes``, what speaks for the target plus what speaks against it, is what nothing
    is lost of; ``values`` is what speaks for it minus what speaks against it.
    """

    values: Float[Tensor, "hop pos"]
    sizes: Float[Tensor, "hop pos"]


def hops(scores: Float[Tensor, "pos"], written: Sequence[Float[Tensor, "_"]]) -> Hops:
    """``scores`` of a target are passed on by the ``written`` tokens, each by its scores of all tokens before it.

    A written token all of whose own scores are 0 has nothing to go by, and keeps what it has.
    """
    start, stop = len(written[0]), len(written[0]) + len(written)
    shares = torch.stack([pad(_shares(row.double()), (0, len(scores) - len(row))) for row in written])
    gives = shares.any(1)
    speaking = torch.stack([scores.double().clamp(min=0), -scores.double().clamp(max=0)])  # for the target, and against
    rows = []
    for _ in range(len(written) + 1):  # what moves, moves to the left
        moving = speaking[:, start:stop] * gives
        staying = speaking.clone()
        staying[:, start:stop] -= moving
        rows.append(staying)
        if not moving.any():
            break
        speaking = moving @ shares.clamp(min=0) + moving.flip(0) @ -shares.clamp(max=0)
    by_hop = torch.stack(rows)
    return Hops((by_hop[:, 0] - by_hop[:, 1]).to(scores), by_hop.sum(1).to(scores))


def _shares(row: Float[Tensor, "source"]) -> Float[Tensor, "source"]:
    """The row divided by the sum of its sizes, which may be so large or small that their sum is no number."""
    largest = row.abs().max()
    scaled = row / largest if largest > 0 else row
    return scaled / scaled.abs().sum().clamp(min=1)
