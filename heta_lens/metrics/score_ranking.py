"""The order that scores put tokens in: highest first, of equal ones the first in the text."""

from collections.abc import Sequence
from typing import Literal

from jaxtyping import Float
from torch import Tensor

from heta_lens._util.token_share import TOLERANCE
from heta_lens.metrics.candidate_tokens import Positions, places
from heta_lens.metrics.score_checks import finite_scores

Order = Literal["morf", "lerf"]


def ranked(scores: Float[Tensor, "pos"], candidates: Positions | None = None, order: Order = "morf") -> list[int]:
    """The candidates (all, if none are named), most relevant first, or least (``lerf``)."""
    scores = finite_scores(scores)
    positions = places(candidates, len(scores))
    ranking = scores[positions].argsort(descending=order == "morf", stable=True)
    return [positions[rank] for rank in ranking.tolist()]


def highest(scores: Float[Tensor, "pos"], k: int, candidates: Positions | None = None) -> list[int]:
    """Where the ``k`` highest scores are, or all where there are less."""
    return ranked(scores, candidates)[:k]


def reaching(values: Sequence[float], mass: float) -> int:
    """How many of these values, from the first on, make up that share of their sum; all of them, where it is 0."""
    if not 0 < mass <= 1:
        raise ValueError(f"mass={mass} must be above 0 and at most 1")
    whole, reached = sum(values), 0.0
    for count, value in enumerate(values, 1):
        reached += value
        if whole > 0 and reached >= mass * whole * (1 - TOLERANCE):
            return count
    return len(values)
