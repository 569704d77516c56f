"""One prompt of an evaluation: a forward, an explanation by every method, and the metrics of every explanation."""

import shlex
import sysconfig
import traceback
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from hashlib import sha256
from inspect import getsource, isfunction
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from heta_lens._util.files import brief
from heta_lens._util.options import check_at_least, check_choice, check_names, chosen, keywords, named_object
from heta_lens._util.presets import as_preset, method_and_options
from heta_lens._util.text import plain
from heta_lens.attribution import Attribution
from heta_lens.data.instance import SPANS, Instance
from heta_lens.evaluation.records import Record, Value
from heta_lens.methods.base import Method, NotApplicable
from heta_lens.methods.cost import within_budget
from heta_lens.methods.registry import METHODS, MethodLike, method_of
from heta_lens.metrics import Metric, MetricCase
from heta_lens.metrics.metric_case import Evaluator, MetricCache
from heta_lens.metrics.registry import metric_named
from heta_lens.metrics.robustness import Explain
from heta_lens.metrics.scores import evidence_positions
from heta_lens.model import tokenizer
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.lock import one_at_a_time
from heta_lens.model.weights import fingerprint
from heta_lens.prediction.chat import REPLY, ChatPrompt, chat
from heta_lens.prediction.prediction import Prediction

Ready: TypeAlias = Callable[[Instance, Prediction], Explain]


@dataclass(frozen=True)
class Entry:
    """A method by its name and options, under a label that distinguishes the method from other methods.

    An option ``"@question"`` (or another kind of span) stands for the positions of these tokens in every prompt. A
    ``budget`` limits the cost of the method per prompt, in plain forwards.
    """

    label: str
    method: str
    options: Mapping[str, Any]
    budget: float | int | None = None

    @classmethod
    def read(cls, written: str) -> "Entry":
        """Read ``"lime"``, or ``"lime samples=200 seed=1"``, or the name of a preset, perhaps with options."""
        try:
            name, *options = shlex.split(written) or [""]
        except ValueError as error:
            raise ValueError(f"{brief(written)} is no method with options ({error})") from None
        return cls(" ".join(written.split()), *method_and_options(name, keywords(options)))

    def __post_init__(self) -> None:
        for name, value in self.options.items():
            if _is_span(value):
                check_choice(name, value, [f"@{kind}" for kind in SPANS])
        method = type(method_of(self.method, {name: v for name, v in self.options.items() if not _is_span(v)}))
        check_names(method, self.options)
        if self.budget is not None:
            check_at_least("budget", self.budget, 0)
            for name in self.options.keys() & {*method.scaled_by}:
                raise ValueError(f"{self.label}: the budget decides {name}, so leave {name} out")

    @property
    def recipe(self) -> dict[str, Any]:
        """The method in a run's request: the name, the options and the budget."""
        budget = {} if self.budget is None else {"budget": self.budget}
        code = code_of(named_object(self.method)) if ":" in self.method else {}
        return {"method": self.method, "options": dict(self.options), **budget, **code}

    def ready(self, instance: Instance, prediction: Prediction) -> Method:
        """Make the method for a prompt: with the positions of spans in the options, and within the budget."""
        options = dict(self.options)
        for name, value in self.options.items():
            if _is_span(value):
                options[name] = ranges(evidence_positions(instance, prediction, value[1:]))
                if not options[name]:
                    raise NotApplicable(f"{name}={value}, and no {value[1:]} is known of this prompt")
        method = method_of(self.method, options)
        return method if self.budget is None else within_budget(method, prediction, self.budget)


def code_of(function: Any) -> dict[str, str]:
    """Return a digest of the source: a changed function, or another of the same name, does not resume an evaluation."""
    with suppress(OSError, TypeError):  # written in a session without files, or an object without a source
        return {"code": sha256(getsource(function).encode()).hexdigest()[:16]}
    return {}


def _is_span(value: Any) -> bool:
    return isinstance(value, str) and value.startswith("@")


def ranges(positions: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Write positions as ranges ``(start, stop)``."""
    starts = [position for position in positions if position - 1 not in positions]
    stops = [position + 1 for position in positions if position + 1 not in positions]
    return tuple(zip(starts, stops, strict=True))


@dataclass(frozen=True)
class ReadyMethod:
    """A method object with its options, or a function of the user."""

    given: Method | Callable[[Prediction], Any]

    @property
    def method(self) -> Method:
        """The method, made for every use: the class made of a function cannot be sent to another process."""
        return method_of(self.given, {})

    @property
    def label(self) -> str:
        """The name and the chosen options as on the command line, or the name of a preset."""
        name, options = as_preset(self.method.name, chosen(self.method))
        return " ".join([name, *(f"{option}={value}" for option, value in options.items())])

    @property
    def recipe(self) -> dict[str, Any]:
        """The method in a run's request: the origin and the options."""
        method, code = self.method, code_of(self.given) if isfunction(self.given) else {}
        name = method.name if METHODS.get(method.name) is type(method) else f"{type(method).__module__}.{method.name}"
        return {"method": name, "options": plain(chosen(method)), **code}

    def ready(self, instance: Instance, prediction: Prediction) -> Method:  # noqa: ARG002
        return self.method


@runtime_checkable
class Explainer(Protocol):
    """A method of an evaluation: an `Entry`, a `ReadyMethod`, or the scores of another tool."""

    @property
    def label(self) -> str: ...
    @property
    def recipe(self) -> dict[str, Any]: ...
    def ready(self, instance: Instance, prediction: Prediction) -> Explain: ...


Methods: TypeAlias = MethodLike | Explainer | Sequence[MethodLike | Explainer]


def explainers(methods: Methods) -> list[Explainer]:
    """Make entries of methods: of names with options, of method objects, or of functions ``(prediction) -> scores``."""
    entries: list[Explainer] = []
    for method in [methods] if isinstance(methods, str) or not isinstance(methods, Sequence) else methods:
        if isinstance(method, str):
            entries.append(Entry.read(method))
        elif isinstance(method, Explainer):
            entries.append(method)
        else:
            method_of(method, {})  # refuses objects that are no methods
            entries.append(ReadyMethod(method))
    return entries


class MetricValues(NamedTuple):
    """The values of metrics, the reasons of missing values, and the places of errors, by the names of the metrics."""

    values: dict[str, Value]
    reasons: dict[str, str]
    errors: dict[str, str]


def figures(case: MetricCase, metrics: Sequence[str | Metric]) -> tuple[dict[str, Value], dict[str, str]]:
    """Return the values of metrics for an explained prompt, and the reasons of missing values, by name."""
    return metric_values(case, dict(map(metric_named, metrics)))[:2]


def metric_values(case: MetricCase, metrics: Mapping[str, Metric]) -> MetricValues:
    """Compute the values of metrics, or the reasons of missing values; a shared evaluator runs once."""
    results: dict[str, Any] = {}  # numbers, or a reason as text
    errors: dict[str, str] = {}
    by_evaluator: dict[Evaluator, list[str]] = defaultdict(list)
    for name, metric in metrics.items():
        if unknown := metric.unknown(case.instance):
            results[name] = f"no {', '.join(unknown)} known of this prompt"
        else:
            by_evaluator[metric.evaluate].append(name)
    for evaluator, names in by_evaluator.items():
        try:
            values = evaluator(case)
            results |= {name: _value(name, values) for name in names}
        except Exception as error:
            results |= dict.fromkeys(names, description(error))
            errors |= dict.fromkeys(names, raised_at(error))
    for name in metrics:
        if not isinstance(results[name], str) and not np.isfinite(results[name]).all():
            results[name], errors[name] = f"{results[name]} is no finite number", ""
    reasons = {name: results[name] for name in metrics if isinstance(results[name], str)}
    return MetricValues({name: None if name in reasons else results[name] for name in metrics}, reasons, errors)


def _value(name: str, values: Any) -> Any:
    """Pick the value of a metric from the result of an evaluator; a single value may have any name."""
    if isinstance(values, Mapping):
        if name not in values and len(values) != 1:
            raise ValueError(f"it returned {', '.join(values) or 'nothing'}, and has to return a number for {name!r}")
        values = values.get(name, next(iter(values.values())))
    if isinstance(values, str):
        return values
    return [*values] if isinstance(values, tuple) else float(values)


def record_of(case: MetricCase, label: str, metrics: Mapping[str, Metric]) -> Record:
    """Evaluate an explained prompt, and make the record of the method and the metrics."""
    values, reasons, errors = metric_values(case, metrics)
    cost, prediction = case.attribution.diagnostics, case.prediction
    hvps, target = int(cost.get("hvps", 0)), prediction.target
    return Record(
        instance=case.instance.id,
        method=label,
        template=case.instance.template,
        values=values,
        reasons=reasons,
        errors=errors,
        degenerate=tuple(
            name for name in values if case.constant or (metrics[name].positive and case.without_positive_scores)
        ),
        tokens=len(prediction),
        correct=int(prediction.log_probs.argmax()) == target,
        seconds=float(cost.get("seconds", 0.0)),
        forwards=int(cost.get("forwards", 0)),
        backwards=int(cost.get("backwards", 0)) + 2 * hvps,
        hvps=hvps,
        log_prob=min(0.0, float(prediction.log_probs[target])) if isinstance(target, int) else None,
    )


class Task(NamedTuple):
    """The missing results of a prompt: the missing metrics by name, by the labels of methods."""

    instance: Instance
    pending: Mapping[str, Mapping[str, Metric]]


class Outcome(NamedTuple):
    """The result of a method on a prompt; a failed method has no scores."""

    record: Record
    attribution: Attribution | None = None


@dataclass(frozen=True, eq=False)
class PromptEvaluator:
    """A model, and the methods that explain its predictions, by label."""

    model: Any
    entries: Mapping[str, Explainer]

    @cached_property
    def fingerprint(self) -> Mapping[str, str]:
        return fingerprint(self.model)

    def outcomes(self, task: Task) -> Iterator[Outcome]:
        """Yield the outcome of every pending method as soon as the method is finished.

        A refusal (`NotApplicable`) is recorded as skipped and an error as failed; the other methods go on.
        """
        instance, shared = task.instance, None
        for label in task.pending:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", UserWarning)  # doubts about scores, which the metrics evaluate
                    shared = shared or MetricCache(ask(self.model, instance))
                    case = explained(self.model, instance, shared, self.entries[label].ready)
                    outcome = Outcome(record_of(case, label, task.pending[label]), case.attribution)
                case.attribution.to_bytes()  # one that cannot be saved ends no run
            except NotApplicable as refusal:
                outcome = Outcome(Record(instance.id, label, instance.template, skipped=str(refusal)))
            except Exception as error:
                failed, place = description(error), raised_at(error)
                outcome = Outcome(Record(instance.id, label, instance.template, failed=failed, failed_at=place))
            yield outcome


def _prompt(model: Any, instance: Instance) -> "ChatPrompt | Tensor":
    """Return the tokens of a text, or the chat, in which the model continues a last message of the assistant."""
    if not instance.messages:
        return tokenizer.encode(model, instance.text)
    opened = instance.messages[-1].get("role") == REPLY
    return chat(model, instance.messages, add_generation_prompt=not opened, continue_final_message=opened)


@one_at_a_time("model")
def ask(model: Any, instance: Instance) -> Prediction:
    """Make the prediction of an instance: of the first token of the answer, or of the model's own next token.

    Keys and values of the prompt are computed here, so that the seconds of a method do not include them.
    """
    prompt = _prompt(model, instance)
    prediction = _predicted(model, prompt)
    if instance.answer is not None:
        first, *rest = prediction.spell(instance.answer)
        if rest and isinstance(prompt, Tensor) and not prediction.tokenizer.write(first).strip():
            # Some tokenizers write numbers after a token for the blank, which tells nothing of the answer.
            prediction, first = _predicted(model, torch.cat([prompt, prompt.new_tensor([[first]])], 1)), rest[0]
        prediction = replace(prediction, target=first)
    prediction.prompt.prefix()
    return prediction


def _predicted(model: Any, prompt: "ChatPrompt | Tensor") -> Prediction:
    cache = ModelAdapter(model).cache(prompt.tokens if isinstance(prompt, ChatPrompt) else prompt)
    return Prediction.from_cache(cache, tokens=prompt)


def explained(model: Any, instance: Instance, measurements: MetricCache, ready: Ready) -> MetricCase:
    """Explain a prompt by a method."""
    prediction = measurements.prediction
    attribution = ready(instance, prediction)(prediction)
    return MetricCase(instance, prediction, attribution, ready, partial(ask, model), measurements)


SELF_EXPLANATORY = (ValueError, OSError, MemoryError, torch.OutOfMemoryError)
LIBRARIES = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))


def description(error: BaseException) -> str:
    """Describe an error by its kind and first line, and by its place unless the message is written for users."""
    message = str(error).strip().partition("\n")[0]
    place = "" if message and isinstance(error, SELF_EXPLANATORY) else f" ({raised_at(error)})"
    return ": ".join(filter(None, [type(error).__name__, message])) + place


def raised_at(error: BaseException) -> str:
    """Return the innermost file and line outside of other libraries: a place in a method or in a metric."""
    place = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        file, module = frame.f_code.co_filename, str(frame.f_globals.get("__name__"))
        if not file.startswith("<") and (module.startswith("heta_lens.") or not file.startswith(LIBRARIES)):
            place = f"{'/'.join(Path(file).parts[-2:])}:{line}"
    return place
