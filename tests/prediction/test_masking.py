"""Masked embeddings, and copies in which one position is masked."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

import heta_lens
from heta_lens.prediction.masking import mask_vector, masked_copies
from heta_lens.model.mask import check_mask

EMBEDDINGS = torch.tensor([[1.0, 2], [3, 4]])
TABLE = torch.tensor([[10.0, 20], [30, 40], [50, 60]])


def table(ids: Sequence[int] | None = None) -> Tensor:
    return TABLE if ids is None else TABLE[[*ids]]


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        ("zero", [0, 0]),
        ("mean", [2, 3]),
        ("vocab_mean", [30, 40]),
        ("pad", [50, 60]),
        ("space", [30, 40]),
        (1, [30, 40]),
    ],
)
def test_what_a_masked_embedding_becomes(mask: str | int, expected: list[float]) -> None:
    assert mask_vector(mask, EMBEDDINGS, table, 3, {"pad": 2, "space": 1}.get).tolist() == expected  # type: ignore[arg-type]


def test_each_copy_has_one_masked_position() -> None:
    copies = masked_copies(EMBEDDINGS, torch.tensor([0, 1]), torch.tensor([7.0, 8]))
    assert copies.tolist() == [[[7, 8], [3, 4]], [[1, 2], [7, 8]]]


@pytest.mark.parametrize("mask", ["blank", 1.5, torch.zeros(2, 2), torch.zeros(2, dtype=torch.long)])
def test_other_masks_are_refused(mask: object) -> None:
    with pytest.raises(ValueError, match="mask"):
        check_mask("mask", mask)


def test_masked_copies_change_one_token_each() -> None:
    embeddings = torch.arange(12.0).reshape(4, 3)
    copies = masked_copies(embeddings, torch.tensor([1, 3]), torch.full((3,), -1.0))
    assert (copies != embeddings).any(-1).tolist() == [[False, True, False, False], [False, False, False, True]]
    assert (copies[0, 1] == -1).all()


def test_masks_do_not_ask_for_the_vocabulary_they_do_not_need() -> None:
    def vocabulary(ids: object = None) -> Tensor:
        raise AssertionError(f"{ids} not needed")

    embeddings = torch.ones(2, 3)
    assert mask_vector("zero", embeddings, vocabulary, 5).tolist() == [0, 0, 0]
    assert mask_vector("mean", embeddings, vocabulary, 5).tolist() == [1, 1, 1]
    assert mask_vector(torch.full((3,), 2.0), embeddings, vocabulary, 5).tolist() == [2, 2, 2]


def test_every_mask_has_the_type_of_the_embeddings() -> None:
    embeddings, vocabulary = torch.ones(2, 3), torch.ones(5, 3, dtype=torch.float64)
    for mask in ("zero", "mean", "vocab_mean", 4, torch.ones(3, dtype=torch.bfloat16)):
        found = mask_vector(mask, embeddings, lambda ids=slice(None): vocabulary[ids], len(vocabulary))
        assert found.dtype == torch.float32, mask


def test_a_mask_of_whole_numbers_is_not_taken_for_a_vector() -> None:
    with pytest.raises(ValueError, match="one vector of floats"):
        heta_lens.Heta(mask=torch.ones(8, dtype=torch.long))
