"""The registry: built-in metrics, their descriptions and bounds, and metrics of other packages."""

import json
import re
from collections.abc import Callable
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from helpers.evaluating import run
from heta_lens.data.instance import Instance
from heta_lens.data.suites import suite
from heta_lens.metrics import METRICS, Metric
from heta_lens.metrics.registry import (
    BUILT_INS,
    DESCRIPTIONS,
    GROUP,
    MetricRegistry,
    default_metrics,
    described_metric,
)


def test_every_metric_is_listed_with_its_facts() -> None:
    assert json.loads(json.dumps({name: metric.about for name, metric in METRICS.items()}))
    listed = run("metrics").output
    assert all(f"{name} " in listed for name in METRICS)
    for name, metric in BUILT_INS.items():
        assert re.sub(r"\W+", "_", metric.title.lower()).strip("_") == name
        assert metric.title and metric.variant and metric.source and metric.origin == "heta_lens"
        assert metric.low is None or metric.high is None or metric.low < metric.high


def test_every_metric_has_a_description_and_every_description_a_metric() -> None:
    assert {described_metric(name) for name in BUILT_INS} == {*DESCRIPTIONS.values()}
    assert described_metric("dsa_segments") == DESCRIPTIONS["dsa"] and described_metric("span_f1") != DESCRIPTIONS["f1"]
    assert described_metric("dsas") == "" and described_metric("mine:metric") == ""


def test_the_default_metrics_run_a_method_once_and_tell_methods_apart() -> None:
    """Soft-NS keeps one token's worth of the context: most values are 0, and methods often tie."""
    story, claim = (suite("recall", limit=1, claim=claim, distractors="before") for claim in (False, True))
    known = default_metrics([*story, *claim])
    left_out = {name for name in METRICS.keys() - {*known} if not METRICS[name].again}
    assert left_out == {"soft_ns", "soft_ns_raw"}


def test_the_default_metrics_are_those_that_some_prompt_has_the_evidence_for() -> None:
    plain, gold = Instance("a", "The box is red.", None), Instance("b", "The box is red.", None, gold=[(4, 7)])
    assert {*default_metrics([plain])} == {name for name in default_metrics([gold]) if not METRICS[name].needs}
    assert {*default_metrics([plain, gold])} - {*default_metrics([plain])} == {"f1", "pass_5"}


# ------------------------------------------------------------------------------------------- metrics of other packages
def longest(case: Any) -> float:
    return float(len(case.scores))


longest.better = "less"  # type: ignore[attr-defined]
OTHER = Metric("Other", longest, better="more", variant="of another package", source="somebody")


def undirected(_: Any) -> float:
    return 0.0


def sideways(_: Any) -> float:
    return 0.0


sideways.better = "sideways"  # type: ignore[attr-defined]


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> Callable[..., MetricRegistry]:
    def with_entry_points(**named: str) -> MetricRegistry:
        points = [EntryPoint(name, f"{__name__}:{value}", GROUP) for name, value in named.items()]
        monkeypatch.setattr("heta_lens._util.python.entry_points", lambda group: points if group == GROUP else [])
        return MetricRegistry()

    return with_entry_points


def test_metrics_of_other_packages_are_listed_with_their_origin(plugins: Callable[..., MetricRegistry]) -> None:
    found = plugins(longest="longest", other="OTHER")
    assert [*found] == [*BUILT_INS, "longest", "other"] and len(found) == len(BUILT_INS) + 2
    assert found["longest"].better == "less" and found["longest"].title == "longest"
    assert (found["longest"].low, found["longest"].high) == (None, None)
    assert found["other"].title == "Other" and found["other"].origin == __name__


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("broken", "missing", "'broken' of .*'missing'"),
        ("undirected", "undirected", "set better to 'more' or 'less'"),
        ("sideways", "sideways", "better='sideways'"),
        ("text", "__doc__", "neither a Metric nor a function"),
        ("f1", "longest", "rename the entry point"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_an_unusable_metric_is_left_out_with_one_warning(
    name: str, value: str, message: str, plugins: Callable[..., MetricRegistry]
) -> None:
    found = plugins(**{name: value})
    with pytest.warns(UserWarning, match=message) as warned:
        assert [*found] == [*BUILT_INS]
    assert len(warned) == 1 and len(found) == len(BUILT_INS)
