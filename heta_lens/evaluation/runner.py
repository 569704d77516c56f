"""Suites × methods × metrics: every explanation is evaluated, and recorded as soon as it is finished."""

import json
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from heta_lens._util.options import check_choice
from heta_lens.data.instance import OTHERS, Instance
from heta_lens.data.instance import record_of as as_json
from heta_lens.evaluation.failure_descriptions import description, raised_at
from heta_lens.evaluation.given_scores import GivenMethod
from heta_lens.evaluation.method_with_options import Entry
from heta_lens.evaluation.metric_values import metric_values, record_of
from heta_lens.evaluation.resumable_run_folder import opened
from heta_lens.evaluation.run_records import Record
from heta_lens.evaluation.score_rows import ScoreRow, row_of
from heta_lens.metrics import METRICS, ExplainedPrompt
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
Explainer: TypeAlias = Entry | GivenMethod
Pending: TypeAlias = Mapping[str, Sequence[str]]  # metrics still to be computed, by the labels of methods


def evaluate(
    model: Any,
    instances: Sequence[Instance],
    entries: Sequence[Explainer],
    metrics: Sequence[str],
    folder: Path,
    *,
    facts: Mapping[str, Any] | None = None,
    progress: bool = True,
    retry_failed: bool = False,
) -> None:
    """Explain every instance by every method, evaluate that by every metric, and keep the results in a folder.

    The scores are kept too: `load_scores` reads them. A folder that has some of the results already gets the others,
    of added methods too. One that holds another evaluation is refused: of other prompts or metrics, or of another
    model, by its `fingerprint` (unless all that is there failed). So is one that another evaluation is writing into.

    Args:
        model: which predictions are explained.
        instances: the prompts.
        entries: the methods.
        metrics: the names of the metrics.
        folder: where the results are kept.
        facts: what else to keep about this evaluation, such as the names of the suite and of the model.
        progress: show a progress bar.
        retry_failed: repeat what raised an error or was not finite, instead of leaving it failed.
    """
    if not metrics:
        raise ValueError("there are no metrics to evaluate")
    run_all(model, instances, entries, metrics, folder, facts=facts, progress=progress, retry_failed=retry_failed)


def run_all(
    model: Any,
    instances: Sequence[Instance],
    entries: Sequence[Explainer],
    metrics: Sequence[str],
    folder: Path,
    *,
    facts: Mapping[str, Any] | None,
    progress: bool,
    retry_failed: bool,
) -> None:
    """The work of `evaluate`, which without metrics keeps only the scores."""
    check_request(instances, entries, metrics)
    request = {**(facts or {}), **_request(instances, entries, metrics)}
    named = {entry.label: entry for entry in entries}
    with (
        opened(folder, request, request["methods"], fingerprint(model), retry_failed=retry_failed) as results,
        _progress_bar(len(instances) * len(entries), progress) as advance,
    ):
        for instance in instances:
            pending = results.left(instance.id, metrics)
            advance(len(named) - len(pending))
            evaluation = InstanceEvaluation(model, instance, named, pending)
            for record in records_of(instance, [*pending], evaluation.measurements, evaluation.record):
                results.append(record, pending[record.method], evaluation.scores.get(record.method))
                advance(1)


@dataclass(frozen=True, eq=False)
class InstanceEvaluation:
    """One instance of an evaluation: the prediction that all methods explain, and the record and scores of each."""

    model: Any
    instance: Instance
    entries: Mapping[str, Explainer]
    pending: Pending
    scores: dict[str, ScoreRow] = field(default_factory=dict)

    def measurements(self) -> SharedMeasurements:
        return SharedMeasurements(ask(self.model, self.instance))

    def record(self, measurements: SharedMeasurements, label: str) -> Record:
        case = explained(self.model, self.instance, measurements, self.entries[label].ready)
        self.scores[label] = row_of(self.instance.id, label, case.attribution)
        return record_of(case, label, metric_values(case, self.pending[label]))


def _request(instances: Sequence[Instance], entries: Sequence[Explainer], metrics: Sequence[str]) -> dict[str, Any]:
    return {
        "instances": len(instances),
        "texts": digest(instances),
        "methods": {entry.label: entry.recipe for entry in entries},
        "metrics": {name: METRICS[name].about for name in metrics},
    }


def digest(instances: Sequence[Instance]) -> str:
    """What two lists of instances share only if they are the same."""
    texts = json.dumps([_formerly(as_json(instance)) for instance in instances], sort_keys=True)
    return sha256(texts.encode()).hexdigest()[:16]


def _formerly(record: dict[str, Any]) -> dict[str, Any]:
    """The record as the first version wrote it, so that runs from then can be continued."""
    others = {name: _formerly(record[name]) for name in OTHERS if name in record}
    if (other := others.pop("counterfactual", None)) is not None:
        others["twin"] = other | {"id": re.sub("-counterfactual$", "-twin", other["id"])}
    return {name: value for name, value in record.items() if name not in OTHERS} | others


def check_request(instances: Sequence[Instance], entries: Sequence[Explainer], metrics: Sequence[str]) -> None:
    """Refuse, before any work, an unknown metric, an empty list of prompts or methods, and a repeated name."""
    for name in metrics:
        if name not in METRICS:
            check_choice("metric", name, METRICS)
    for what, names in (
        ("instances", [instance.id for instance in instances]),
        ("methods", [entry.label for entry in entries]),
        ("metrics", [*metrics]),
    ):
        if not names and what != "metrics":
            raise ValueError(f"there are no {what} to evaluate")
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"{what} {', '.join(repeated)} are there more than once")


def records_of(
    instance: Instance,
    labels: Sequence[str],
    prepare: Callable[[], Prepared],
    record: Callable[[Prepared, str], Record],
) -> Iterator[Record]:
    """A record for each method, by its label, of what is prepared for all. What fails is recorded and stops nothing."""
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


@contextmanager
def _progress_bar(total: int, shown: bool) -> Iterator[Callable[[int], None]]:
    columns = TextColumn("evaluating"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), disable=not shown) as bar:
        task = bar.add_task("", total=total)
        yield lambda count: bar.advance(task, count)
