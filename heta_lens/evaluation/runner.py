"""Suites × methods × metrics: what each method says of each prompt is judged, and written down as it is finished."""

import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from heta_lens import models
from heta_lens.data.instance import SPANS, Instance
from heta_lens.evaluation.records import RUN, Record, Value, append, read_records, repair
from heta_lens.lens import names_filter
from heta_lens.methods import Method, method_of
from heta_lens.metrics import METRICS, Case
from heta_lens.metrics.case import positions
from heta_lens.options import check_choice, keywords
from heta_lens.prediction import Prediction


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
        name, *given = written.split()
        return cls(" ".join([name, *given]), name, keywords(given))

    def __post_init__(self) -> None:
        method_of(self.method, {name: value for name, value in self.options.items() if not _names_spans(value)})

    def ready(self, positions: Callable[[str], Sequence[int]]) -> Method:
        """The method for a prompt, in which the spans are at these positions."""
        told = {
            name: stretches(positions(value[1:])) if _names_spans(value) else value
            for name, value in self.options.items()
        }
        return method_of(self.method, told)


def _names_spans(value: Any) -> bool:
    return isinstance(value, str) and value[:1] == "@" and value[1:] in SPANS


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
) -> None:
    """Explain every instance by every method, judge that by every metric, and keep the figures in a folder.

    A folder that has some of them already gets the others; one that holds another evaluation is refused. ``told`` is
    what else to keep about this one: the suite's name and the model's, say.
    """
    check_all(instances, entries, metrics)
    begin(folder, instances, entries, metrics, told or {})
    done = {record.key for record in read_records(folder)}
    with _bar(len(instances) * len(entries), progress) as advance:
        for instance in instances:
            left = [entry for entry in entries if (instance.id, entry.label) not in done]
            advance(len(entries) - len(left))
            for record in judged(model, instance, left, metrics):
                append(folder, record)
                advance(1)


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


def begin(
    folder: Path,
    instances: Sequence[Instance],
    entries: Sequence[Entry],
    metrics: Sequence[str],
    told: Mapping[str, Any],
) -> None:
    """Say in the folder what is asked for, or see that it is the same as when it was begun."""
    asked = {
        **told,
        "instances": len(instances),
        "methods": {entry.label: {"method": entry.method, "options": dict(entry.options)} for entry in entries},
        "metrics": {name: METRICS[name].about for name in metrics},
        "versions": {name: version(name) for name in ("heta-lens", "transformer-lens", "torch")},
    }
    folder.mkdir(parents=True, exist_ok=True)
    written = json.dumps(asked, ensure_ascii=False, indent=1) + "\n"
    path = folder / RUN
    if path.exists() and path.read_text(encoding="utf-8") != written:
        before = json.loads(path.read_text(encoding="utf-8"))
        changed = [name for name in {**before, **asked} if before.get(name) != json.loads(written).get(name)]
        raise ValueError(f"{folder} holds an evaluation with other {', '.join(changed)}: give another folder")
    path.write_text(written, encoding="utf-8")
    repair(folder)


def judged(model: Any, instance: Instance, entries: Sequence[Entry], metrics: Sequence[str]) -> Iterator[Record]:
    """A record for each method. What fails is recorded, and stops nothing."""
    if not entries:
        return
    try:
        prediction = ask(model, instance)
    except FAILURES as error:
        yield from (Record(instance.id, entry.label, instance.template, failed=_said(error)) for entry in entries)
        return
    for entry in entries:
        try:
            yield one(model, instance, prediction, entry, metrics)
        except FAILURES as error:
            yield Record(instance.id, entry.label, instance.template, failed=_said(error), tokens=len(prediction))


FAILURES = (ValueError, TypeError, RuntimeError, IndexError, KeyError, ArithmeticError, MemoryError, OSError)


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def ask(model: Any, instance: Instance) -> Prediction:
    """What the model is asked by an instance: the first token of its answer, or what it says by itself."""
    ids = models.encode(model, instance.text)
    with torch.no_grad():
        _, cache = model.run_with_cache(ids, names_filter=names_filter)
    prediction = Prediction.from_cache(cache, tokens=ids)
    if instance.answer is None:
        return prediction
    first = prediction.lens.speller.encoder()(instance.answer)[0]
    return Prediction.from_cache(cache, first, tokens=ids)


def one(model: Any, instance: Instance, prediction: Prediction, entry: Entry, metrics: Sequence[str]) -> Record:
    """One method on one instance."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # what a method thinks of its own scores is judged here
        explain = entry.ready(partial(positions, instance, prediction))
        attribution = explain(prediction)
        case = Case(instance, prediction, attribution, explain, partial(ask, model))
        values, reasons = figures(case, metrics)
    facts = attribution.diagnostics
    return Record(
        instance=instance.id,
        method=entry.label,
        template=instance.template,
        values=values,
        reasons=reasons,
        doubts=[*values] if case.flat else [],
        tokens=len(prediction),
        correct=int(prediction.log_probs.argmax()) == prediction.target,
        options={name: value if _plain(value) else str(value) for name, value in attribution.options.items()},
        seconds=float(facts.get("seconds", 0.0)),
        forwards=int(facts.get("forwards", 0)),
        backwards=int(facts.get("backwards", 0)) + 2 * int(facts.get("hvps", 0)),
    )


def figures(case: Case, metrics: Sequence[str]) -> tuple[dict[str, Value], dict[str, str]]:
    """What each metric says, and of those that say nothing why; metrics with one judge ask it once."""
    values: dict[str, Value] = {}
    reasons: dict[str, str] = {}
    asked: dict[Any, list[str]] = {}
    for name in metrics:
        unknown = [need for need in METRICS[name].needs if not getattr(case.instance, need)]
        if unknown:
            values[name], reasons[name] = None, f"no {', '.join(unknown)} known of this prompt"
        else:
            asked.setdefault(METRICS[name].judge, []).append(name)
    for judge, names in asked.items():
        try:
            found: Mapping[str, Any] = judge(case)
        except FAILURES as error:
            found = dict.fromkeys(names, _said(error))
        for name in names:
            if isinstance(found[name], str):
                values[name], reasons[name] = None, found[name]
            elif not np.isfinite(found[name]).all():
                values[name], reasons[name] = None, f"{found[name]} is no finite number"
            else:
                values[name] = [*found[name]] if isinstance(found[name], tuple) else float(found[name])
    return {name: values[name] for name in metrics}, reasons


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
