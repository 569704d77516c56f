"""How often methods are better or worse than HETA, over metrics and methods."""

from collections.abc import Sequence
from typing import NamedTuple

from heta_lens.evaluation.report.results import Measure, Summary

BESIDE = {  # references for other metrics: no merit of a method
    *("verdict_change_random", "causal_pass_5_chance", "causal_pass_5_unpatched", "seed_variance")
}


class Tally(NamedTuple):
    """How often something is significantly better than something else, and how often worse."""

    name: str
    better: int
    worse: int
    of: int

    def __str__(self) -> str:
        return f"{self.name} ({self.better} better, {self.worse} worse)"


def meaningful_metrics(results: Summary) -> list[Measure]:
    """The metrics with values on these prompts, without references."""
    having = {name for name, method in results.cells if results.cells[name, method].estimate.n} - BESIDE
    return [metric for metric in results.metrics.values() if metric.name in having]


def others(results: Summary) -> list[str]:
    return [method for method in results.methods if not method.startswith("heta")]


def by_metric(results: Summary) -> list[Tally]:
    """HETA against all other methods."""
    tallies = []
    for metric in meaningful_metrics(results):
        verdicts = [results.verdict(metric, method) for method in others(results)]
        tallies.append(Tally(metric.title, verdicts.count(-1), verdicts.count(1), len(verdicts)))
    return tallies


def by_method(results: Summary, methods: Sequence[str]) -> list[Tally]:
    """These methods against HETA, over all metrics."""
    tallies = []
    for method in methods:
        verdicts = [results.verdict(metric, method) for metric in meaningful_metrics(results)]
        tallies.append(Tally(f"`{method}`", verdicts.count(1), verdicts.count(-1), len(verdicts)))
    return sorted(tallies, key=lambda one: one.worse - one.better)


def listed(names: Sequence[str]) -> str:
    return ", ".join(names)
