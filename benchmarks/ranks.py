"""The rank of evidence among scores, where equal scores have no order, and what a random order would give."""

from collections.abc import Collection
from math import comb

from torch import Tensor


def reciprocal_rank(scores: Tensor, evidence: Collection[int], candidates: Collection[int]) -> float:
    """Return the mean of 1 over the rank of the first evidence, over all orders of equal scores; highest first."""
    own = {place: float(scores[place]) for place in candidates}
    best = max(own[place] for place in evidence)
    equal = [place for place in candidates if own[place] == best]
    before = sum(score > best for score in own.values())
    return by_chance(len(equal), sum(place in evidence for place in equal), before)


def by_chance(candidates: int, evidence: int, before: int = 0) -> float:
    """Return the mean of 1 over the rank of the first evidence in a random order, after so many others."""
    orders = comb(candidates, evidence)
    ranks = range(1, candidates - evidence + 2)
    return sum(comb(candidates - rank, evidence - 1) / orders / (before + rank) for rank in ranks)
