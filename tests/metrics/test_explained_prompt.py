"""An explained prompt: its scores, its candidates, and whether its scores tell tokens apart."""

from dataclasses import replace

import torch

from helpers.evaluating import case_of, scored
from heta_lens.data.suites import suite
from heta_lens.metrics.metric_case import SharedMeasurements


def test_scores_that_tell_no_tokens_apart_are_known_as_such() -> None:
    case = case_of(suite("recall", limit=1)[0])
    n = len(case.scores)
    assert not case.constant and not case.without_positive_scores
    assert scored(case, torch.ones(n)).constant and not scored(case, torch.ones(n)).without_positive_scores
    assert scored(case, -torch.rand(n)).without_positive_scores
    assert scored(case, torch.eye(n)[0]).constant  # the only other score is that of a special token
    assert "ExplainedPrompt" in repr(case) and "tensor(" not in repr(case)


def test_measurements_are_shared_by_those_who_explain_the_same_prediction() -> None:
    case = case_of(suite("recall", limit=1)[0])
    shared = SharedMeasurements(case.prediction)
    one, other = (replace(case, measurements=shared) for _ in range(2))
    assert one.shared is other.shared is shared
    elsewhere = replace(one, prediction=replace(case.prediction, target=5))
    assert elsewhere.shared is not shared and elsewhere.shared.prediction is elsewhere.prediction
