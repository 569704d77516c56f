"""Value swaps: what some tokens hand on in one layer, put into another run."""

from collections.abc import Sequence
from contextlib import AbstractContextManager

import torch
from jaxtyping import Float
from torch import Tensor

from heta_lens.lens import BatchHook, values_name
from heta_lens.prediction import Prediction


@torch.no_grad()
def values_at(prediction: Prediction, places: Sequence[int], layer: int) -> Float[Tensor, "place ..."]:
    """The value vectors of these tokens, as this model lays them out."""
    seen: list[Tensor] = []

    def note(live: Tensor) -> None:
        seen.append(live[0, list(places)].clone())

    with prediction.running():
        prediction.lens.run(prediction.ids[None], {values_name(layer): note})
    return seen[0]


def values_put(
    prediction: Prediction, places: Sequence[int], values: Float[Tensor, "place ..."], layer: int
) -> AbstractContextManager[None]:
    """While this lasts, these tokens have these values in every run of the model that reaches them."""

    def hook(live: Tensor) -> Tensor:
        found = live.clone()
        there = [row for row, place in enumerate(places) if place < live.shape[1]]
        found[:, [places[row] for row in there]] = values[there].to(live)
        return found

    return prediction.lens.hooked([(values_name(layer), BatchHook(hook))])
