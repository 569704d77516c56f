"""Random scores and recency."""

import numpy as np
import pytest
import torch

from helpers import zoo
from helpers.asking import predict, relative
from heta_lens.methods.controls import RandomScores, Recency

N = 6


def test_scores_are_a_softmax_of_uniform_draws() -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, N)
    scores = RandomScores(seed=3)(predict(model, ids)).scores
    exponentials = np.exp(np.random.default_rng([3, *ids[0].tolist()]).random(N))
    assert relative(scores, torch.from_numpy(exponentials / exponentials.sum())) < 1e-12


def test_the_last_token_gets_1_and_each_before_it_less() -> None:
    model = zoo.bridge("gpt2")
    attribution = Recency()(predict(model, zoo.prompt(model, 4)))
    assert attribution.scores.tolist() == pytest.approx([1 / 4, 1 / 3, 1 / 2, 1])
    assert attribution.diagnostics["forwards"] == 0
