"""Measures: values that are best near 0."""

import pytest

from helpers.report_folder import mean_of
from heta_lens.evaluation.report.figures import BETTER, WORSE, mark
from heta_lens.evaluation.report.results import Summary


def test_what_is_best_near_0_is_compared_by_its_distance(found: Summary) -> None:
    half, even = found.cells["bias", "half"].difference, range(0, 12, 2)
    assert half is not None
    assert half.value == pytest.approx(abs(mean_of("half", "bias", even)) - abs(mean_of("ours", "bias", even)))
    assert mark(found, found.metrics["bias"], "lime samples=80") == BETTER
    assert mark(found, found.metrics["bias"], "a|b <i>") == WORSE
    assert found.ranked(found.metrics["bias"])[0] == "lime samples=80"
