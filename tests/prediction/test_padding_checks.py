"""Padding: which positions of a batch are real."""

import pytest
import torch

from heta_lens.prediction.checks import check_unpadded, real_parts


def test_the_real_part_of_each_row() -> None:
    assert real_parts(torch.tensor([[0, 1, 1], [1, 1, 0]]), 2, 3) == [slice(1, 3), slice(0, 2)]


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ([[1, 1]], r"must be of shape \(1, 3\)"),
        ([[1, 2, 1]], "must be 1 where a token is real"),
        ([[0, 0, 0]], "leaves nothing of prompt 0"),
        ([[1, 0, 1]], "leaves out position 1 inside prompt 0"),
    ],
)
def test_other_masks_are_refused(mask: list[list[int]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        real_parts(mask, 1, 3)


def test_padding_without_a_mask_is_suspected() -> None:
    check_unpadded([[1, 5, 6]], 0, 1)
    check_unpadded([[1, 5, 6]], 1, 1)  # a BOS that is the padding token too
    for ids, where in (([0, 5], "begins"), ([5, 0], "ends")):
        with pytest.raises(ValueError, match=f"{where} with the padding token 0"):
            check_unpadded([ids], 0, 1)
