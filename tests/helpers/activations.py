"""Attributions by one method on prompts of the zoo."""

from typing import Any

import torch
from torch import Tensor

import heta_lens
from helpers import zoo
from helpers.asking import predict

N, TARGET, OTHER = 4, 7, 9


def explain(model: Any, method: Any, target: Any = TARGET, n: int = N) -> heta_lens.Attribution:
    return method(predict(model, zoo.prompt(model, n), target))


def alike_by_loops(states: Tensor, query: int, *, center: bool) -> Tensor:
    states = states.double()
    mean = sum(states[i] for i in range(N)) / N if center else torch.zeros_like(states[0])
    q = states[query] - mean
    return torch.stack([(states[i] - mean) @ q / ((states[i] - mean).norm() * q.norm()) for i in range(N)])
