"""Metrics of tables alone."""

import pytest

from helpers.evaluating import demo
from heta_lens.data.suites import suite
from heta_lens.evaluation.prompt_evaluation import explained
from heta_lens.evaluation.reproduce.cells import Trial, evaluate_edges
from heta_lens.methods.heta.heta import Heta


@pytest.mark.usefixtures("unchecked")
def test_a_method_is_at_no_distance_from_itself() -> None:
    (instance,) = suite("recall", limit=1, facts=2)
    full = Heta(probes=2, support="row", balance="sum")
    trial = Trial.of(demo(), instance, full, 16, True)
    case = explained(demo(), instance, trial.measurements, lambda *_: full)
    assert evaluate_edges(trial, case) == {"edge_gap": 0.0}
