"""Sanity (Adebayo 2018): a method that explains a model says something else about one whose weights mean nothing."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from heta_lens.diagnostics import rank_correlation
from heta_lens.lens import Lens
from heta_lens.metrics.candidates import Positions, places
from heta_lens.metrics.checks import finite_scores
from heta_lens.metrics.robustness import Explain, again
from heta_lens.options import check_at_least
from heta_lens.prediction import Prediction
from heta_lens.turns import changing, one_at_a_time


@one_at_a_time("prediction")
def cascade(
    prediction: Prediction,
    explain: Explain,
    scores: Tensor,
    *,
    layers: list[int] | None = None,
    seed: int = 0,
    candidates: Positions | None = None,
) -> dict[int, float]:
    """Spearman's correlation of the sizes of scores with those they have when the last layers' weights are shuffled.

    By how many layers that are, from the last one down (every number of them, if none are named); near 0 is right, and
    1 says that the method is blind to what those layers do. NaN where one side tells no tokens apart.
    """
    depths = [*range(1, prediction.lens.layers + 1)] if layers is None else layers
    check_at_least("seed", seed, 0, whole=True)
    scores, judged = finite_scores(scores, len(prediction)), places(candidates, len(prediction))
    found: dict[int, float] = {}
    for depth in depths:
        with shuffled(prediction.lens, depth, seed):
            other = explain(again(prediction)).scores
        found[depth] = rank_correlation(scores.abs()[judged], other.abs()[judged])
    return found


@contextmanager
def shuffled(lens: Lens, depth: int, seed: int = 0) -> Iterator[None]:
    """The numbers of each weight of the last layers change places among themselves, until this ends."""
    if not 1 <= depth <= lens.layers:
        raise ValueError(f"{depth} layers cannot be shuffled: the model has {lens.layers}")
    weights = [weight for layer in list(lens.blocks)[lens.layers - depth :] for weight in layer.parameters()]
    before: list[tuple[Any, Tensor]] = [(weight, weight.detach().clone()) for weight in unique(weights)]
    generator = torch.Generator().manual_seed(seed)
    with changing(lens.model, partial(_put_back, before)):
        with torch.no_grad():
            for weight, old in before:
                order = torch.randperm(old.numel(), generator=generator).to(old.device)
                weight.copy_(old.flatten()[order].view_as(old))
        yield


@torch.no_grad()
def _put_back(before: Sequence[tuple[Any, Tensor]]) -> None:
    for weight, old in before:
        weight.copy_(old)


def unique(weights: list[Any]) -> list[Any]:
    return list({id(weight): weight for weight in weights}.values())
