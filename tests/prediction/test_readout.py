"""How likely the target is, on each scale."""

from math import log
from typing import Any

import numpy as np
import torch

from heta_lens.prediction.target import on_scale


def close(found: Any, expected: Any, tolerance: float = 1e-9) -> None:
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=0, atol=tolerance)


def test_the_odds_of_a_joint_probability() -> None:
    joint = torch.tensor([0.4, 0.6], dtype=torch.float64).log()
    close(float(on_scale(joint, 0, "log_odds")), -0.405465, 1e-6)
    close(log(0.4 / 0.6), -0.405465, 1e-6)


def test_the_odds_of_a_sure_thing_are_known_and_have_a_slope() -> None:
    logits = torch.tensor([90.0, 0.0, 0.0], requires_grad=True)
    odds = on_scale(logits, 0, "log_odds")
    odds.backward()
    close(odds.item(), 90 - log(2), 1e-4)
    assert logits.grad is not None and logits.grad.tolist() == [1, -0.5, -0.5]
