"""Masked embeddings, and copies in which one position is masked."""

from typing import Any

import pytest
import torch

from helpers import zoo
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.mask import check_mask
from heta_lens.prediction.masking import masked_copies


def test_masks_of_padding_and_a_space_are_the_tokenizers() -> None:
    adapter = ModelAdapter(zoo.bridge("gpt2"))
    embeddings, table = torch.ones(2, 8), adapter.embedding_table().float()
    for mask in ("pad", "space"):
        token = adapter.tokenizer.stand_in(mask)
        assert token is not None and torch.equal(adapter.mask_vector(mask, embeddings), table[token])


def test_masks_do_not_ask_for_the_vocabulary_that_they_do_not_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ModelAdapter, "embedding_table", None)
    adapter, embeddings = ModelAdapter(zoo.bridge("gpt2")), torch.tensor([[1.0, 2], [3, 4]])
    for mask, expected in (("zero", [0, 0]), ("mean", [2, 3]), (torch.full((2,), 2.0), [2, 2])):
        assert adapter.mask_vector(mask, embeddings).tolist() == expected


@pytest.mark.parametrize("mask", ["zero", "mean", "vocab_mean", "pad", 4, torch.ones(8, dtype=torch.bfloat16)], ids=str)
def test_every_mask_has_the_type_of_the_embeddings(mask: Any) -> None:
    assert ModelAdapter(zoo.bridge("gpt2")).mask_vector(mask, torch.ones(2, 8)).dtype == torch.float32


@pytest.mark.parametrize("mask", ["blank", 1.5, torch.zeros(2, 2), torch.zeros(2, dtype=torch.long)], ids=str)
def test_other_masks_are_refused(mask: object) -> None:
    with pytest.raises(ValueError, match="mask"):
        check_mask("mask", mask)


def test_a_mask_of_another_models_size_is_refused() -> None:
    with pytest.raises(ValueError, match="mask has 3 entries; this model's embeddings have 8"):
        ModelAdapter(zoo.bridge("gpt2")).mask_vector(torch.ones(3), torch.ones(2, 8))


def test_masked_copies_change_one_token_each() -> None:
    embeddings = torch.arange(12.0).reshape(4, 3)
    copies = masked_copies(embeddings, torch.tensor([1, 3]), torch.full((3,), -1.0))
    assert (copies != embeddings).any(-1).tolist() == [[False, True, False, False], [False, False, False, True]]
    assert (copies[0, 1] == -1).all()
