"""Metric: what is kept of one beside its values."""

import json

from heta_lens.metrics import Metric


def test_all_but_the_function_can_be_written_as_json() -> None:
    metric = Metric("Length", lambda case: len(case.scores), better="less", high=None, needs=("evidence",), again=2)
    about = json.loads(json.dumps(metric.about))
    assert "evaluate" not in about
    assert (about["title"], about["better"], about["high"], about["again"]) == ("Length", "less", None, 2)
    assert about["needs"] == ["evidence"] and about["origin"] == "heta_lens"
