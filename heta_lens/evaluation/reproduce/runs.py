"""Every prompt explained by every row's method and judged, in folders that are gone on from."""

import json
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track

from heta_lens.data.instance import Instance
from heta_lens.evaluation.records import RUN, Record, append, read_records, repair
from heta_lens.evaluation.reproduce.judges import JUDGES, Trial
from heta_lens.evaluation.reproduce.ways import recombined
from heta_lens.evaluation.runner import FAILURES, Entry, figures
from heta_lens.heta import Heta
from heta_lens.metrics import METRICS, Case
from heta_lens.metrics.case import positions


@dataclass(frozen=True)
class Plan:
    """What is asked of the prompts of one source: which methods, and what is to be known of each."""

    folder: Path
    instances: Sequence[Instance]
    entries: Sequence[Entry]
    metrics: Sequence[str]
    full: Heta
    window: int
    told: Mapping[str, Any]

    def records(self, model: Any, progress: bool) -> dict[str, list[Record]]:
        """By the labels of methods. What the folder has already is not done again."""
        begin(self.folder, self.told)
        there = {record.key: record for record in read_records(self.folder)}
        shown = track(
            self.instances, self.folder.name, console=Console(stderr=True), disable=not progress, transient=True
        )
        for number, instance in enumerate(shown):
            left = [(entry, wanted) for entry in self.entries if (wanted := self._wanted(there, instance, entry))]
            if not left:
                continue
            for record in self._judged(model, instance, left, first=not number):
                before = there.get(record.key)
                if before is not None:
                    record = _joined(before, record)
                there[record.key] = record
                append(self.folder, record)
        return {entry.label: [there[instance.id, entry.label] for instance in self.instances] for entry in self.entries}

    def _wanted(self, there: Mapping[Any, Record], instance: Instance, entry: Entry) -> tuple[str, ...]:
        """Metrics that are not known yet."""
        before = there.get((instance.id, entry.label))
        known: Collection[str] = self.metrics if before and before.failed else before.values if before else ()
        return tuple(name for name in self.metrics if name not in known)

    def _judged(
        self, model: Any, instance: Instance, left: Sequence[tuple[Entry, Sequence[str]]], first: bool
    ) -> Iterator[Record]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # what a method thinks of its own scores is judged here
            try:
                trial = Trial.of(model, instance, self.full, self.window, first)
            except FAILURES as error:
                for entry, _ in left:
                    yield Record(instance.id, entry.label, instance.template, failed=said(error))
                return
            for entry, metrics in left:
                try:
                    yield judged(trial, entry, metrics)
                except FAILURES as error:
                    yield Record(instance.id, entry.label, instance.template, failed=said(error))


def begin(folder: Path, told: Mapping[str, Any]) -> None:
    """Say in the folder what its prompts and its model are, or see that they are the same as when it was begun."""
    asked = {**told, "versions": {name: version(name) for name in ("heta-lens", "transformer-lens", "torch")}}
    folder.mkdir(parents=True, exist_ok=True)
    path, written = folder / RUN, json.dumps(asked, ensure_ascii=False, indent=1) + "\n"
    if path.exists() and path.read_text(encoding="utf-8") != written:
        raise ValueError(f"{folder} holds figures of another model, other prompts or versions: give another out")
    path.write_text(written, encoding="utf-8")
    repair(folder)


def judged(trial: Trial, entry: Entry, metrics: Sequence[str]) -> Record:
    """One method on one prompt."""
    instance, prediction = trial.instance, trial.prediction
    explain = recombined(entry.ready(partial(positions, instance, prediction)), trial.full, trial.known)
    attribution = explain(prediction)
    case = Case(instance, prediction, attribution, explain, trial.ask)
    values, reasons = figures(case, [name for name in metrics if name in METRICS])
    asked: dict[Any, list[str]] = {}
    for name in metrics:
        if name not in METRICS:
            asked.setdefault(JUDGES[name], []).append(name)
    for judge, names in asked.items():
        try:
            found: Mapping[str, Any] = judge(trial, case)
        except FAILURES as error:
            found = dict.fromkeys(names, said(error))
        for name in names:
            if isinstance(found[name], str):
                values[name], reasons[name] = None, found[name]
            elif not np.isfinite(found[name]).all():
                values[name], reasons[name] = None, f"{found[name]} is no finite number"
            else:
                values[name] = found[name]
    return Record(
        instance.id,
        entry.label,
        instance.template,
        values={name: values[name] for name in metrics},
        reasons=reasons,
        tokens=len(prediction),
        correct=int(prediction.log_probs.argmax()) == prediction.target,
    )


def _joined(before: Record, after: Record) -> Record:
    if after.failed:
        return after
    values, reasons = {**before.values, **after.values}, {**before.reasons, **after.reasons}
    return replace(after, values=values, reasons=reasons)


def said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
