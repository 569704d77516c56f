"""The random directions that H is multiplied with: signs for the curvature, Gaussian ones for a low rank."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor


def rademacher(seed: int, position: int, probes: int, d: int) -> Float[Tensor, "probe d"]:
    """Random signs of one token. Every (seed, position) has its own generator, so nothing else can change them."""
    bits = np.random.default_rng([seed, position]).integers(2, size=(probes, d))
    return torch.from_numpy(2.0 * bits - 1.0)


def signs_of(seed: int, wanted: Mapping[int, range], d: int) -> list[Float[Tensor, "probe d"]]:
    """The wanted probes of each of these positions."""
    return [rademacher(seed, position, own.stop, d)[own.start :] for position, own in wanted.items()]


def gaussian(seed: int, start: int, count: int, n: int, d: int) -> Float[Tensor, "count n d"]:
    """Random directions over the ``n`` positions from ``start`` on, with a generator of their own."""
    return torch.from_numpy(np.random.default_rng([seed, start, n]).standard_normal((count, n, d)))


@dataclass(frozen=True, eq=False)
class Signs:
    """The wanted probes of tokens, by their places among states like these; those that are none of the wanted get as
    many as the first."""

    seed: int
    start: int  # the position of the first place
    wanted: Mapping[int, range]  # by position
    like: Float[Tensor, "pos d"]

    def __call__(self, places: Sequence[int]) -> list[Float[Tensor, "probe d"]]:
        positions = [self.start + place for place in places]
        first = next(iter(self.wanted.values()))
        wanted = {position: self.wanted.get(position) or first for position in positions}
        return [own.to(self.like) for own in signs_of(self.seed, wanted, self.like.shape[1])]
