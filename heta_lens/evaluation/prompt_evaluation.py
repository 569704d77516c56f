"""One prompt of an evaluation: one forward, an explanation by every method that is left, and the metrics of each."""

import json
import shlex
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from hashlib import sha256
from inspect import getsource, isfunction
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import torch

from heta_lens._util.files import brief
from heta_lens._util.options import check_at_least, check_choice, check_names, chosen, keywords
from heta_lens._util.python import versions
from heta_lens._util.text import plain
from heta_lens.api import METHODS, Method, MethodLike, method_of
from heta_lens.data.instance import SPANS, Instance
from heta_lens.evaluation.external_scores import GivenMethod
from heta_lens.evaluation.run_folder import Record, Value
from heta_lens.evaluation.saved_scores import ScoreRow, row_of
from heta_lens.methods.base import NotApplicable
from heta_lens.methods.cost import within_budget
from heta_lens.methods.registry import method_and_options, named
from heta_lens.metrics import METRICS, Metric, MetricCase
from heta_lens.metrics.metric_case import Evaluator, MetricCache
from heta_lens.metrics.registry import metric_named
from heta_lens.metrics.robustness import Explain
from heta_lens.metrics.scores import evidence_positions
from heta_lens.model import tokenizer
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.lock import one_at_a_time
from heta_lens.model.weights import fingerprint
from heta_lens.prediction.chat import ChatPrompt, chat
from heta_lens.prediction.prediction import Prediction

# ------------------------------------------------------------------------------------------------ failure descriptions
# How an error of a method or a metric is recorded: in one sentence, with the place where it was raised.


LIBRARIES = {
    *("beartype", "captum", "einops", "huggingface_hub", "jaxtyping", "matplotlib", "numpy", "ot", "pandas"),
    *("safetensors", "scipy", "sklearn", "tokenizers", "torch", "transformer_lens", "transformers"),
    *sys.stdlib_module_names,
}
SELF_EXPLANATORY = (ValueError, OSError, MemoryError, torch.OutOfMemoryError)
ROOT = Path(__file__).parents[2]


def description(error: BaseException) -> str:
    """Its kind and first line; where it was raised too, unless its message is written for the user."""
    kind = type(error).__name__
    try:
        message = next(iter(str(error).splitlines()), "")
    except Exception:
        message = "(an error without a readable message)"
    where = "" if isinstance(error, SELF_EXPLANATORY) else f" ({raised_at(error)})"
    return f"{kind}: {message}{where}" if message else f"{kind}{where}"


def raised_at(error: BaseException) -> str:
    """The innermost file and line outside of libraries, which is a method's or a metric's."""
    places = [
        f"{_short(Path(frame.f_code.co_filename))}:{line}"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not _of_library(frame)
    ]
    return places[-1] if places else ""


def _of_library(frame: FrameType) -> bool:
    package = str(frame.f_globals.get("__name__")).partition(".")[0]
    return package in LIBRARIES or frame.f_code.co_filename.startswith("<")  # the latter by a type checker, say


def _short(path: Path) -> str:
    """The path within the repository, or else the file and its folder."""
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT / "heta_lens") else "/".join(path.parts[-2:])


# ------------------------------------------------------------------------------------------------- method with options
# A method as it is evaluated: its name and options, read from the command line, and prepared for each prompt.


@dataclass(frozen=True)
class Entry:
    """A method as it is evaluated: its name and options, under a label that distinguishes it from others.

    An option that is ``"@question"`` (or another kind of span) stands for the positions of these tokens in each prompt.
    """

    label: str
    method: str
    options: Mapping[str, Any]
    budget: float | int | None = None
    """At most how many plain forwards each prompt may take."""

    @classmethod
    def read(cls, written: str) -> "Entry":
        """``"lime"``, or ``"lime samples=200 seed=1"``; a preset's name stands for its method and options."""
        try:
            name, *given = shlex.split(written) or [""]
        except ValueError as error:
            raise ValueError(
                f"{brief(written)} is no method and its options ({error}): write 'lime samples=200'"
            ) from None
        return cls(" ".join(written.split()), *method_and_options(name, keywords(given)))

    def __post_init__(self) -> None:
        for name, value in self.options.items():
            if _names_spans(value):
                check_choice(name, value, [f"@{kind}" for kind in SPANS])
        if self.budget is not None:
            check_at_least("budget", self.budget, 0)
        if self.method in METHODS:
            check_names(METHODS[self.method], self.options)
            for name in METHODS[self.method].scaled_by if self.budget is not None else ():
                if name in self.options:
                    raise ValueError(f"{self.label}: the budget decides {name}, so leave it out")
        method_of(self.method, {name: value for name, value in self.options.items() if not _names_spans(value)})

    @property
    def recipe(self) -> dict[str, Any]:
        """Method and options, as ``run.json`` keeps them."""
        budget = {} if self.budget is None else {"budget": self.budget}
        return {"method": self.method, "options": dict(self.options), **budget}

    def ready(self, instance: Instance, prediction: Prediction) -> Method:
        """The method for a prompt: with the spans that its options name, and as much work as the budget allows."""
        options = dict(self.options)
        for name, value in self.options.items():
            if _names_spans(value):
                options[name] = ranges(evidence_positions(instance, prediction, value[1:]))
                if not options[name]:
                    raise NotApplicable(f"{name}={value}, and no {value[1:]} is known of this prompt")
        method = method_of(self.method, options)
        return method if self.budget is None else within_budget(method, prediction, self.budget)


@dataclass(frozen=True)
class ReadyMethod:
    """A method with its options, or a function of yours, as it is evaluated."""

    given: Method | Callable[[Prediction], Any]

    @property
    def method(self) -> Method:
        """Made anew each time: the class that a function becomes cannot be sent to another process."""
        return method_of(self.given, {})

    @property
    def label(self) -> str:
        """Its name and the options that are not the default, as on the command line; or its preset's name."""
        name, options = named(self.method.name, chosen(self.method))
        return " ".join([name, *(f"{option}={value}" for option, value in options.items())])

    @property
    def recipe(self) -> dict[str, Any]:
        """Where it is from, and its options, as ``run.json`` keeps them."""
        method = self.method
        kind, name = type(method), method.name
        known = name in METHODS and METHODS[name] is kind
        options = {option: plain(value) for option, value in chosen(method).items()}
        return {"method": name if known else f"{kind.__module__}.{name}", "options": options, **self._code}

    @property
    def _code(self) -> dict[str, str]:
        """A digest of a function's source, so that an evaluation is not resumed with another of its name."""
        if not isfunction(self.given):
            return {}
        try:
            source = getsource(self.given)
        except OSError:  # it was written where no source is kept
            return {}
        return {"code": sha256(source.encode()).hexdigest()[:16]}

    def ready(self, instance: Instance, prediction: Prediction) -> Method:  # noqa: ARG002
        return self.method


def _names_spans(value: Any) -> bool:
    return isinstance(value, str) and value.startswith("@")


def ranges(positions: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Positions as ranges ``(start, stop)``."""
    starts = [position for position in positions if position - 1 not in positions]
    stops = [position + 1 for position in positions if position + 1 not in positions]
    return tuple(zip(starts, stops, strict=True))


# ------------------------------------------------------------------------------------------------------- metric values
# The values of metrics for one explained prompt: numbers, reasons why there is none, and errors; and their record.


class MetricValues(NamedTuple):
    """By the names of metrics: the values, why some have none, and where the errors among these were raised."""

    values: dict[str, Value]
    reasons: dict[str, str]
    errors: dict[str, str]


def figures(case: MetricCase, metrics: Sequence[str | Metric]) -> tuple[dict[str, Value], dict[str, str]]:
    """The values of `metric_values`, and the reasons; metrics may be given by name or themselves."""
    given = dict(map(metric_named, metrics))
    return metric_values(case, [*given], given)[:2]


def metric_values(case: MetricCase, metrics: Sequence[str], others: Mapping[str, Metric] = {}) -> MetricValues:
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
    case: MetricCase, metrics: Sequence[str], others: Mapping[str, Metric], results: dict[str, Any]
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


def record_of(case: MetricCase, label: str, results: MetricValues, others: Mapping[str, Metric] = {}) -> Record:
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


def _log_prob(case: MetricCase) -> float | None:
    """Of the explained token, if it is one."""
    target = case.prediction.target
    return min(0.0, float(case.prediction.log_probs[target])) if isinstance(target, int) else None


def _degenerate(case: MetricCase, metric: Metric) -> bool:
    """Whether the scores tell no tokens apart, as far as this metric looks at them."""
    return case.constant or (metric.positive and case.without_positive_scores)


def _fits_json(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True


Prepared = TypeVar("Prepared")
Ready: TypeAlias = Callable[[Instance, Prediction], Explain]
Explainer: TypeAlias = Entry | ReadyMethod | GivenMethod
Methods: TypeAlias = MethodLike | Explainer | Sequence[MethodLike | Explainer]
Pending: TypeAlias = Mapping[str, Sequence[str]]  # metrics still to be computed, by the labels of methods


def explainers(methods: Methods) -> list[Explainer]:
    """Methods as they are evaluated: names with their options, ready ones, or functions ``(prediction) -> scores``."""
    if isinstance(methods, Sequence) and not isinstance(methods, str):
        return [*map(_explainer, methods)]
    return [_explainer(methods)]


def _explainer(method: MethodLike | Explainer) -> Explainer:
    if isinstance(method, str):
        return Entry.read(method)
    if isinstance(method, Explainer):
        return method
    method_of(method, {})  # which refuses what is none
    return ReadyMethod(method)


class Task(NamedTuple):
    """What is left to do of one prompt; ``number`` is its place among all.

    ``metrics`` are those among the pending ones that `METRICS` does not have.
    """

    number: int
    instance: Instance
    pending: Pending
    metrics: Mapping[str, Metric] = {}


class Outcome(NamedTuple):
    """What one method gave on one prompt: without scores, if it failed."""

    record: Record
    scores: ScoreRow | None = None


class Identity(NamedTuple):
    """What all results of an evaluation have in common: the model, by its `fingerprint`, and versions of libraries."""

    fingerprint: Mapping[str, str]
    versions: Mapping[str, str]


@dataclass(frozen=True, eq=False)
class PromptEvaluator:
    """A model, and the methods by which its predictions are explained, by their labels."""

    model: Any
    entries: Mapping[str, Explainer]

    @cached_property
    def identity(self) -> Identity:
        return Identity(fingerprint(self.model), versions())

    def outcomes(self, task: Task) -> Iterator[Outcome]:
        """One for every method that is left, as soon as it is finished."""
        number, instance, pending, metrics = task
        scores: dict[str, ScoreRow] = {}

        def record(measurements: MetricCache, label: str) -> Record:
            case = explained(self.model, instance, measurements, self.entries[label].ready)
            scores[label] = row_of(instance.id, label, case.attribution, number)
            return record_of(case, label, metric_values(case, pending[label], metrics), metrics)

        for finished in records_of(instance, [*pending], partial(measurements_of, self.model, instance), record):
            yield Outcome(finished, scores.pop(finished.method, None))


def measurements_of(model: Any, instance: Instance) -> MetricCache:
    return MetricCache(ask(model, instance))


def records_of(
    instance: Instance,
    labels: Sequence[str],
    prepare: Callable[[], Prepared],
    record: Callable[[Prepared, str], Record],
) -> Iterator[Record]:
    """A record for each method, by its label, of what is prepared for all.

    A refusal (`NotApplicable`) is recorded as skipped and an error as failed; neither stops the others.
    """
    if not labels:
        return
    try:
        prepared = prepare()
    except Exception as error:
        yield from (_failed(instance, label, error) for label in labels)
        return
    for label in labels:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # a method's doubts about its scores: these are evaluated
                finished = record(prepared, label)
        except NotApplicable as refusal:
            finished = Record(instance.id, label, instance.template, skipped=str(refusal))
        except Exception as error:
            finished = _failed(instance, label, error)
        yield finished


def _failed(instance: Instance, label: str, error: Exception) -> Record:
    return Record(instance.id, label, instance.template, failed=description(error), failed_at=raised_at(error))


@one_at_a_time("model")
def ask(model: Any, instance: Instance) -> Prediction:
    """The prediction that an instance is about: of the first token of its answer, or of the model's own next token.

    Keys and values that runs continue from are computed here, so that no method's seconds include them.
    """
    prompt = chat(model, instance.messages) if instance.messages else tokenizer.encode(model, instance.text)
    cache = ModelAdapter(model).cache(prompt.tokens if isinstance(prompt, ChatPrompt) else prompt)
    prediction = Prediction.from_cache(cache, tokens=prompt)
    if instance.answer is not None:
        first, *_ = prediction.spell(instance.answer)
        prediction = Prediction.from_cache(cache, first, tokens=prompt)
    _ = prediction.prompt.kept
    return prediction


def explained(model: Any, instance: Instance, measurements: MetricCache, ready: Ready) -> MetricCase:
    """A prompt explained by a method, to be evaluated."""
    prediction = measurements.prediction
    attribution = ready(instance, prediction)(prediction)
    return MetricCase(instance, prediction, attribution, ready, partial(ask, model), measurements)
