"""Metric cases: scores, candidates, and measurements that methods share."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from helpers.evaluating import case_of, demo, scored
from heta_lens.data.suites import suite
from heta_lens.metrics import Drops
from heta_lens.metrics.metric_case import MetricCache
from heta_lens.prediction.patching import effects


def test_scores_without_an_order_are_recognised() -> None:
    case = case_of(suite("recall", limit=1)[0])
    n = len(case.scores)
    assert not case.constant and not case.without_positive_scores
    assert scored(case, torch.ones(n)).constant and not scored(case, torch.ones(n)).without_positive_scores
    assert scored(case, -torch.rand(n)).without_positive_scores
    assert scored(case, torch.eye(n)[0]).constant  # the only other score is that of a special token


def test_an_instance_names_the_tokens_that_are_evaluated() -> None:
    instance = suite("recall", limit=1)[0]
    story = (0, instance.question[0].start)
    whole, context = case_of(instance), case_of(replace(instance, eligible=[story]))
    assert 0 not in whole.candidates
    written = [context.prediction.written[at] for at in context.candidates]
    assert "".join(written).strip() == instance.text[: story[1]].strip()
    assert set(context.positions("gold")) <= set(context.candidates) < set(whole.candidates)


def test_methods_share_the_measurements_of_a_prediction(forwards: Callable[[Any], list[Any]]) -> None:
    case = case_of(suite("recall", limit=1)[0])
    cache = MetricCache(case.prediction)
    one, other = (replace(case, measurements=cache) for _ in range(2))
    assert one.cached is other.cached is cache
    elsewhere = replace(one, prediction=replace(case.prediction, target=5))
    assert elsewhere.cached is not cache and elsewhere.cached.prediction is elsewhere.prediction
    torch.testing.assert_close(cache.edge_effects, effects(case.prediction).cpu().double())
    assert cache.drops.whole == Drops.of(case.prediction).whole
    seen = forwards(demo())
    assert cache.edge_effects is one.cached.edge_effects and cache.drops is other.cached.drops and not seen
