"""Which tokens are evaluated: the same ones for every method."""

from collections.abc import Collection, Sequence
from typing import TypeAlias

import torch
from jaxtyping import Bool

from heta_lens.metrics.score_checks import positions_in
from heta_lens.prediction.prediction import Prediction

Positions: TypeAlias = Collection[int]


def ordinary(prediction: Prediction) -> list[int]:
    """All but special tokens, which are attention sinks and carry no content."""
    special = prediction.adapter.tokenizer.special(prediction.ids.tolist())
    return [position for position, hidden in enumerate(special) if not hidden]


def places(candidates: Positions | None, length: int) -> list[int]:
    """Candidates in the order of the text; None stands for all positions."""
    if candidates is None:
        return [*range(length)]
    positions = sorted({*positions_in("candidates", candidates, length)})
    if not positions:
        raise ValueError("candidates is empty: there is no token to evaluate")
    return positions


def rows_of(chosen: Sequence[Positions], length: int) -> Bool[torch.Tensor, "row pos"]:
    """A row for each set of positions, True at them."""
    rows = torch.zeros(len(chosen), length, dtype=torch.bool)
    for row, positions in zip(rows, chosen, strict=True):
        row[[*positions]] = True
    return rows
