"""Information flow routes against plain loops, and what is conserved."""

from typing import Any

import pytest
import torch
from torch import Tensor

from helpers import zoo
from helpers.asking import predict, relative
from heta_lens.methods.information_flow import Flow, Ifr

N = 6
BUILD = pytest.mark.parametrize("build", zoo.models("-(gpt2|gptj|llama)$"))


def plain(prediction: Any, threshold: float = 0) -> Tensor:
    """The definition, one position, head and token at a time."""
    with prediction.running():
        flow = Flow.of(prediction)
    weights = [0.0] * (N - 1) + [1.0]
    for number in reversed(range(prediction.adapter.layers)):
        layer, below = flow[number], [0.0] * N
        for i in range(N):
            norm = float(layer.after[i].abs().sum())
            stayed = max(0.0, norm - float((layer.after[i] - layer.before[i]).abs().sum()))
            supplied = [(i, stayed)]
            for h in range(len(layer.pattern)):
                for j in range(i + 1):
                    part = layer.pattern[h, i, j] * layer.read[h, j]
                    supplied.append((j, max(0.0, norm - float((layer.after[i] - part).abs().sum()))))
            whole = sum(amount for _, amount in supplied)
            kept = [(j, amount / whole) for j, amount in supplied if amount / whole > threshold]
            for j, share in kept:
                below[j] += weights[i] * share / sum(share for _, share in kept)
        weights = below
    return torch.tensor(weights, dtype=torch.float64)


@pytest.mark.parametrize("threshold", [0, 0.05])
@BUILD
def test_scores_are_those_of_the_definition(build: Any, threshold: float) -> None:
    prediction = predict(build(), zoo.prompt(build(), N), 7)
    found = Ifr(threshold=threshold)(prediction).scores
    assert relative(found, plain(prediction, threshold)) < 1e-9
    assert float(found.sum()) == pytest.approx(1, abs=1e-9)


def test_where_no_share_is_above_the_threshold_all_stays() -> None:
    prediction = predict(zoo.bridge("gpt2"), zoo.prompt(zoo.bridge("gpt2"), N), 7)
    assert Ifr(threshold=0.999)(prediction).scores.tolist() == [0] * (N - 1) + [1]


@BUILD
def test_later_prompts_change_nothing(build: Any) -> None:
    model, ids = build(), zoo.prompt(build(), N + 3)
    whole = Ifr()(predict(model, ids[:, :N], 7)).scores
    assert relative(Ifr()(predict(model, ids, 7, position=N)).scores, whole) < 1e-6
