"""Distances between predictions, and NC and NS of them."""

from math import log

import pytest
import torch

from heta_lens.metrics.scores import DISTANCES, ratios

CLEAN = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64).log()
WITHOUT, ONLY, NOTHING = (
    torch.tensor([row], dtype=torch.float64).log() for row in ([0.4, 0.4, 0.2], [0.5, 0.3, 0.2], [1 / 3, 1 / 3, 1 / 3])
)


def test_the_worked_example_of_soft_nc_and_ns() -> None:
    apart = [DISTANCES["root"](other, CLEAN, 0) for other in (WITHOUT, ONLY, NOTHING)]
    assert [float(one) for one in apart] == pytest.approx([0.065882, 0.031143, 0.107736], abs=1e-6)
    nc, ns = ratios(apart[0], apart[1], float(apart[2]))
    assert (float(nc), float(ns)) == pytest.approx((0.611513, 0.710929), abs=1e-6)
    assert float(DISTANCES["hellinger"](WITHOUT, CLEAN, 0) / apart[2]) == pytest.approx(2.0034, abs=1e-4)
    assert float(DISTANCES["hellinger_sq"](WITHOUT, CLEAN, 0)) == pytest.approx(0.065882 / 2**0.5, abs=1e-6)
    assert float(DISTANCES["target_prob"](WITHOUT, CLEAN, 0)) == pytest.approx(0.3)
    assert float(DISTANCES["target_prob"](WITHOUT, CLEAN, 1)) == 0
    expected = 0.7 * log(0.7 / 0.4) + 0.2 * log(0.5) + 0.1 * log(0.5)
    assert float(DISTANCES["kl"](WITHOUT, CLEAN, 0)) == pytest.approx(expected)
