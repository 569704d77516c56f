"""The values of metrics for one explained prompt: numbers, reasons why there is none, and errors; and their record."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from heta_lens.evaluation.failure_descriptions import description, raised_at
from heta_lens.evaluation.run_records import Record, Value
from heta_lens.metrics import METRICS, ExplainedPrompt, Metric
from heta_lens.metrics.metric import Evaluator
from heta_lens.metrics.metric_registry import named


class MetricValues(NamedTuple):
    """By the names of metrics: the values, why some have none, and where the errors among these were raised."""

    values: dict[str, Value]
    reasons: dict[str, str]
    errors: dict[str, str]


def figures(case: ExplainedPrompt, metrics: Sequence[str | Metric]) -> tuple[dict[str, Value], dict[str, str]]:
    """The values of `metric_values`, and the reasons; metrics may be given by name or themselves."""
    given = dict(map(named, metrics))
    return metric_values(case, [*given], given)[:2]


def metric_values(case: ExplainedPrompt, metrics: Sequence[str], others: Mapping[str, Metric] = {}) -> MetricValues:
    """The value of each metric, or the reason why there is none; metrics of one evaluator call it once.

    ``others`` are metrics that `METRICS` does not have.
    """
    results: dict[str, Any] = {}
    errors: dict[str, str] = {}
    for evaluator, names in _by_evaluator(case, metrics, others, results).items():
        try:
            values = evaluator(case)
            results |= {name: _plain_value(_own(name, values)) for name in names}
        except Exception as error:
            results |= dict.fromkeys(names, description(error))
            errors |= dict.fromkeys(names, raised_at(error))
    for name in metrics:
        if not isinstance(results[name], str) and not np.isfinite(results[name]).all():
            results[name], errors[name] = f"{results[name]} is no finite number", ""
    reasons = {name: results[name] for name in metrics if isinstance(results[name], str)}
    return MetricValues({name: None if name in reasons else results[name] for name in metrics}, reasons, errors)


def _by_evaluator(
    case: ExplainedPrompt, metrics: Sequence[str], others: Mapping[str, Metric], results: dict[str, Any]
) -> dict[Evaluator, list[str]]:
    """The metrics that can be computed, by their evaluators; of the others the reason goes into ``results``."""
    names: dict[Evaluator, list[str]] = {}
    for name in metrics:
        metric = others.get(name) or METRICS[name]
        if unknown := [need for need in metric.needs if not getattr(case.instance, need)]:
            results[name] = f"no {', '.join(unknown)} known of this prompt"
        else:
            names.setdefault(metric.evaluate, []).append(name)
    return names


def _own(name: str, values: Any) -> Any:
    """A metric's own value of those that its evaluator returned; if there is only one, whatever it is called there."""
    if not isinstance(values, Mapping):
        return values
    if name not in values and len(values) != 1:
        raise ValueError(f"it returned {', '.join(values) or 'nothing'}, and has to return a number for {name!r}")
    return values.get(name, next(iter(values.values())))


def _plain_value(value: Any) -> Any:
    if isinstance(value, str):
        return value
    return [*value] if isinstance(value, tuple) else float(value)


def record_of(case: ExplainedPrompt, label: str, results: MetricValues, others: Mapping[str, Metric] = {}) -> Record:
    """What is kept of a method and its metrics on a prompt."""
    facts, options = case.attribution.diagnostics, dict(case.attribution.options)
    return Record(
        instance=case.instance.id,
        method=label,
        template=case.instance.template,
        values=results.values,
        reasons=results.reasons,
        errors=results.errors,
        degenerate=[name for name in results.values if _degenerate(case, others.get(name) or METRICS[name])],
        tokens=len(case.prediction),
        correct=int(case.prediction.log_probs.argmax()) == case.prediction.target,
        versions=options.pop("versions"),
        options={name: value if _fits_json(value) else str(value) for name, value in options.items()},
        seconds=float(facts.get("seconds", 0.0)),
        forwards=int(facts.get("forwards", 0)),
        backwards=int(facts.get("backwards", 0)) + 2 * int(facts.get("hvps", 0)),
        hvps=int(facts.get("hvps", 0)),
        log_prob=_log_prob(case),
    )


def _log_prob(case: ExplainedPrompt) -> float | None:
    """Of the explained token, if it is one."""
    target = case.prediction.target
    return min(0.0, float(case.prediction.log_probs[target])) if isinstance(target, int) else None


def _degenerate(case: ExplainedPrompt, metric: Metric) -> bool:
    """Whether the scores tell no tokens apart, as far as this metric looks at them."""
    return case.constant or (metric.positive and case.without_positive_scores)


def _fits_json(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True
