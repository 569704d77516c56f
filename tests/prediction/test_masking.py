"""Masked embeddings, and copies in which one position is masked."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from helpers import zoo
from helpers.asking import predict
from heta_lens.prediction.gradients import likelihood
from heta_lens.prediction.masking import ablated, check_mask, mask_vector


def test_masks_of_padding_and_a_space_are_the_tokenizers() -> None:
    model = zoo.bridge("gpt2")
    prediction = predict(model, zoo.prompt(model, 4))
    for mask in ("pad", "space"):
        token = prediction.tokenizer.stand_in(mask)
        assert token is not None and torch.equal(
            mask_vector(prediction, mask), prediction.adapter.embedding_table()[token]
        )


@pytest.mark.parametrize("mask", ["blank", 1.5, torch.zeros(2, 2), torch.zeros(2, dtype=torch.long)], ids=str)
def test_other_masks_are_refused(mask: object) -> None:
    with pytest.raises(ValueError, match="mask"):
        check_mask("mask", mask)


@torch.no_grad()
@pytest.mark.parametrize("build", zoo.models())
def test_masked_copies_equal_whole_runs_wherever_they_begin(build: Any, forwards: Callable[[Any], list[Any]]) -> None:
    model, length = build(), 12
    prediction = predict(model, zoo.prompt(model, length), 9)
    generator = torch.Generator().manual_seed(0)
    present = torch.rand(40, length, generator=generator) < 0.5
    present |= torch.arange(length) < torch.randint(length + 1, (40, 1), generator=generator)  # masked late, or nowhere
    mask, batches = mask_vector(prediction, "zero"), prediction.batches("auto", length)
    with prediction.running():
        states = torch.where(present[..., None], prediction.embeddings, mask)
        expected = torch.cat([likelihood(prediction, one[None], "log_prob") for one in states])
        runs = forwards(model)
        found = ablated(prediction, present, mask, prediction.objective, batches)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert prediction.prompt.reuse != "on" or min(run[0].shape[1] for run in runs) < length
