"""One prompt of an evaluation: one forward, an explanation by every method that is left, and the metrics of each."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple, TypeAlias, TypeVar

from heta_lens._util.versions import versions
from heta_lens.api import MethodLike, method_of
from heta_lens.data.instance import Instance
from heta_lens.evaluation.failure_descriptions import description, raised_at
from heta_lens.evaluation.given_scores import GivenMethod
from heta_lens.evaluation.method_with_options import Entry, ReadyMethod
from heta_lens.evaluation.metric_values import metric_values, record_of
from heta_lens.evaluation.run_records import Record
from heta_lens.evaluation.score_rows import ScoreRow, row_of
from heta_lens.methods.base import NotApplicable
from heta_lens.metrics import ExplainedPrompt, Metric
from heta_lens.metrics.robustness import Explain
from heta_lens.metrics.shared_measurements import SharedMeasurements
from heta_lens.model import prompt_encoding
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.fingerprint import fingerprint
from heta_lens.model.locking import one_at_a_time
from heta_lens.prediction.chat_prompt import ChatPrompt, chat
from heta_lens.prediction.prediction import Prediction

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

        def record(measurements: SharedMeasurements, label: str) -> Record:
            case = explained(self.model, instance, measurements, self.entries[label].ready)
            scores[label] = row_of(instance.id, label, case.attribution, number)
            return record_of(case, label, metric_values(case, pending[label], metrics), metrics)

        for finished in records_of(instance, [*pending], partial(measurements_of, self.model, instance), record):
            yield Outcome(finished, scores.pop(finished.method, None))


def measurements_of(model: Any, instance: Instance) -> SharedMeasurements:
    return SharedMeasurements(ask(model, instance))


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
    prompt = chat(model, instance.messages) if instance.messages else prompt_encoding.encode(model, instance.text)
    cache = ModelAdapter(model).cache(prompt.tokens if isinstance(prompt, ChatPrompt) else prompt)
    prediction = Prediction.from_cache(cache, tokens=prompt)
    if instance.answer is not None:
        first, *_ = prediction.spell(instance.answer)
        prediction = Prediction.from_cache(cache, first, tokens=prompt)
    _ = prediction.prompt.kept
    return prediction


def explained(model: Any, instance: Instance, measurements: SharedMeasurements, ready: Ready) -> ExplainedPrompt:
    """A prompt explained by a method, to be evaluated."""
    prediction = measurements.prediction
    attribution = ready(instance, prediction)(prediction)
    return ExplainedPrompt(instance, prediction, attribution, ready, partial(ask, model), measurements)
