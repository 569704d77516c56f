"""The peak of memory that a method's tensors hold."""

from typing import Any

import torch

from helpers import zoo
from helpers.asking import predict
from heta_lens.evaluation.reproduce.cells import peak_memory


def test_the_peak_counts_what_lives_at_once_and_shared_storage_once() -> None:
    model = zoo.bridge("gpt2")
    prediction = predict(model, zoo.prompt(model, 4), 7)

    def one_after_another(_: Any) -> None:
        for _ in range(5):
            torch.zeros(2**18)

    def together(_: Any) -> None:
        held = [torch.zeros(2**18) for _ in range(5)]
        held.append(held[0][1:])

    assert peak_memory(one_after_another, prediction) == 2**20
    assert peak_memory(together, prediction) == 5 * 2**20
