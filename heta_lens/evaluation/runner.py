"""Suites × methods × metrics: what each method says of each prompt is judged, and written down as it is finished."""

import json
import shlex
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from heta_lens import models
from heta_lens.data.instance import SPANS, Instance
from heta_lens.data.instance import record_of as as_json
from heta_lens.evaluation.failures import place, said
from heta_lens.evaluation.folder import opened
from heta_lens.evaluation.records import Record, Value
from heta_lens.fingerprint import fingerprint
from heta_lens.lens import Lens
from heta_lens.methods import Method, method_of
from heta_lens.metrics import METRICS, Case
from heta_lens.metrics.case import positions
from heta_lens.metrics.judges import Judge
from heta_lens.metrics.robustness import Explain
from heta_lens.options import check_choice, keywords
from heta_lens.prediction import Prediction
from heta_lens.reading import brief
from heta_lens.turns import one_at_a_time

Asked = TypeVar("Asked")
Ready: TypeAlias = Callable[[Instance, Prediction], Explain]
Left: TypeAlias = Mapping[str, Sequence[str]]  # metrics, by the labels of methods


@dataclass(frozen=True)
class Entry:
    """A method as it is evaluated: its name and options, under a label that tells it from others.

    An option that is ``"@question"`` (or another kind of span) stands for where these tokens are in each prompt.
    """

    label: str
    method: str
    options: Mapping[str, Any]

    @classmethod
    def read(cls, written: str) -> "Entry":
        """``"lime"``, or ``"lime samples=200 seed=1"``."""
        try:
            name, *given = shlex.split(written) or [""]
        except ValueError as error:
            raise ValueError(
                f"{brief(written)} is no method and its options ({error}): write 'lime samples=200'"
            ) from None
        return cls(" ".join(written.split()), name, keywords(given))

    def __post_init__(self) -> None:
        for name, value in self.options.items():
            if _names_spans(value):
                check_choice(name, value, [f"@{one}" for one in SPANS])
        method_of(self.method, {name: value for name, value in self.options.items() if not _names_spans(value)})

    def ready(self, instance: Instance, prediction: Prediction) -> Method:
        """The method for a prompt, where its spans are known."""
        told = dict(self.options)
        for name, value in self.options.items():
            if _names_spans(value):
                told[name] = stretches(positions(instance, prediction, value[1:]))
                if not told[name]:
                    raise ValueError(f"{name}={value}, and no {value[1:]} is known of this prompt")
        return method_of(self.method, told)


def _names_spans(value: Any) -> bool:
    return isinstance(value, str) and value.startswith("@")


def stretches(positions: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Positions as ranges ``(start, stop)``."""
    starts = [at for at in positions if at - 1 not in positions]
    stops = [at + 1 for at in positions if at + 1 not in positions]
    return tuple(zip(starts, stops, strict=True))


def evaluate(
    model: Any,
    instances: Sequence[Instance],
    entries: Sequence[Entry],
    metrics: Sequence[str],
    folder: Path,
    *,
    told: Mapping[str, Any] | None = None,
    progress: bool = True,
    retry_failed: bool = False,
) -> None:
    """Explain every instance by every method, evaluate that by every metric, and keep the results in a folder.

    A folder that has some of them already gets the others, of added methods too. One that holds another evaluation is
    refused: of other prompts or metrics, or of another model, by its `fingerprint` (unless all that is there failed).
    So is one that another evaluation is writing into.

    Args:
        model: which predictions are explained.
        instances: the prompts.
        entries: the methods.
        metrics: the names of the metrics.
        folder: where the results are kept.
        told: what else to keep about this evaluation: the suite's name and the model's, say.
        progress: show how far it is.
        retry_failed: do again what raised an error or was not finite, in place of leaving it failed.
    """
    check_all(instances, entries, metrics)
    asked = {**(told or {}), **_asked(instances, entries, metrics)}
    named = {entry.label: entry for entry in entries}
    with (
        opened(folder, asked, asked["methods"], fingerprint(model), retry_failed=retry_failed) as run,
        _bar(len(instances) * len(entries), progress) as advance,
    ):
        for instance in instances:
            left = run.left(instance.id, metrics)
            advance(len(named) - len(left))

            def one(prediction: Prediction, label: str, instance: Instance = instance, left: Left = left) -> Record:
                case = case_of(model, instance, prediction, named[label].ready)
                return record_of(case, label, *measured(case, left[label]))

            for record in recorded(instance, [*left], partial(ask, model, instance), one):
                run.append(record, left[record.method])
                advance(1)


def _asked(instances: Sequence[Instance], entries: Sequence[Entry], metrics: Sequence[str]) -> dict[str, Any]:
    return {
        "instances": len(instances),
        "texts": digest(instances),
        "methods": {entry.label: {"method": entry.method, "options": dict(entry.options)} for entry in entries},
        "metrics": {name: METRICS[name].about for name in metrics},
    }


def digest(instances: Sequence[Instance]) -> str:
    """What two lists of instances share only if they are the same."""
    told = json.dumps([as_json(instance) for instance in instances], sort_keys=True)
    return sha256(told.encode()).hexdigest()[:16]


def check_all(instances: Sequence[Instance], entries: Sequence[Entry], metrics: Sequence[str]) -> None:
    """Refuse, before any work, what cannot be evaluated or told apart."""
    for name in metrics:
        check_choice("metric", name, METRICS)
    for what, names in (
        ("instances", [instance.id for instance in instances]),
        ("methods", [entry.label for entry in entries]),
        ("metrics", [*metrics]),
    ):
        if not names:
            raise ValueError(f"there are no {what} to evaluate")
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"{what} {', '.join(twice)} are there more than once")


def recorded(
    instance: Instance, labels: Sequence[str], asked: Callable[[], Asked], one: Callable[[Asked, str], Record]
) -> Iterator[Record]:
    """A record for each method, by its label, of what all are ``asked``. What fails is recorded, and stops nothing."""
    if not labels:
        return
    try:
        prompt = asked()
    except Exception as error:
        yield from (_failed(instance, label, error) for label in labels)
        return
    for label in labels:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # what a method thinks of its own scores is judged here
                record = one(prompt, label)
        except Exception as error:
            record = _failed(instance, label, error)
        yield record


def _failed(instance: Instance, label: str, error: Exception) -> Record:
    return Record(instance.id, label, instance.template, failed=said(error), failed_at=place(error))


@one_at_a_time("model")
def ask(model: Any, instance: Instance) -> Prediction:
    """What the model is asked by an instance: the first token of its answer, or what it says by itself.

    Keys and values that runs continue from are there already, so that no method pays for them with its seconds.
    """
    ids = models.encode(model, instance.text)
    cache = Lens(model).cache(ids)
    prediction = Prediction.from_cache(cache, tokens=ids)
    if instance.answer is not None:
        first, *_ = prediction.spell(instance.answer)
        prediction = Prediction.from_cache(cache, first, tokens=ids)
    _ = prediction.prompt.kept
    return prediction


def case_of(model: Any, instance: Instance, prediction: Prediction, ready: Ready) -> Case:
    """A method's word on a prompt, to be judged."""
    return Case(instance, prediction, ready(instance, prediction)(prediction), ready, partial(ask, model))


def record_of(
    case: Case,
    label: str,
    values: Mapping[str, Value],
    reasons: Mapping[str, str],
    errors: Mapping[str, str] | None = None,
) -> Record:
    facts, options = case.attribution.diagnostics, dict(case.attribution.options)
    return Record(
        instance=case.instance.id,
        method=label,
        template=case.instance.template,
        values=values,
        reasons=reasons,
        errors=errors or {},
        doubts=[name for name in values if case.flat or (case.speechless and _counts_positive(name))],
        tokens=len(case.prediction),
        correct=int(case.prediction.log_probs.argmax()) == case.prediction.target,
        versions=options.pop("versions"),
        options={name: value if _plain(value) else str(value) for name, value in options.items()},
        seconds=float(facts.get("seconds", 0.0)),
        forwards=int(facts.get("forwards", 0)),
        backwards=int(facts.get("backwards", 0)) + 2 * int(facts.get("hvps", 0)),
    )


def _counts_positive(name: str) -> bool:
    return name in METRICS and METRICS[name].positive


class Measured(NamedTuple):
    """By the names of metrics: their values, why some have none, and which of these are for an error, and where."""

    values: dict[str, Value]
    reasons: dict[str, str]
    errors: dict[str, str]


def figures(
    case: Case, metrics: Sequence[str], others: Mapping[str, Judge] | None = None
) -> tuple[dict[str, Value], dict[str, str]]:
    """The values of `measured`, and the reasons."""
    return measured(case, metrics, others)[:2]


def measured(case: Case, metrics: Sequence[str], others: Mapping[str, Judge] | None = None) -> Measured:
    """What each metric says, and of those that say nothing why; metrics with one judge ask it once.

    ``others`` are the judges of what `METRICS` does not have.
    """
    found: dict[str, Any] = {}
    errors: dict[str, str] = {}
    asked: dict[Judge, list[str]] = {}
    for name in metrics:
        check_choice("metric", name, {**METRICS, **(others or {})})
        unknown = [need for need in METRICS[name].needs if not getattr(case.instance, need)] if name in METRICS else []
        if unknown:
            found[name] = f"no {', '.join(unknown)} known of this prompt"
        else:
            asked.setdefault(METRICS[name].judge if name in METRICS else (others or {})[name], []).append(name)
    for judge, names in asked.items():
        try:
            told = judge(case)
            found |= {name: told[name] if isinstance(told[name], str) else _number(told[name]) for name in names}
        except Exception as error:
            found |= dict.fromkeys(names, said(error))
            errors |= dict.fromkeys(names, place(error))
    for name in metrics:
        if not isinstance(found[name], str) and not np.isfinite(found[name]).all():
            found[name], errors[name] = f"{found[name]} is no finite number", ""
    reasons = {name: found[name] for name in metrics if isinstance(found[name], str)}
    return Measured({name: None if name in reasons else found[name] for name in metrics}, reasons, errors)


def _number(found: Any) -> Value:
    return [*found] if isinstance(found, tuple) else float(found)


def _plain(value: Any) -> bool:
    """Whether JSON can hold it."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True


@contextmanager
def _bar(total: int, shown: bool) -> Iterator[Callable[[int], None]]:
    columns = TextColumn("evaluating"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), disable=not shown) as bar:
        task = bar.add_task("", total=total)
        yield lambda count: bar.advance(task, count)
