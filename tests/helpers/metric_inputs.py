"""Predictions and scores that tests of metrics share."""

from typing import Any

import pytest
import torch
from torch import Tensor

import heta_lens
from helpers import zoo
from helpers.asking import predict

N, TARGET = 8, 7
MODEL = pytest.mark.parametrize("build", zoo.models("-(gpt2|llama|gptj)$"))
ONE_EACH = pytest.mark.parametrize("build", zoo.models("-gpt2$"))


def double(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def prediction_of(model: Any, n: int = N) -> heta_lens.Prediction:
    return predict(model, zoo.prompt(model, n), TARGET)


def some_scores(n: int = N) -> Tensor:
    return torch.rand(n, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
