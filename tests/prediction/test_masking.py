"""Masked embeddings, and copies in which one position is masked."""

import pytest
import torch

from helpers import zoo
from heta_lens.model.adapter import ModelAdapter, check_mask


def test_masks_of_padding_and_a_space_are_the_tokenizers() -> None:
    adapter = ModelAdapter(zoo.bridge("gpt2"))
    embeddings, table = torch.ones(2, 8), adapter.embedding_table().float()
    for mask in ("pad", "space"):
        token = adapter.tokenizer.stand_in(mask)
        assert token is not None and torch.equal(adapter.mask_vector(mask, embeddings), table[token])


@pytest.mark.parametrize("mask", ["blank", 1.5, torch.zeros(2, 2), torch.zeros(2, dtype=torch.long)], ids=str)
def test_other_masks_are_refused(mask: object) -> None:
    with pytest.raises(ValueError, match="mask"):
        check_mask("mask", mask)
