"""Ranking of scores, and how many tokens a share is."""

import pytest
import torch

from heta_lens.metrics.evidence import highest, ranked, reaching


def test_equal_scores_keep_the_order_of_the_text() -> None:
    scores = torch.tensor([0.5, 2.0, 0.5, -1.0])
    assert ranked(scores) == [1, 0, 2, 3] and ranked(scores, order="lerf") == [3, 0, 2, 1]
    assert ranked(scores, [2, 3]) == [2, 3] and highest(scores, 2) == [1, 0] and len(highest(scores, 9)) == 4


def test_the_fewest_values_reach_a_mass() -> None:
    assert reaching([4.0, 3.0, 2.0, 1.0], 0.7) == 2 and reaching([0.0, 0.0], 0.5) == 2
    with pytest.raises(ValueError, match=r"mass=0\.0 must be above 0"):
        reaching([1.0], 0.0)
