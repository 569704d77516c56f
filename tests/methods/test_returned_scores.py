"""What a method may return as its scores."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from helpers import zoo
from helpers.asking import predict
from heta_lens import Prediction
from heta_lens.methods.base import checked_scores


def prediction() -> Prediction:
    model = zoo.bridge("gpt2")
    return predict(model, zoo.prompt(model, 3), 7)


@pytest.mark.parametrize("scores", [[1, 2, 3], (1.0, 2.0, 3.0), np.array([1.0, 2.0, 3.0]), torch.tensor([1, 2, 3])])
def test_any_three_numbers_are_scores_of_three_tokens(scores: Any) -> None:
    checked = checked_scores("mine", scores, prediction())
    assert checked.is_floating_point()
    assert checked.tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("scores", "error"),
    [
        ([1.0, 2.0], r"mine returned scores of shape \(2,\) for 3 tokens: return one number per token"),
        ("abc", "mine returned 'abc': return one number per token"),
        (torch.ones(3, dtype=torch.complex64), "mine returned complex scores: return one real number per token"),
        ([1.0, math.nan, 2.0], "the score is nan at position 1, token "),
    ],
)
def test_anything_else_is_refused_by_the_methods_name(scores: Any, error: str) -> None:
    with pytest.raises((TypeError, ValueError), match=error):
        checked_scores("mine", scores, prediction())
