"""Random scores: a softmax of uniform draws that only the seed and the length decide."""

import numpy as np
import torch

from helpers import zoo
from helpers.asking import predict, relative
from heta_lens.methods.control.random_scores import RandomScores

N = 6


def test_scores_are_a_softmax_of_uniform_draws() -> None:
    model = zoo.bridge("gpt2")
    scores = RandomScores(seed=3)(predict(model, zoo.prompt(model, N))).scores
    exponentials = np.exp(np.random.default_rng([3, N]).random(N))
    assert relative(scores, torch.from_numpy(exponentials / exponentials.sum())) < 1e-12


def test_neither_the_tokens_nor_the_target_matter() -> None:
    model = zoo.bridge("gpt2")
    first, second = (predict(model, zoo.prompt(model, N, seed=seed), seed + 7) for seed in (0, 1))
    assert torch.equal(RandomScores()(first).scores, RandomScores()(second).scores)
    assert not torch.equal(RandomScores()(first).scores, RandomScores(seed=1)(first).scores)
