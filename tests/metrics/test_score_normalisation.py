"""Signs, scales and retention, as worked by hand."""

from functools import partial
from typing import Any

import pytest
import torch

from helpers.metric_inputs import double
from heta_lens.metrics import normalised, with_mean
from heta_lens.metrics.scores import signed


@pytest.mark.parametrize(
    ("norm", "expected"),
    [
        ("none", [0.0, 1.0, 3.0]),
        ("sum", [0.0, 0.25, 0.75]),
        ("max", [0.0, 1 / 3, 1.0]),
        ("minmax", [0.0, 1 / 3, 1.0]),
        ("softmax", [0.0420, 0.1142, 0.8438]),
        ("sigmoid", [0.5, 0.7311, 0.9526]),
        ("zscore", [-1.0690, -0.2673, 1.3363]),
    ],
)
def test_scores_are_brought_to_a_scale(norm: Any, expected: list[float]) -> None:
    values, degenerate = normalised(double(-2.0, 1.0, 3.0), "relu", norm)
    assert values.tolist() == pytest.approx(expected, abs=1e-4) and not degenerate


def test_signs() -> None:
    assert signed(double(-2.0, 1.0), "relu").tolist() == [0, 1]
    assert signed(double(-2.0, 1.0), "abs").tolist() == [2, 1]
    assert signed(double(-2.0, 1.0), "none").tolist() == [-2, 1]


@pytest.mark.parametrize(("norm", "every"), [("sum", 0.25), ("max", 1.0), ("minmax", 0.5), ("zscore", 0.0)])
def test_scores_that_tell_nothing_count_all_the_same(norm: Any, every: float) -> None:
    values, degenerate = normalised(torch.zeros(4), "relu", norm)
    assert values.tolist() == [every] * 4 and degenerate
    assert normalised(torch.full((4,), 2.0), "relu", norm).degenerate


@pytest.mark.parametrize("mean", [0.05, 0.3, 0.5, 0.75, 0.95])
@pytest.mark.parametrize("values", [(4.0, 3.0, 2.0, 1.0), (1.0, 0.0, 0.0, 0.0), (1.0, 1.0, 1.0, 1.0), (0.0,) * 4])
def test_retention_has_the_mean_that_was_asked_for(values: tuple[float, ...], mean: float) -> None:
    kept = with_mean(double(*values), mean).values
    assert float(kept.mean()) == pytest.approx(mean) and (kept >= 0).all() and (kept <= 1).all()
    assert (kept.diff() <= 1e-12).all()  # what scored more keeps more
    free = (kept > 0) & (kept < 1) & (double(*values) > 0)
    ratios_of_free = (kept / double(*values))[free]
    assert ratios_of_free.numel() == 0 or float(ratios_of_free.max() - ratios_of_free.min()) < 1e-12


@pytest.mark.usefixtures("unchecked")
def test_what_has_no_scale_is_refused() -> None:
    for call, said in (
        (partial(normalised, double(1), "relu", "l2"), "norm='l2' is not one of"),
        (partial(normalised, double(1), "plus"), "sign='plus' is not one of"),
        (partial(with_mean, double(1), 1.0), "mean=1.0 must be between 0 and 1"),
        (partial(with_mean, double(-1), 0.5), "choose sign="),
    ):
        with pytest.raises(ValueError, match=said):
            call()
