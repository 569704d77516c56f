"""METRICS: one name per metric, and metrics of other packages through entry points."""

import re
from collections.abc import Callable
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from heta_lens.metrics import METRICS, Metric
from heta_lens.metrics import registry as metric_registry
from heta_lens.metrics.registry import BUILT_INS, GROUP, MetricRegistry, default_metrics, metric_of


def longest(case: Any) -> float:
    """A metric of another package."""
    return float(len(case.scores))


longest.better = "less"  # type: ignore[attr-defined]
OTHER = Metric("Other", longest, better="nearer 0", variant="of another package", source="somebody")


def undirected(_: Any) -> float:
    return 0.0


def sideways(_: Any) -> float:
    return 0.0


sideways.better = "sideways"  # type: ignore[attr-defined]


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> Callable[..., MetricRegistry]:
    def registry(**named: str) -> MetricRegistry:
        points = [EntryPoint(name, f"{__name__}:{value}", GROUP) for name, value in named.items()]
        monkeypatch.setattr(metric_registry, "entry_points", lambda group: points if group == GROUP else [])
        return MetricRegistry()

    return registry


def test_a_metric_is_named_as_it_is_titled() -> None:
    for name, metric in BUILT_INS.items():
        assert re.sub(r"\W+", "_", metric.title.lower()).strip("_") == name


def test_metrics_of_other_packages_are_listed_with_their_origin(plugins: Callable[..., MetricRegistry]) -> None:
    registry = plugins(longest="longest", other="OTHER")
    assert [*registry] == [*BUILT_INS, "longest", "other"] and len(registry) == len(BUILT_INS) + 2
    assert registry["longest"].better == "less" and registry["longest"].title == "longest"
    assert (registry["longest"].low, registry["longest"].high) == (None, None)
    assert registry["other"].title == "Other" and registry["other"].origin == __name__
    assert {metric.origin for metric in BUILT_INS.values()} == {"heta_lens"}


def test_built_in_metrics_load_no_package(plugins: Callable[..., MetricRegistry]) -> None:
    registry = plugins(broken="missing")
    assert registry["f1"] is BUILT_INS["f1"] and "plugins" not in vars(registry)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("broken", "missing", r"'broken' of .*:missing\) is left out: .*has no attribute 'missing'"),
        ("undirected", "undirected", "it declares no direction: set better to 'more', 'less' or 'nearer 0'"),
        ("sideways", "sideways", "better='sideways' is not one of more, less, nearer 0"),
        ("text", "__doc__", "is neither a Metric nor a function"),
        ("f1", "longest", "its name is taken by another metric: rename the entry point"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_a_metric_that_cannot_be_used_is_left_out_with_one_warning(
    name: str, value: str, message: str, plugins: Callable[..., MetricRegistry]
) -> None:
    registry = plugins(**{name: value})
    with pytest.warns(UserWarning, match=message) as warned:
        assert [*registry] == [*BUILT_INS]
    assert len(warned) == 1 and len(registry) == len(BUILT_INS)


def test_a_function_declares_what_else_it_knows() -> None:
    def bounded(_: Any) -> float:
        return 0.5

    vars(bounded).update(better="more", low=0.0, high=1.0, title="Bounded", again=2, unrelated=1)
    metric = metric_of("bounded", bounded)
    assert (metric.title, metric.low, metric.high, metric.again) == ("Bounded", 0.0, 1.0, 2)
    assert metric.evaluate is bounded and METRICS["f1"].low == 0.0


def test_the_default_metrics_run_a_method_once_and_tell_methods_apart() -> None:
    """docs/metrics_worth.md: random scores are in the better half on both kinds of prompts, and methods often tie."""
    left_out = METRICS.keys() - {*default_metrics()}
    assert {name for name in left_out if not METRICS[name].again} == {"soft_ns", "soft_ns_raw"}
