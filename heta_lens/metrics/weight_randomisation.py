"""Weight randomisation (Adebayo 2018): shuffled weights must change the scores of a method that explains them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from heta_lens._util.options import check_at_least
from heta_lens.diagnostics import rank_correlation
from heta_lens.metrics.candidate_tokens import Positions, places
from heta_lens.metrics.robustness import Explain, again
from heta_lens.metrics.score_checks import finite_scores
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.locking import changing, one_at_a_time
from heta_lens.model.weight_reading import is_elsewhere
from heta_lens.prediction.prediction import Prediction

UNREADABLE = "weights that are quantised or offloaded cannot be shuffled"


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
    """Spearman's correlation of the sizes of scores before and after the last layers' weights are shuffled.

    By the number of layers, from the last one down (every number of them, if none are given); near 0 is right, and 1
    says that the method is insensitive to those layers. NaN where the scores before or after are all equal.
    """
    depths = [*range(1, prediction.adapter.layers + 1)] if layers is None else layers
    check_at_least("seed", seed, 0, whole=True)
    scores, positions = finite_scores(scores, len(prediction)), places(candidates, len(prediction))
    correlations: dict[int, float] = {}
    for depth in depths:
        with shuffled(prediction.adapter, depth, seed):
            other = explain(again(prediction)).scores
        correlations[depth] = rank_correlation(scores.abs()[positions], other.abs()[positions])
    return correlations


@contextmanager
def shuffled(adapter: ModelAdapter, depth: int, seed: int = 0) -> Iterator[None]:
    """Shuffle the entries of each weight of the last layers until the block ends."""
    if not 1 <= depth <= adapter.layers:
        raise ValueError(f"{depth} layers cannot be shuffled: the model has {adapter.layers}")
    if not can_be_shuffled(adapter):
        raise ValueError(f"{UNREADABLE}: load the model in 16 or 32 bits, in memory")
    weights = [weight for layer in list(adapter.blocks)[adapter.layers - depth :] for weight in layer.parameters()]
    before: list[tuple[Any, Tensor]] = [(weight, weight.detach().clone()) for weight in unique(weights)]
    generator = torch.Generator().manual_seed(seed)
    with changing(adapter.model, partial(_put_back, before)):
        with torch.no_grad():
            for weight, old in before:
                order = torch.randperm(old.numel(), generator=generator).to(old.device)
                weight.copy_(old.flatten()[order].view_as(old))
        yield


@torch.no_grad()
def _put_back(before: Sequence[tuple[Any, Tensor]]) -> None:
    for weight, old in before:
        weight.copy_(old)


def can_be_shuffled(adapter: ModelAdapter) -> bool:
    """Whether all weights are in memory, each entry as the number that it stands for."""
    return not adapter.quantised and not any(map(is_elsewhere, adapter.model.parameters()))


def unique(weights: list[Any]) -> list[Any]:
    return list({id(weight): weight for weight in weights}.values())
