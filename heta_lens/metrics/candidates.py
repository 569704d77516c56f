"""Which tokens are judged: the same ones for every method."""

from collections.abc import Collection, Sequence
from typing import TypeAlias

import torch
from jaxtyping import Bool

from heta_lens.metrics.checks import positions_in
from heta_lens.prediction import Prediction

Positions: TypeAlias = Collection[int]


def ordinary(prediction: Prediction) -> list[int]:
    """All but special tokens, on which attention rests when it has nowhere to go, and which say nothing."""
    special = prediction.lens.speller.special(prediction.ids.tolist())
    return [at for at, hidden in enumerate(special) if not hidden]


def places(candidates: Positions | None, length: int) -> list[int]:
    """In the order of the text; None stands for all there are."""
    if candidates is None:
        return [*range(length)]
    found = sorted({*positions_in("candidates", candidates, length)})
    if not found:
        raise ValueError("candidates is empty: there is no token to judge")
    return found


def rows_of(chosen: Sequence[Positions], length: int) -> Bool[torch.Tensor, "row pos"]:
    """A row for each set of positions, True at them."""
    rows = torch.zeros(len(chosen), length, dtype=torch.bool)
    for row, positions in zip(rows, chosen, strict=True):
        row[[*positions]] = True
    return rows
