"""The built-in metrics: their descriptions, bounds and names."""

import json

import pytest

from helpers.evaluating import case_of, run
from heta_lens.data.suites import suite
from heta_lens.evaluation import figures
from heta_lens.metrics import METRICS


def test_every_metric_is_told_of() -> None:
    assert json.loads(json.dumps({name: metric.about for name, metric in METRICS.items()}))
    listed = run("metrics").output
    assert all(f"{name} " in listed for name in METRICS)
    for metric in METRICS.values():
        assert metric.title and metric.variant and metric.source
        assert metric.low is None or metric.high is None or metric.low < metric.high


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_values_keep_to_their_bounds_and_wear_a_name() -> None:
    for instance in suite("recall", limit=1, seed=4):
        values, reasons = figures(case_of(instance), list(METRICS))
        assert list(values) == list(METRICS)
        for name, value in values.items():
            low, high = METRICS[name].low, METRICS[name].high
            assert (value is None) == (name in reasons), name
            if isinstance(value, float):
                assert (low is None or low <= value) and (high is None or value <= high + 1e-9), name
            else:
                assert value is None or METRICS[name].aggregate == "log_ratio"
